"""Contrast: what values differ by, made as large as what they have in common.

v' = m + g (v - m), with the mean m over the keys and a gain g for each head, which is learned. The
weights of a query sum to 1, so that the output is m + g (output - m): the part of it that depends on
where a head looks is g times as large, and so is the gradient that reaches queries and keys. Where
no query sees later keys the mean runs over the keys up to each.

Shape legend: `...` leading dims, B batch, K key heads, L keys, V width of a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, put_change
from regard.doctor.remedies.change import Change, by_head
from regard.precision import widened

# Rounding leaves a fifth of eps: below this, a tenth of the differences or more would be noise.
TIMES_EPS = 2.0
# With less to gain the values are not what is wrong.
LEAST_GAIN = 2.0


class Contrasted(Change):
    """Differences between values times `exp(log_gain)` (K,)."""

    def __init__(self, key_heads: int, running: bool) -> None:
        super().__init__()
        self.log_gain = nn.Parameter(torch.zeros(key_heads))
        self.running = running

    def change_value(self, value: Tensor) -> Tensor:
        """About their mean."""
        work = widened(value)
        mean = mean_of(work, self.running)
        gain = by_head(self.log_gain.exp(), work)
        return (mean + gain * (work - mean)).to(value.dtype)

    def arguments(self) -> dict[str, Any]:
        """Heads and the kind of mean."""
        return {"key_heads": self.log_gain.shape[0], "running": self.running}


def mean_of(value: Tensor, running: bool) -> Tensor:
    """Of (..., L, V) over all keys, or over those up to each."""
    if not running:
        return value.mean(-2, keepdim=True)
    count = torch.arange(1, value.shape[-2] + 1, device=value.device, dtype=value.dtype)
    return value.cumsum(-2) / count[:, None]


class Contrast(Remedy):
    """Let it matter again where a head looks."""

    name = "contrast"
    does = (
        "Multiplies what the values of a head differ by, about their mean over the keys, so that it "
        "is as large as what they have in common. Then it matters again where a head looks, and "
        "queries and keys get a gradient. The gain is learned."
    )
    source = (
        "Wang et al. 2022, which rescale what is not common (arXiv 2203.05962); the gain is ours"
    )
    moves = frozenset({"value_alike", "query_grad", "key_grad"})
    changes = (Contrasted,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Values must be within reach."""
        if case.call.seen.value is None or case.place.route == "softmax":
            return f"{case.site} is attention written out, whose values cannot be reached"
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """A gain for each key head."""
        running = bool(case.vital("next_share").isnan().all())
        common, varied, noise = sizes(case, running)
        if not bool((varied > noise).all()):
            raise NotApplicable(
                f"the values of {case.site} differ by no more than rounding: nothing is left that "
                "could be made larger. Look at what makes them"
            )
        gain = common / varied
        if not bool((gain > LEAST_GAIN).any()):
            raise NotApplicable(
                f"the values of {case.site} differ by as much as they have in common: that is not "
                "the reason"
            )
        change = Contrasted(case.place.key_heads, running).to(**case.like())
        with torch.no_grad():
            change.log_gain.copy_(gain.clamp(min=1.0).log())
        undo, names = put_change(case, "contrast", change)
        return Applied(
            f"differences between values times {float(gain.max()):.3g} at most",
            "changed on purpose: what all values have in common stays, the rest is larger",
            undo,
            names,
        )


def sizes(case: RemedyCase, running: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of each key head (K,): what values have in common, what they differ by, and what is noise."""
    given = case.call.seen.value
    assert given is not None
    value = given.double()
    mean = mean_of(value, running)

    def rms(x: Tensor) -> Tensor:
        return x.square().mean((0, -2, -1)).sqrt()

    heads = case.place.key_heads
    found = [rms(mean), rms(value - mean), rms(value) * TIMES_EPS * torch.finfo(given.dtype).eps]
    # A model that repeats its key heads shows each several times.
    common, varied, noise = (x.unflatten(0, (heads, -1)).mean(-1) for x in found)
    return common, varied, noise
