"""`treat`: pick a remedy for a finding, apply it, measure its effect on the same batch."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from regard.describe import describe
from regard.doctor.findings.evidence import GRADIENT_SHARE, gradient_share
from regard.doctor.findings.finding import Finding, Signal
from regard.doctor.findings.no_gradient import GETS
from regard.doctor.findings.seeing import VISIBLE
from regard.doctor.remedies import REMEDIES
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase
from regard.doctor.remedies.base import named as heads_named
from regard.doctor.remedies.locate import locate
from regard.doctor.remedies.reaching import GRADIENTS, gradients_at
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.vitals import INDEX

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

# A relative change of a signal below this does not count: rounding alone moves numbers.
LEAST = 0.01
AGAIN = (
    "this finding has been treated with {} already, and its numbers are from before: run more steps and "
    "take a new one, or call treatment.undo() first"
)


class TreatmentRefused(ValueError):
    """Raised with the reason where no remedy was applied; the model is unchanged."""


class Effect(NamedTuple):
    """One signal of the finding, before and after treatment.

    Attributes:
        signal: the signal of the finding.
        before: its value in the worst of the sick heads before treatment; NaN if not measured.
        after: the same after treatment.
    """

    signal: Signal
    before: float
    after: float

    @property
    def direct(self) -> bool:
        """Whether one batch is enough to measure the signal; others need several steps."""
        vital = self.signal.vital
        return vital in (*INDEX, GRADIENT_SHARE) or vital.endswith(VISIBLE) or is_gradient(vital)

    @property
    def gone(self) -> bool:
        """Whether the vital no longer exists: the call has another score now."""
        return math.isnan(self.after) and not math.isnan(self.before)

    @property
    def measured(self) -> bool:
        """Whether it was measured on the batch, before and after."""
        return not (math.isnan(self.before) or math.isnan(self.after))

    @property
    def gain(self) -> float:
        """Relative change towards health; negative if it got worse."""
        if not self.measured or self.before == self.after:
            return 0.0
        moved = self.before - self.after if self.signal.above else self.after - self.before
        largest = max(abs(self.before), abs(self.after))
        # From infinite to finite: inf / inf would be NaN.
        return 1.0 if math.isinf(largest) and moved > 0 else moved / largest

    @property
    def healthy(self) -> bool:
        """Whether it is on the healthy side of its threshold now."""
        # Remedies aim at the threshold itself, and rounding may miss it.
        slack = 1e-4 * abs(self.signal.threshold)
        if self.signal.above:
            return self.after <= self.signal.threshold + slack
        return self.after >= self.signal.threshold - slack


@dataclass
class Treatment:
    """An applied remedy and its measured effect.

    Attributes:
        finding: the finding that was treated.
        remedy: the remedy that was applied.
        applied: what it changed in the model.
        before: (heads, vitals) of the site on the batch, exact.
        after: the same with the remedy.
        moved: largest absolute difference between the model's outputs before and after.
        largest: largest absolute number of the output before.
        effects: one for each signal that is a complaint.
        passed_over: remedies advised before this one, each with the reason why it was not applied.
        also: other sites that it acts on, because they are further runs of the same module.
        undone: whether `undo` was called.
    """

    finding: Finding
    remedy: Remedy
    applied: Applied
    before: Tensor
    after: Tensor
    moved: float
    largest: float
    effects: tuple[Effect, ...]
    passed_over: Mapping[str, str]
    also: tuple[str, ...] = ()
    undone: bool = field(default=False)

    @property
    def kept(self) -> bool:
        """Whether the model's output on the batch is the same up to rounding."""
        return self.moved <= 1e-5 * max(self.largest, 1e-30)

    @property
    def better(self) -> bool:
        """Whether at least one signal got better on this batch and none got worse."""
        gains = [effect.gain for effect in self.effects]
        return any(x > LEAST for x in gains) and not any(x < -LEAST for x in gains)

    @property
    def healed(self) -> bool:
        """Whether all signals that one batch can measure are healthy now."""
        # Signals on what is visible tell one disease of masks from another. One that the remedy did
        # not change was never the complaint.
        same = [x for x in self.effects if x.signal.vital.endswith(VISIBLE) and x.gain == 0]
        measured = [x for x in self.effects if x.measured and x.direct and x not in same]
        return bool(measured) and all(effect.healthy for effect in measured)

    def undo(self) -> None:
        """Restore the model: weights bit by bit, unless they were trained since."""
        if self.undone:
            raise RuntimeError(f"{self.remedy.name} at {self.finding.site} has been undone already")
        self.applied.undo()
        self.undone = True

    def summary(self, width: int = 80) -> str:
        """The treatment and its effect as text, wrapped to `width`."""
        lines = [f"{self.remedy.name} for {self.finding.disease} at {self.finding.site}"]
        lines += [f"done: {self.applied.what}"]
        lines += [f"  {line}" for line in dict.fromkeys(map(line_of, self.shown_effects()))]
        lines.append(f"result: {self.verdict()}")
        share = self.moved / self.largest if self.largest else 0.0
        moved = f"moved by {self.moved:.3g} at most, {share:.2g} of the largest number"
        if math.isinf(self.moved):
            moved = "was not finite, or is not any more"
        lines.append(f"function: {'kept' if self.kept else 'changed'}, output {moved}")
        lines.append(
            f"  the remedy keeps it {self.applied.keeps}"
            if self._says_how()
            else f"  {self.applied.keeps}"
        )
        if self.applied.parameters:
            lines.append(f"new parameters: {', '.join(self.applied.parameters)}")
        if self.also:
            lines.append(f"the same module is called again, so also: {', '.join(self.also)}")
        lines += [f"passed over {name}: {why}" for name, why in self.passed_over.items()]
        lines += ["undone"] if self.undone else []
        wrapped = [
            textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)
            for line in lines
        ]
        return "\n".join(wrapped)

    def verdict(self) -> str:
        """The result in one sentence, which claims no more than was measured."""
        if self.healed:
            return "healthy on this batch"
        if self.better:
            return "better, but not yet healthy on this batch"
        if any(effect.gone for effect in self.effects):
            return "the call has another score now: train the model, and keep watching"
        if all(not effect.measured for effect in self.effects):
            return "none of the signals can be measured on one batch: keep watching"
        if self.kept:
            return "nothing is better yet: the function is the same until the model is trained"
        return "nothing got better on this batch; treatment.undo() takes it back"

    def shown_effects(self) -> list[Effect]:
        """The effects to print: no trend of a vital that is there by itself, which one batch cannot tell."""
        shown = {effect.signal.vital for effect in self.effects if effect.direct}
        return [x for x in self.effects if x.direct or x.signal.made_of not in shown]

    def _says_how(self) -> bool:
        return self.applied.keeps.startswith(("exactly", "as far", "for "))

    def __repr__(self) -> str:
        """The summary."""
        return self.summary()


def line_of(effect: Effect) -> str:
    """An effect as one line: the signal before and after, and its healthy range."""
    signal = effect.signal
    name = signal.vital if effect.direct else signal.made_of
    bound = f"{'at most' if signal.above else 'at least'} {signal.threshold:.4g}"
    if effect.gone:
        return f"{name}: {effect.before:.4g} -> none, the new score has no such number"
    if not effect.measured:
        return f"{signal.vital}: not measured on one batch; keep watching ({bound})"
    if signal.made_of in GRADIENTS and not effect.direct:
        return f"{name}: {effect.before:.4g} -> {effect.after:.4g} (of a loss in place of yours)"
    if not effect.direct:
        later = f"{signal.vital} needs several steps"
        return f"{name}: {effect.before:.4g} -> {effect.after:.4g} ({later})"
    return f"{name}: {effect.before:.4g} -> {effect.after:.4g} ({bound})"


def treat(
    doctor: Doctor, finding: Finding, remedy: str | None = None, batch: Any = None, **options: Any
) -> Treatment:
    """The treatment of a finding; see `Doctor.treat`."""
    if not isinstance(finding, Finding):
        raise TypeError(f"finding must be one of d.findings(), got {describe(finding)}")
    batch = doctor.examined if batch is None else batch
    if batch is None:
        raise ValueError(
            "treat measures before and after on a batch, and none was given: pass batch=, a tensor "
            "or a tuple or dict of all arguments of the model, or call d.examine(batch) first"
        )
    chosen = choose(finding, remedy)
    # A parameter created in inference mode could be neither trained nor loaded into, so a remedy is
    # applied outside of it. Autograd refuses inference tensors too: those of the batch are cloned.
    with torch.inference_mode(False):
        outside = tree_map(lambda x: x.clone() if made_in_inference(x) else x, batch)
        made = treat_on(doctor, finding, chosen, outside, remedy is not None, options)
    doctor.treatments.append(made)
    return made


def treat_on(
    doctor: Doctor,
    finding: Finding,
    chosen: list[Remedy],
    batch: Any,
    named: bool,
    options: dict[str, Any],
) -> Treatment:
    """Measure, apply the first remedy that can be, measure again; an error leaves the model unchanged."""
    vitals, output = doctor.run(batch)
    if finding.site not in vitals:
        raise TreatmentRefused(
            f"the site of the finding, {finding.site}, was not measured on this batch; measured "
            f"were: {', '.join(vitals) or 'none'}"
        )
    done = [x.remedy for x in doctor.treatments if x.finding == finding and not x.undone]
    if done and not named:
        raise TreatmentRefused(AGAIN.format(done[-1].name))
    calls = locate(doctor.model, batch, finding.site)
    if finding.site not in calls:
        raise TreatmentRefused(
            f"{finding.site} is additive attention written out for one query, with weights (B, L), which no "
            "remedy can change from outside: change its code, or use regard.nn.BahdanauAttention"
        )
    before = with_gradients(doctor, finding, batch, vitals[finding.site])
    call = calls[finding.site]
    case = RemedyCase(doctor.model, finding.site, call, finding, before, batch)
    if not all(0 <= head < call.place.heads for head in case.heads):
        raise TreatmentRefused(
            f"the finding is about {heads_named(case.heads)} of {finding.site}, which has "
            f"{call.place.heads} heads: it belongs to another model"
        )
    used, applied, passed = apply_first(case, chosen, done, named=named, options=options)
    with undone_by_error(applied.undo):
        after, output_after = doctor.run(batch)
        if finding.site not in after:
            raise TreatmentRefused(
                f"{used.name} was undone: with it {finding.site} could no longer be measured"
            )
        measured = with_gradients(doctor, finding, batch, after[finding.site])
        moved, largest = difference(output, output_after)
    also = [name for name, x in calls.items() if x.place == call.place and name != finding.site]
    return Treatment(
        finding, used, applied, before, measured, moved, largest,
        effects_of(finding, case.heads, before, measured), passed, tuple(also),
    )  # fmt: skip


def made_in_inference(x: object) -> bool:
    """Whether it is a tensor created in inference mode, which autograd refuses."""
    return isinstance(x, Tensor) and x.is_inference()


def choose(finding: Finding, remedy: str | None) -> list[Remedy]:
    """The remedy of this name if it fits the disease; without a name those advised, in order."""
    if remedy is None:
        return [REMEDIES[advice.remedy] for advice in finding.remedies]
    if remedy not in REMEDIES:
        raise ValueError(f"unknown remedy {remedy!r}; known are {', '.join(REMEDIES)}")
    chosen = REMEDIES[remedy]
    reason = chosen.refuse(finding)
    if reason is not None:
        raise TreatmentRefused(f"{remedy} does not treat {finding.disease}: {reason}")
    return [chosen]


def apply_first(
    case: RemedyCase,
    chosen: list[Remedy],
    done: list[Remedy],
    *,
    named: bool,
    options: dict[str, Any],
) -> tuple[Remedy, Applied, dict[str, str]]:
    """Apply the first that can be and is not `done`; returns it, what it did, and why others were not."""
    passed: dict[str, str] = {}
    for remedy in chosen:
        reason = remedy.refuse(case.finding) or remedy.cannot(case)
        reason = AGAIN.format(remedy.name) if reason is None and remedy in done else reason
        if reason is None:
            if unknown := [name for name in options if name not in remedy.options]:
                known = ", ".join(remedy.options) or "none"
                raise TypeError(f"{remedy.name} takes no option {unknown[0]!r}; options: {known}")
            try:
                return remedy, remedy.apply(case, **options), passed
            except NotApplicable as error:
                reason = str(error)
        passed[remedy.name] = reason
    if named:
        raise TreatmentRefused(f"{chosen[0].name} cannot be applied: {passed[chosen[0].name]}")
    tried = "; ".join(f"{name}: {reason}" for name, reason in passed.items())
    raise TreatmentRefused(
        f"no remedy for {case.finding.disease} can be applied at {case.site}. "
        f"{tried or 'None is known'}"
    )


def with_gradients(doctor: Doctor, finding: Finding, batch: Any, vitals: Tensor) -> Tensor:
    """The vitals of the site, with gradients from a backward pass if the finding is about them."""
    if not any(name in x.vital for x in finding.signals for name in GRADIENTS):
        return vitals
    columns = [INDEX[name] for name in GRADIENTS]
    found = vitals.clone()
    found[:, columns] = gradients_at(doctor.model, batch, finding.site)[:, columns].to(found)
    return found


def effects_of(
    finding: Finding, heads: list[int], before: Tensor, after: Tensor
) -> tuple[Effect, ...]:
    """Each signal before and after, in the worst of the sick heads."""
    # "Values get a gradient" is a signal of the disease (only queries and keys do not), not a complaint.
    complaints = (x for x in finding.signals if not (is_gradient(x.vital) and x.above))
    return tuple(Effect(x, worst(before[heads], x), worst(after[heads], x)) for x in complaints)


def worst(values: Tensor, signal: Signal) -> float:
    """The value of a signal in the worst of these heads (heads, vitals); NaN if unknown."""

    def of(name: str) -> Tensor:
        unknown = values.new_full(values.shape[:1], torch.nan)
        return values[:, INDEX[name]] if name in INDEX else unknown

    if signal.vital.endswith(VISIBLE):
        return float((~of(signal.made_of).isnan()).any())
    if is_gradient(signal.vital):
        return float((~of(signal.vital.removeprefix(GETS)).isnan()).any())
    column = gradient_share(of) if signal.vital == GRADIENT_SHARE else of(signal.made_of)
    column = column[~column.isnan()]
    if not column.numel():
        return math.nan
    return float(column.max() if signal.above else column.min())


def is_gradient(vital: str) -> bool:
    """Whether a signal counts the steps in which a side gets a gradient."""
    return vital.startswith(GETS)


def difference(before: Any, after: Any) -> tuple[float, float]:
    """The largest absolute difference between two outputs, and the largest finite number of the first."""
    moved, largest = 0.0, 0.0
    for x, y in zip(numbers(before), numbers(after), strict=True):
        if x.shape == y.shape and x.numel():
            # NaN or Inf in both outputs is no difference; in one of them it is an infinite one.
            gap = torch.where(x.isfinite() | y.isfinite(), (x - y).abs(), 0.0)
            moved = max(moved, float(gap.nan_to_num(nan=math.inf, posinf=math.inf).max()))
            finite = torch.where(x.isfinite(), x.abs(), 0.0)
            largest = max(largest, float(finite.max()))
    return moved, largest


def numbers(output: Any) -> list[Tensor]:
    """The floating point tensors of an output."""
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    return [x.double() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
