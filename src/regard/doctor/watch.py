"""Watch a model: what starts and stops the capture, and what gives its numbers out."""

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
    """Watch the attention of a model: `with regard.doctor.watch(model) as d: ...`.

    Nothing of the model changes: not its outputs, gradients, state dict or random numbers. A step is
    one call of the model, or of a module of it that is called by itself.

    It sees SDPA, FlexAttention, `nn.MultiheadAttention`, softmax attention written out
    (`capture/softmax.py` has the rule) and `regard.attention` with any score. It does not see kernels
    of other packages, a softmax computed by hand, attention over edges of a graph, TorchScript, and
    what other threads run (DataParallel). Gradients are not measured under reentrant checkpointing,
    nor those of query and key that meet in an einsum.

    Under `torch.compile` all that is seen too, whether compiled before or within; code that runs
    under a watch is compiled once more for it. Of attention written out no gradients are measured
    there. Its logits have to be stored, so that it may get other fused kernels, and outputs may
    differ in their last bits. FlexAttention, whose functions stay in the graph, is measured on `rows`
    queries at the exact level too, and without c50 where it has a `score_mod`. A model with compiled
    checkpoints is to be compiled before it is watched. torch 2.6 breaks the graph at those, and shows
    no FlexAttention in it.

    Args:
        model: any module; compiled or wrapped for parallel training too.
        level: "cheap" for norms alone at every step; "sampled" or "exact" for that level at every
            `every`-th step, from the first on.
        every: see level.
        window: how many steps are kept, on the device.
        rows: how many queries the sampled level reads.
        vitals: what is measured; None finds the attention calls and measures nothing.
    """
    return Doctor(model, level, every=every, window=window, rows=rows, vitals=vitals)


def attach(model: nn.Module, level: str | Level = Level.SAMPLED, **options: Any) -> Doctor:
    """`watch` without a block: until `d.detach()`, which is to be called in the same thread."""
    return watch(model, level, **options).attach()


class Doctor:
    """Watches a model between `attach` and `detach`, or in a `with` block; see `watch`.

    What was measured stays when it is detached; attached again, it goes on.
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
            raise TypeError(f"watch takes an nn.Module, got {describe(model)}")
        for name, number in (("every", every), ("window", window), ("rows", rows)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name} must be a whole number of 1 or more, got {number!r}")
        self.model, self.level = model, as_level(level)
        self.chart = Chart(vitals, self.level, every, window, rows)
        self.examined: Any = None
        self._prepare()

    def _prepare(self) -> None:
        self.capture = Capture(self.model, self.chart)
        self._undo = ExitStack()
        self.attached = False
        # A doctor that was garbage collected can no longer be read, so its hooks come off too.
        weakref.finalize(self, self._undo.close)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle takes along: a copy that watched would share our hooks."""
        own = ("capture", "_undo", "attached")
        return {name: x for name, x in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """It has what was measured, and does not watch."""
        vars(self).update(state)
        self._prepare()

    def attach(self) -> Self:
        """Begin to watch."""
        if self.attached:
            raise RuntimeError("this doctor is watching already; watch(model) makes another one")
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
        """Stop; a second time it does nothing."""
        self._undo.close()
        self.attached = False

    def __enter__(self) -> Self:
        """Begin to watch, unless `attach` did."""
        return self if self.attached else self.attach()

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self.detach()

    @property
    def steps(self) -> int:
        """How many there were."""
        return self.chart.step

    @property
    def sites(self) -> list[str]:
        """The attention calls by name, in the order in which they were first seen."""
        return list(self.chart.sites)

    @property
    def vitals(self) -> tuple[str, ...]:
        """The names of the columns of all numbers."""
        return () if self.chart.vitals is None else self.chart.vitals.names

    @property
    def notes(self) -> list[str]:
        """What to know about the numbers: what was not measured, and what watching changes."""
        return [f"{', '.join(places)}: {note}" for note, places in self.chart.notes.items()]

    def history(self, site: str) -> History:
        """The last steps of a site, copied to the host: steps, and values (steps, heads, vitals)."""
        if site not in self.chart.sites:
            raise KeyError(f"no attention call {site!r} was seen; there are: {self.sites}")
        ring = self.chart.sites[site].ring
        return History([], torch.empty(0, 0, len(self.vitals))) if ring is None else ring.read()

    def findings(self) -> list[Finding]:
        """What is wrong, the worst first, from all steps that are kept; a healthy model has none.

        Most need the sampled or exact level; at "cheap" logits, gradients, NaN and Inf are judged.
        """
        return diagnose(self)

    def examine(self, batch: Any) -> dict[str, Tensor]:
        """Run the model once on a batch and measure everything exactly: (heads, vitals) by site.

        In evaluation mode, without gradients, uncompiled; random numbers, history and the model
        are as before afterwards.

        Args:
            batch: a tensor, or a tuple or dict of all arguments.
        """
        return self.run(batch)[0]

    def run(self, batch: Any) -> tuple[dict[str, Tensor], Any]:
        """`examine`, and what the model made of the batch; the batch is kept as `examined`."""
        chart = Chart(self.chart.vitals, Level.EXACT, rows=self.chart.rows)
        was_attached = self.attached
        self.__enter__()
        try:
            with self.capture.writing_in(chart), torch.no_grad(), undisturbed(self.model):
                output = call(self.model, batch)
        finally:
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
            finding: what to treat.
            remedy: a name of `REMEDIES`; None takes the first one advised that fits here.
            batch: as for `examine`; None takes the one that was examined last.
            options: of the remedy, such as `cap=30.0` for "soft-cap".

        Returns:
            What was done and what it did; print it to read it, `undo()` takes it back. One that
            does not fit the disease, or cannot be applied to the call, raises `TreatmentRefused`
            with the reason.
        """
        from regard.doctor.remedies.treat import treat

        return treat(self, finding, remedy, batch, **options)

    def report(
        self, path: str | Path, *, name: str | None = None, probe: Probe | None = None
    ) -> Path:
        """Write a report: one HTML file, or JSON where the path ends in `.json`.

        Args:
            path: where to.
            name: of the model; its class's name unless given.
            probe: what `regard.doctor.probe(model, batch)` gave, to be in it too.
        """
        from regard.doctor.report import write_report

        return write_report(self, path, name=name, probe=probe)

    def table(self) -> None:
        """Print what was found and a table of all attention calls."""
        from regard.doctor.report import record_of, show

        show(record_of(self))

    def live(self, every_seconds: float = 1.0, *, total: int | None = None) -> Live:
        """A table that updates while the model trains: `with d.live(total=1000): ...`.

        Args:
            every_seconds: between two looks; the device is read only then.
            total: how many steps there will be, for the time that is left.
        """
        from regard.doctor.report import live

        return live(self, every_seconds, total=total)


def as_level(level: str | Level) -> Level:
    """A level by its name."""
    if isinstance(level, Level):
        return level
    names = [known.value for known in Level]
    if level not in names:
        raise ValueError(f"level must be one of {', '.join(names)}, got {level!r}")
    return Level(level)


class CheckpointSideEffects:
    """Lets the compiler trace checkpoints in which our hooks and mode run, while a doctor watches.

    Only where the compiler has been imported: loading it takes seconds.
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
        self.watching -= 1
        if self.watching == 0 and self.before is not None:
            setattr(sys.modules["torch._dynamo"].config, self.NAME, self.before)
            self.before = None


CHECKPOINTS = CheckpointSideEffects()
