"""`watch`, `attach` and `Doctor`: start and stop the capture of a model, and read what it measured."""

from __future__ import annotations

import sys
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from regard.describe import describe
from regard.doctor.capture import Active, Capture, Mode
from regard.doctor.chart import Chart, History, Vitals
from regard.doctor.findings import Finding, diagnose
from regard.doctor.running import call, undisturbed
from regard.doctor.vitals import DEFAULT_ROWS, INDEX, VITALS, Level, measure
from regard.doctor.vitals.gradient_rms import rms
from regard.observed import WATCHERS

if TYPE_CHECKING:
    from pathlib import Path

    from regard.doctor.probing import Probe
    from regard.doctor.remedies.treat import Treatment
    from regard.doctor.report.live import Live

# What `watch` measures unless it is given other vitals. `can_wait` allows the GPU kernels that measure
# many calls at once (`vitals/waiting.py`); vitals of a user's own have no such kernels.
OURS = Vitals(
    names=tuple(vital.name for vital in VITALS),
    measure=measure,
    gradient=rms,
    gradient_columns={side: INDEX[f"{side}_grad"] for side in ("query", "key", "value")},
    can_wait=True,
)


def watch(
    model: nn.Module,
    level: str | Level = Level.SAMPLED,
    *,
    every: int = 10,
    window: int = 256,
    rows: int = DEFAULT_ROWS,
    vitals: Vitals | None = OURS,
) -> Doctor:
    """A `Doctor` that watches the attention of a model: `with regard.doctor.watch(model) as d: ...`.

    Watching leaves the model's outputs, gradients, state dict and random numbers as they are. A step
    is one call of the model, or of one of its modules called directly.

    The doctor sees SDPA, FlexAttention, `nn.MultiheadAttention`, softmax attention written out
    (`capture/softmax.py` has the rule) and `regard.attention` with any score. It does not see kernels
    of other packages, a softmax computed from `exp` and a sum, attention over the edges of a graph,
    TorchScript, or calls in other threads (DataParallel). Gradients are not measured under reentrant
    checkpointing, nor where query and key meet in an einsum.

    The same calls are seen under `torch.compile`, whether the model was compiled before the watch or
    inside it. The code is compiled once more for the watched run. In compiled code:

    - Attention written out is measured without gradients. Its logits have to be stored, which may
      change how kernels are fused, and outputs may differ in their last bits.
    - FlexAttention is measured on `rows` queries at the exact level too, and without c50 where it has
      a `score_mod`: its functions stay inside the graph.
    - Compile a model with compiled checkpoints before watching it. torch 2.6 breaks the graph at
      checkpoints, and FlexAttention inside them is not seen.

    Args:
        model: any module, also a compiled one or one wrapped for parallel training.
        level: "cheap" measures norms only, at every step; "sampled" and "exact" measure more at every
            `every`-th step, starting with the first.
        every: see level.
        window: number of steps kept, on the device.
        rows: number of queries that the sampled level reads.
        vitals: what is measured; None finds the attention calls and measures nothing.
    """
    return Doctor(model, level, every=every, window=window, rows=rows, vitals=vitals)


def attach(model: nn.Module, level: str | Level = Level.SAMPLED, **options: Any) -> Doctor:
    """`watch` without a `with` block; call `d.detach()` in the same thread to stop."""
    return watch(model, level, **options).attach()


class Doctor:
    """Watches a model between `attach` and `detach`, or in a `with` block; see `watch`.

    Measurements stay readable after `detach`, and a second `attach` adds to them.
    """

    def __init__(
        self,
        model: nn.Module,
        level: str | Level,
        *,
        every: int,
        window: int,
        rows: int,
        vitals: Vitals | None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {describe(model)}")
        for name, number in (("every", every), ("window", window), ("rows", rows)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name} must be a whole number of 1 or more, got {number!r}")
        self.model, self.level = model, as_level(level)
        self.chart = Chart(vitals, self.level, every, window, rows)
        self.examined: Any = None
        self._prepare()

    def _prepare(self) -> None:
        """Set what a copy or a pickle does not take along: capture, treatments, undo stack, `attached`."""
        self.capture = Capture(self.model, self.chart)
        self._undo = ExitStack()
        self.attached = False
        self.treatments: list[Treatment] = []
        # A doctor that was garbage collected can no longer be read, so its hooks come off too.
        weakref.finalize(self, self._undo.close)

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy or pickle: without the capture, whose hooks belong to this object."""
        own = ("capture", "_undo", "attached", "treatments")
        return {name: x for name, x in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the measurements; the copy is not attached."""
        vars(self).update(state)
        self._prepare()

    def attach(self) -> Self:
        """Start watching."""
        if self.attached:
            raise RuntimeError("this doctor is watching already; watch(model) makes another one")
        # Each line registers how it is undone at once, so an error further down leaves nothing behind
        # that `detach` would miss. The stack undoes in reverse: the mode closes before hooks come off.
        self.capture.hook()
        self._undo.callback(self.capture.unhook)
        self.capture.active = Active(Mode(self.capture))
        self._undo.callback(self.capture.active.close)
        WATCHERS.append(self.capture)
        self._undo.callback(WATCHERS.remove, self.capture)
        self._undo.enter_context(CHECKPOINTS)
        self.attached = True
        return self

    def detach(self) -> None:
        """Stop watching; detaching twice is allowed."""
        self._undo.close()
        self.attached = False

    def __enter__(self) -> Self:
        """Start watching, unless `attach` was called before."""
        return self if self.attached else self.attach()

    def __exit__(self, *error: object) -> None:
        """Stop watching."""
        self.detach()

    @property
    def steps(self) -> int:
        """Number of steps seen so far."""
        return self.chart.step

    @property
    def sites(self) -> list[str]:
        """Names of the attention calls, in the order in which they were first seen."""
        return list(self.chart.sites)

    @property
    def vitals(self) -> tuple[str, ...]:
        """Names of the vitals: the last dim of every table of numbers."""
        return () if self.chart.vitals is None else self.chart.vitals.names

    @property
    def notes(self) -> list[str]:
        """Sentences that qualify the numbers: what was not measured, and what watching changed."""
        return [f"{', '.join(places)}: {note}" for note, places in self.chart.notes.items()]

    def history(self, site: str) -> History:
        """The last steps of a site, copied to the host: steps, and values (steps, heads, vitals)."""
        if site not in self.chart.sites:
            raise KeyError(f"site {site!r} was not seen; sites seen are {self.sites}")
        ring = self.chart.sites[site].ring
        return History([], torch.empty(0, 0, len(self.vitals))) if ring is None else ring.read()

    def findings(self) -> list[Finding]:
        """The diseases found in the steps that are kept, worst first; empty for a healthy model.

        Most rules need the sampled or exact level. The cheap level judges logit bounds, gradients, NaN
        and Inf.
        """
        return diagnose(self)

    def examine(self, batch: Any) -> dict[str, Tensor]:
        """Exact vitals (heads, vitals) of every site, from one run of the model on a batch.

        The model runs in evaluation mode, uncompiled and without gradients. Its state, the random
        numbers and the history are the same afterwards.

        Args:
            batch: a tensor, or a tuple or dict of all arguments.
        """
        return self.run(batch)[0]

    def run(self, batch: Any) -> tuple[dict[str, Tensor], Any]:
        """What `examine` returns, and the model's output; the batch is kept as `examined`."""
        # A chart of its own, so that this run is no step of the history and resets no sampling turn.
        chart = Chart(self.chart.vitals, Level.EXACT, rows=self.chart.rows)
        was_attached = self.attached
        self.__enter__()
        try:
            with self.capture.writing_in(chart), torch.no_grad(), undisturbed(self.model):
                output = call(self.model, batch)
        finally:
            # Notes are about the model, not about the run: they stay when the chart is dropped, also
            # where the model raised, because a note may say why.
            for note, places in chart.notes.items():
                for place in places:
                    self.chart.note(note, place)
            if not was_attached:
                self.detach()
        self.examined = batch
        measured = {
            name: site.ring.read().values[-1]
            for name, site in chart.sites.items()
            if site.ring is not None
        }
        return measured, output

    def treat(
        self, finding: Finding, remedy: str | None = None, batch: Any = None, **options: Any
    ) -> Treatment:
        """Apply a remedy to the model, and measure before and after on the same batch.

        Args:
            finding: one of `findings()`.
            remedy: a name in `REMEDIES`; None takes the first advised remedy that can be applied.
            batch: as for `examine`; None takes the batch that was examined last.
            options: options of the remedy, such as `cap=30.0` for "soft-cap".

        Returns:
            What was done and its effect: `print` shows it, `undo()` takes it back.

        Raises:
            TreatmentRefused: with the reason, where the remedy does not fit the disease or cannot be
                applied to the call.
        """
        from regard.doctor.remedies.treat import treat

        return treat(self, finding, remedy, batch, **options)

    def report(
        self, path: str | Path, *, name: str | None = None, probe: Probe | None = None
    ) -> Path:
        """Write a report: one HTML file, or JSON where the path ends in `.json`.

        Args:
            path: the file to write.
            name: name of the model; the name of its class unless given.
            probe: result of `regard.doctor.probe(model, batch)`, to include in the report.
        """
        from regard.doctor.report import write_report

        return write_report(self, path, name=name, probe=probe)

    def table(self) -> None:
        """Print the findings and a table of all attention calls."""
        from regard.doctor.report import record_of, show

        show(record_of(self))

    def live(self, every_seconds: float = 1.0, *, total: int | None = None) -> Live:
        """A table that updates while the model trains: `with d.live(total=1000): ...`.

        Args:
            every_seconds: seconds between two updates; the device is read only then.
            total: number of steps there will be, to estimate the time left.
        """
        from regard.doctor.report import live

        return live(self, every_seconds, total=total)


def as_level(level: str | Level) -> Level:
    """The `Level` of this name."""
    if isinstance(level, Level):
        return level
    names = [known.value for known in Level]
    if level not in names:
        raise ValueError(f"level must be one of {', '.join(names)}, got {level!r}")
    return Level(level)


class CheckpointSideEffects:
    """A context in which the compiler traces checkpoints although our hooks have side effects there.

    It sets one option of `torch._dynamo` while at least one doctor watches, and only where that was
    imported before: importing it takes seconds.
    """

    NAME = "skip_fwd_side_effects_in_bwd_under_checkpoint"

    def __init__(self) -> None:
        self.watching = 0
        self.before: bool | None = None

    def __enter__(self) -> None:
        self.watching += 1
        config = getattr(sys.modules.get("torch._dynamo"), "config", None)
        if self.before is None and hasattr(config, self.NAME):
            self.before = getattr(config, self.NAME)
            setattr(config, self.NAME, True)

    def __exit__(self, *error: object) -> None:
        # Several doctors may watch at once and stop in any order: the last one puts the option back.
        self.watching -= 1
        if self.watching == 0 and self.before is not None:
            setattr(sys.modules["torch._dynamo"].config, self.NAME, self.before)
            self.before = None


CHECKPOINTS = CheckpointSideEffects()
