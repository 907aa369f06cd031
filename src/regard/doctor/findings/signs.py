"""How signs are put together: all that are needed hold at once, in the same head.

Shape legend: S steps, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.findings.evidence import Evidence, filled
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal

# How many of the last measured steps are asked whether it still holds.
RECENT = 3


class Sign(NamedTuple):
    """One number held against a threshold.

    Attributes:
        vital: its name, or what was made of it.
        values: (S, H), NaN where unknown.
        threshold: see above.
        above: whether it speaks where it is larger; else where it is smaller.
        source: where the threshold comes from.
    """

    vital: str
    values: Tensor
    threshold: float
    above: bool
    source: str

    def speaks(self) -> Tensor:
        """(S, H): whether it speaks; what is unknown does not."""
        values = filled(self.values)
        return values > self.threshold if self.above else values < self.threshold

    def signal(self, heads: Sequence[int]) -> Signal:
        """Its last value in the worst of these heads."""
        values = filled(self.values)[-1, list(heads)]
        worst = values.max() if self.above else values.min()
        return Signal(self.vital, worst.item(), self.threshold, self.above, self.source)


class Disease(NamedTuple):
    """What can be wrong.

    Attributes:
        name: as in findings.
        title: in a few words.
        find: from the numbers of all sites to findings.
        explanation: for a reader who is new to it.
        remedies: the best first.
        causes: diseases that follow from it. They are not reported beside it for the same heads.
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
        confidence: float,
        more: str = "",
    ) -> Finding:
        """A finding at a site since the step at `place`; `more` is said after the explanation."""
        return Finding(
            self.name,
            self.title,
            severity,
            e.name,
            tuple(heads),
            e.steps[place],
            tuple(signals),
            confidence,
            f"{self.explanation} {more}".rstrip(),
            self.remedies,
        )


def above(e: Evidence, vital: str, threshold: float, source: str) -> Sign:
    """A vital that is too large."""
    return Sign(vital, e.of(vital), threshold, True, source)


def below(e: Evidence, vital: str, threshold: float, source: str) -> Sign:
    """A vital that is too small."""
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
    """A finding for the heads in which all needed signs speak by the last step, or None.

    Args:
        disease: whose finding it is.
        e: the site.
        severity: of the finding.
        needed: the signs, two at least.
        also: more signs, which make it surer.
        only: (H,), the heads that come into question.
        every_head: whether it is a disease of the whole layer: all heads or none.
        lasting: for how many measured steps it has to hold.
    """
    assert len({sign.vital for sign in needed}) > 1, "one sign alone is no alarm"
    if not e.steps or not e.heads:
        return None
    together = torch.stack([sign.speaks() for sign in needed]).all(0)
    if only is not None:
        together = together & only
    sick = together[-1]
    if not sick.any() or (every_head and not sick.all()):
        return None
    heads = tuple(sick.nonzero().flatten().tolist())
    # A spike of one step is no state: of the steps in which the signs were measured, it has to hold
    # in most of the last ones.
    fresh = torch.stack([~sign.values.isnan() for sign in needed]).any(0).any(1)
    recent = together[fresh][-RECENT:][:, list(heads)].all(1)
    if recent.float().mean() <= 0.5:
        return None
    whole = together[:, list(heads)].all(1)
    start = run_start(whole)
    known = [sign for sign in also if not filled(sign.values)[-1, list(heads)].isnan().any()]
    speaking = [sign for sign in known if sign.speaks()[-1, list(heads)].any()]
    share = (len(needed) + len(speaking)) / (len(needed) + len(known))
    measured = int(fresh[start:].sum())
    if measured < lasting:
        return None
    confidence = share * (1 - 0.5 ** (1 + measured))
    signals = [sign.signal(heads) for sign in (*needed, *speaking)]
    return disease.found(e, start, severity, heads, signals, round(confidence, 3))


def run_start(holds: Tensor) -> int:
    """The first step of the last unbroken run, (S,) with the last one true."""
    broken = (~holds).nonzero().flatten()
    return 0 if not len(broken) else min(int(broken[-1]) + 1, len(holds) - 1)


def each_site(
    rule: Callable[[Disease, Evidence], Sequence[Finding | None]],
) -> Callable[[Disease, Sequence[Evidence]], list[Finding]]:
    """A rule that looks at one site at a time."""

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
    """Findings of one disease at one site, the worst grade first: each head is in one alone."""
    left = e.values.new_ones(e.heads, dtype=torch.bool) if only is None else only.clone()
    found = []
    for severity, needed, also in grades:
        finding = judge(disease, e, severity, needed, also, only=left, lasting=lasting)
        if finding is not None:
            found.append(finding)
            left[list(finding.heads)] = False
    return found


def known(values: Tensor, e: Evidence, beside: str = "visible_share") -> Tensor:
    """(S, H): 1 where a vital is defined, 0 where it is not, NaN in steps without the other one."""
    return torch.where(e.of(beside).isnan(), torch.nan, (~values.isnan()).to(values.dtype))


def constant(e: Evidence, value: float | Tensor) -> Tensor:
    """(S, H): the same in all steps."""
    value = torch.as_tensor(value, dtype=e.values.dtype, device=e.values.device)
    return value.expand(len(e.steps), e.heads)
