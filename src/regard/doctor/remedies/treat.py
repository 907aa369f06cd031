"""Treat a finding: pick a remedy that fits, apply it, and measure what it did on the same batch."""

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
from regard.doctor.capture.gradient_hooks import SIDES
from regard.doctor.findings.evidence import GRADIENT_SHARE, gradient_share
from regard.doctor.findings.finding import Finding, Signal
from regard.doctor.findings.no_gradient import GETS
from regard.doctor.findings.seeing import VISIBLE
from regard.doctor.remedies import REMEDIES
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase
from regard.doctor.remedies.base import named as heads_named
from regard.doctor.remedies.locate import locate
from regard.doctor.remedies.reaching import gradients_at
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.vitals import INDEX

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

# A signal that moves by less than this share has not moved.
LEAST = 0.01
GRADIENTS = tuple(f"{side}_grad" for side in SIDES)


class TreatmentRefused(ValueError):
    """No remedy was applied, and why; the model is as it was."""


class Effect(NamedTuple):
    """What became of one signal.

    Attributes:
        signal: as the finding has it.
        before: the worst of the sick heads, before treatment; NaN where it was not measured.
        after: the same after it.
    """

    signal: Signal
    before: float
    after: float

    @property
    def direct(self) -> bool:
        """Whether one batch tells it, and not several steps alone."""
        vital = self.signal.vital
        return vital in (*INDEX, GRADIENT_SHARE) or vital.endswith(VISIBLE) or is_gradient(vital)

    @property
    def gone(self) -> bool:
        """Whether there is no such number any more, because the call scores in another way."""
        return math.isnan(self.after) and not math.isnan(self.before)

    @property
    def measured(self) -> bool:
        """Whether it was measured on the batch, before and after."""
        return not (math.isnan(self.before) or math.isnan(self.after))

    @property
    def gain(self) -> float:
        """How far it went towards health, as a share of what it was; below 0 it got worse."""
        if not self.measured or self.before == self.after:
            return 0.0
        moved = self.before - self.after if self.signal.above else self.after - self.before
        largest = max(abs(self.before), abs(self.after))
        return 1.0 if math.isinf(largest) and moved > 0 else moved / largest

    @property
    def healthy(self) -> bool:
        """Whether it is on the good side of its threshold now."""
        # What was brought to the threshold exactly may be off by rounding.
        slack = 1e-4 * abs(self.signal.threshold)
        if self.signal.above:
            return self.after <= self.signal.threshold + slack
        return self.after >= self.signal.threshold - slack


@dataclass
class Treatment:
    """A remedy that was applied, and what it did.

    Attributes:
        finding: what was treated.
        remedy: by which remedy.
        applied: what it did to the model; `undo` puts the model back.
        before: (heads, vitals) of the site, exact, on the batch.
        after: the same with the remedy.
        moved: the largest absolute difference that it made to the model's output on the batch.
        largest: the largest absolute number of that output before.
        effects: one for each signal of the finding; that values learn is a signal, but no complaint.
        passed_over: remedies that were advised before this one, with the reason.
        also: other attention calls that it acts on, because they are the same module run again.
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
        """Whether the model computes what it did, but for rounding."""
        return self.moved <= 1e-5 * max(self.largest, 1e-30)

    @property
    def better(self) -> bool:
        """Whether a signal got better on this batch, and none worse."""
        gains = [effect.gain for effect in self.effects]
        return any(x > LEAST for x in gains) and not any(x < -LEAST for x in gains)

    @property
    def healed(self) -> bool:
        """Whether all signals that one batch can tell are healthy now."""
        # A place that is seen as before tells one disease of masks from another, and is no complaint.
        same = [x for x in self.effects if x.signal.vital.endswith(VISIBLE) and x.gain == 0]
        measured = [x for x in self.effects if x.measured and x.direct and x not in same]
        return bool(measured) and all(effect.healthy for effect in measured)

    def undo(self) -> None:
        """Put the model back as it was; weights bit by bit, unless they were trained since."""
        if self.undone:
            raise RuntimeError(f"{self.remedy.name} at {self.finding.site} has been undone already")
        self.applied.undo()
        self.undone = True

    def summary(self, width: int = 80) -> str:
        """What was done and what it did, in lines of `width`."""
        title = f"{self.remedy.name} for {self.finding.disease} at {self.finding.site}"
        lines = [title, f"done: {self.applied.what}"]
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
        """The result in a few words; it claims no more than was measured."""
        if self.healed:
            return "healthy on this batch"
        if self.better:
            return "better, but not yet healthy on this batch"
        if any(effect.gone for effect in self.effects):
            return "the call scores in another way: train it, and watch on"
        if all(not effect.measured for effect in self.effects):
            return "none of the signals can be measured on one batch: watch on"
        if self.kept:
            return "nothing is better yet: the function was kept, it has to be trained"
        return "it made nothing better on this batch; treatment.undo() takes it back"

    def shown_effects(self) -> list[Effect]:
        """Without what is made of a vital that is among them itself: on one batch it is the same."""
        shown = {effect.signal.vital for effect in self.effects if effect.direct}
        return [x for x in self.effects if x.direct or x.signal.made_of not in shown]

    def _says_how(self) -> bool:
        return self.applied.keeps.startswith(("exactly", "as far", "for "))

    def __repr__(self) -> str:
        """The summary."""
        return self.summary()


def line_of(effect: Effect) -> str:
    """A signal before and after, and what is healthy."""
    signal = effect.signal
    name = signal.vital if effect.direct else signal.made_of
    bound = f"{'at most' if signal.above else 'at least'} {signal.threshold:.4g}"
    if effect.gone:
        return f"{name}: {effect.before:.4g} -> none, the score has no such number"
    if not effect.measured:
        return f"{signal.vital}: not measured on one batch; watch on ({bound})"
    if signal.made_of in GRADIENTS and not effect.direct:
        return (
            f"{name}: {effect.before:.4g} -> {effect.after:.4g} (of a loss that stands for yours)"
        )
    if not effect.direct:
        later = f"{signal.vital} shows over steps alone"
        return f"{name}: {effect.before:.4g} -> {effect.after:.4g} ({later})"
    return f"{name}: {effect.before:.4g} -> {effect.after:.4g} ({bound})"


def treat(
    doctor: Doctor,
    finding: Finding,
    remedy: str | None = None,
    batch: Any = None,
    **options: Any,
) -> Treatment:
    """See `Doctor.treat`."""
    if not isinstance(finding, Finding):
        raise TypeError(f"treat takes a Finding, one of d.findings(), got {describe(finding)}")
    batch = doctor.examined if batch is None else batch
    if batch is None:
        raise ValueError(
            "treat measures before and after on a batch: give batch=, a tensor or a tuple or dict "
            "of all arguments of the model, or call d.examine(batch) before"
        )
    chosen = choose(finding, remedy)
    # What inference mode makes could not be trained, nor loaded into: a remedy's parameters too.
    with torch.inference_mode(False):
        outside = tree_map(lambda x: x.clone() if made_in_inference(x) else x, batch)
        return treat_on(doctor, finding, chosen, outside, remedy is not None, options)


def treat_on(
    doctor: Doctor,
    finding: Finding,
    chosen: list[Remedy],
    batch: Any,
    named: bool,
    options: dict[str, Any],
) -> Treatment:
    """Measure, apply one of these remedies, measure again; an error leaves the model as it was."""
    vitals, output = doctor.run(batch)
    if finding.site not in vitals:
        raise TreatmentRefused(
            f"{finding.site} makes no attention call that is measured on this batch; there are: "
            f"{', '.join(vitals) or 'none'}"
        )
    calls = locate(doctor.model, batch, finding.site)
    call = calls[finding.site]
    before = with_gradients(doctor, finding, batch, vitals[finding.site])
    case = RemedyCase(doctor.model, finding.site, call, finding, before, batch)
    if not all(0 <= head < call.place.heads for head in case.heads):
        raise TreatmentRefused(
            f"the finding is about {heads_named(case.heads)} of {finding.site}, which has "
            f"{call.place.heads}: it was made of another model"
        )
    used, applied, passed = apply_first(case, chosen, named=named, options=options)
    with undone_by_error(applied.undo):
        after, output_after = doctor.run(batch)
        if finding.site not in after:
            raise TreatmentRefused(
                f"{used.name} was taken back: with it {finding.site} could no longer be measured"
            )
        measured = with_gradients(doctor, finding, batch, after[finding.site])
        moved, largest = difference(output, output_after)
    also = [name for name, x in calls.items() if x.place == call.place and name != finding.site]
    return Treatment(
        finding,
        used,
        applied,
        before,
        measured,
        moved,
        largest,
        effects_of(finding, case.heads, before, measured),
        passed,
        tuple(also),
    )


def made_in_inference(x: object) -> bool:
    """Whether it is a tensor that no gradient may be computed with."""
    return isinstance(x, Tensor) and x.is_inference()


def choose(finding: Finding, remedy: str | None) -> list[Remedy]:
    """The remedy of that name, if it fits the disease; else those advised, in order."""
    if remedy is None:
        return [REMEDIES[advice.remedy] for advice in finding.remedies]
    if remedy not in REMEDIES:
        raise ValueError(f"unknown remedy {remedy!r}; there are: {', '.join(REMEDIES)}")
    chosen = REMEDIES[remedy]
    reason = chosen.refuse(finding)
    if reason is not None:
        raise TreatmentRefused(f"{remedy} is no remedy for {finding.disease}: {reason}")
    return [chosen]


def apply_first(
    case: RemedyCase, chosen: list[Remedy], *, named: bool, options: dict[str, Any]
) -> tuple[Remedy, Applied, dict[str, str]]:
    """Apply the first that can be; also says why those before it could not."""
    passed: dict[str, str] = {}
    for remedy in chosen:
        reason = remedy.refuse(case.finding) or remedy.cannot(case)
        if reason is None:
            unknown = [name for name in options if name not in remedy.options]
            if unknown:
                known = ", ".join(remedy.options) or "none"
                raise TypeError(f"{remedy.name} takes no option {unknown[0]!r}; there are: {known}")
            try:
                return remedy, remedy.apply(case, **options), passed
            except NotApplicable as error:
                reason = str(error)
        passed[remedy.name] = reason
    if named:
        raise TreatmentRefused(f"{chosen[0].name} cannot be applied: {passed[chosen[0].name]}")
    tried = "; ".join(f"{name}: {reason}" for name, reason in passed.items())
    raise TreatmentRefused(
        f"no remedy of {case.finding.disease} can be applied at {case.site}. {tried or 'None is known'}"
    )


def with_gradients(doctor: Doctor, finding: Finding, batch: Any, vitals: Tensor) -> Tensor:
    """The vitals of the site, with those of a backward pass where the finding speaks of them."""
    if not any(name in x.vital for x in finding.signals for name in GRADIENTS):
        return vitals
    columns = [INDEX[name] for name in GRADIENTS]
    found = vitals.clone()
    found[:, columns] = gradients_at(doctor.model, batch, finding.site)[:, columns].to(found)
    return found


def effects_of(
    finding: Finding, heads: list[int], before: Tensor, after: Tensor
) -> tuple[Effect, ...]:
    """Each signal before and after, of the worst of the sick heads."""
    complaints = (x for x in finding.signals if not (is_gradient(x.vital) and x.above))
    return tuple(Effect(x, worst(before[heads], x), worst(after[heads], x)) for x in complaints)


def worst(values: Tensor, signal: Signal) -> float:
    """What a signal is in the worst of these heads (heads, vitals); NaN where it is unknown."""

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
    """Whether a signal asks in how many steps a side gets a gradient."""
    return vital.startswith(GETS)


def difference(before: Any, after: Any) -> tuple[float, float]:
    """The largest absolute difference of all numbers of two outputs, and the largest number."""
    moved, largest = 0.0, 0.0
    for x, y in zip(numbers(before), numbers(after), strict=True):
        if x.shape == y.shape and x.numel():
            # What is not a number in both has not moved.
            gap = torch.where(x.isfinite() | y.isfinite(), (x - y).abs(), 0.0)
            moved = max(moved, float(gap.nan_to_num(nan=math.inf, posinf=math.inf).max()))
            finite = torch.where(x.isfinite(), x.abs(), 0.0)
            largest = max(largest, float(finite.max()))
    return moved, largest


def numbers(output: Any) -> list[Tensor]:
    """The floating point tensors of an output."""
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    return [x.double() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
