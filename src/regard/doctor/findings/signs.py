"""Combines signs into findings: all needed signs must hold at once, in the same head.

Shape legend: S steps, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.findings.calibration import sure
from regard.doctor.findings.evidence import Evidence, filled
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal

# In most of this many last measured steps the signs must hold.
RECENT = 3


class Sign(NamedTuple):
    """One number compared with a threshold.

    Attributes:
        vital: the name of a vital, or of a number computed from vitals.
        values: (S, H), NaN where unknown.
        threshold: what the values are compared with.
        above: True if the sign holds above the threshold, False if below.
        source: where the threshold comes from.
    """

    vital: str
    values: Tensor
    threshold: float
    above: bool
    source: str

    def speaks(self) -> Tensor:
        """(S, H): whether the sign holds; where the value is unknown it does not."""
        values = filled(self.values)
        return values > self.threshold if self.above else values < self.threshold

    def signal(self, heads: Sequence[int]) -> Signal:
        """The signal with the last value in the worst of these heads."""
        values = filled(self.values)[-1, list(heads)]
        worst = values.max() if self.above else values.min()
        return Signal(self.vital, worst.item(), self.threshold, self.above, self.source)


class Disease(NamedTuple):
    """One thing that can be wrong with attention.

    Attributes:
        name: its name in findings.
        title: the disease in a few words.
        find: the rule, from the evidence of all sites to findings.
        explanation: what it is and what it does, for a reader who is new to it.
        remedies: the best first.
        causes: diseases that follow from it; they are not reported beside it for the same heads.
    """

    name: str
    title: str
    find: Callable[[Disease, Sequence[Evidence]], list[Finding]]
    explanation: str
    remedies: tuple[Advice, ...]
    causes: tuple[str, ...] = ()

    def found(
        self,
        e: Evidence,
        place: int,
        severity: Severity,
        heads: Sequence[int],
        signals: Sequence[Signal],
        more: str = "",
    ) -> Finding:
        """A finding at a site, since the step at index `place`; `more` extends the explanation."""
        return Finding(
            self.name,
            self.title,
            severity,
            e.name,
            tuple(heads),
            e.steps[place],
            tuple(signals),
            sure(self.name),
            f"{self.explanation} {more}".rstrip(),
            self.remedies,
        )


def above(e: Evidence, vital: str, threshold: float, source: str) -> Sign:
    """The sign that a vital is too large."""
    return Sign(vital, e.of(vital), threshold, True, source)


def below(e: Evidence, vital: str, threshold: float, source: str) -> Sign:
    """The sign that a vital is too small."""
    return Sign(vital, e.of(vital), threshold, False, source)


def judge(
    disease: Disease,
    e: Evidence,
    severity: Severity,
    needed: Sequence[Sign],
    also: Sequence[Sign] = (),
    *,
    only: Tensor | None = None,
    every_head: bool = False,
    lasting: int = 1,
) -> Finding | None:
    """A finding for the heads in which all needed signs hold at the last step, or None.

    Args:
        disease: the disease to judge.
        e: the evidence of one site.
        severity: the severity of the finding.
        needed: the signs that must hold, of at least two different numbers.
        also: further signs, which are shown where they speak.
        only: (H,), the heads to consider.
        every_head: whether the disease affects a whole layer: all heads or none.
        lasting: for how many measured steps it must have lasted.
    """
    assert len({sign.vital for sign in needed}) > 1, "a finding needs signs of two different vitals"
    if not e.steps or not e.heads:
        return None
    together = torch.stack([sign.speaks() for sign in needed]).all(0)
    if only is not None:
        together = together & only
    sick = together[-1]
    if not sick.any() or (every_head and not sick.all()):
        return None
    heads = tuple(sick.nonzero().flatten().tolist())
    # A spike of one step is not a disease: the signs must hold in most of the last steps in which
    # they were measured.
    fresh = torch.stack([~sign.values.isnan() for sign in needed]).any(0).any(1)
    recent = together[fresh][-RECENT:][:, list(heads)].all(1)
    if recent.float().mean() <= 0.5:
        return None
    whole = together[:, list(heads)].all(1)
    start = run_start(whole)
    # Further signs that were not measured in these heads count neither for the finding nor against
    # it.
    known = [sign for sign in also if not filled(sign.values)[-1, list(heads)].isnan().any()]
    speaking = [sign for sign in known if sign.speaks()[-1, list(heads)].any()]
    measured = int(fresh[start:].sum())
    if measured < lasting:
        return None
    signals = [sign.signal(heads) for sign in (*needed, *speaking)]
    return disease.found(e, start, severity, heads, signals)


def run_start(holds: Tensor) -> int:
    """Index of the first step of the last unbroken run in (S,), whose last entry is True."""
    broken = (~holds).nonzero().flatten()
    return 0 if not len(broken) else min(int(broken[-1]) + 1, len(holds) - 1)


def each_site(
    rule: Callable[[Disease, Evidence], Sequence[Finding | None]],
) -> Callable[[Disease, Sequence[Evidence]], list[Finding]]:
    """The `find` function of a rule that looks at one site at a time."""

    def find(disease: Disease, sites: Sequence[Evidence]) -> list[Finding]:
        return [found for e in sites for found in rule(disease, e) if found is not None]

    return find


class Grade(NamedTuple):
    """A severity and the signs for it; see `judge`."""

    severity: Severity
    needed: Sequence[Sign]
    also: Sequence[Sign] = ()


def graded(
    disease: Disease,
    e: Evidence,
    *grades: Grade,
    only: Tensor | None = None,
    lasting: int = 1,
) -> list[Finding]:
    """Findings of one disease at one site, the worst grade first; each head is in at most one."""
    left = e.values.new_ones(e.heads, dtype=torch.bool) if only is None else only.clone()
    found = []
    for severity, needed, also in grades:
        finding = judge(disease, e, severity, needed, also, only=left, lasting=lasting)
        if finding is not None:
            found.append(finding)
            left[list(finding.heads)] = False
    return found


def known(values: Tensor, e: Evidence, beside: str = "visible_share") -> Tensor:
    """(S, H): 1 where a vital is defined, 0 where not, NaN in steps without `beside`."""
    return torch.where(e.of(beside).isnan(), torch.nan, (~values.isnan()).to(values.dtype))


def constant(e: Evidence, value: float | Tensor) -> Tensor:
    """(S, H): one value for all steps, or one for each head."""
    value = torch.as_tensor(value, dtype=e.values.dtype, device=e.values.device)
    return value.expand(len(e.steps), e.heads)
