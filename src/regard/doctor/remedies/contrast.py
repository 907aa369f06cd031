"""Contrast: amplifies the differences between values until they are as large as their mean.

v' = m + g (v - m), with the mean m over the keys and a learned gain g for each head. The weights of a
query sum to 1, so the output becomes m + g (output - m): the part of it that depends on where a head
looks is g times as large, and so is the gradient that reaches queries and keys. In causal attention the
mean of a key runs over the keys up to it, so that nothing of later keys leaks in.

Shape legend: `...` leading dims, B batch, K key heads, L keys, V width of a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, put_change
from regard.doctor.remedies.change import Change, by_head
from regard.precision import widened

# Rounding has an rms of about eps / 5. If values differ by less than 2 eps, a tenth of the differences or
# more is noise, which a gain would amplify too.
TIMES_EPS = 2.0
# Below this gain the values differ enough, and something else is wrong.
LEAST_GAIN = 2.0


class Contrasted(Change):
    """Values whose differences from their mean are multiplied by `exp(log_gain)` (K,)."""

    def __init__(self, key_heads: int, running: bool) -> None:
        super().__init__()
        self.log_gain = nn.Parameter(torch.zeros(key_heads))
        self.running = running

    def change_value(self, value: Tensor) -> Tensor:
        """The values, amplified about their mean."""
        work = widened(value)
        mean = mean_of(work, self.running)
        gain = by_head(self.log_gain.exp(), work)
        return (mean + gain * (work - mean)).to(value.dtype)

    def arguments(self) -> dict[str, Any]:
        """The number of key heads and the kind of mean."""
        return {"key_heads": self.log_gain.shape[0], "running": self.running}


def mean_of(value: Tensor, running: bool) -> Tensor:
    """The mean of values (..., L, V) over all keys, or for each key over those up to it."""
    if not running:
        return value.mean(-2, keepdim=True)
    count = torch.arange(1, value.shape[-2] + 1, device=value.device, dtype=value.dtype)
    return value.cumsum(-2) / count[:, None]


class Contrast(Remedy):
    """Contrast: makes the output of a head depend on where it looks again."""

    name = "contrast"
    does = (
        "Amplifies the differences between the values of a head and their mean over the keys until "
        "they are as large as the mean. Then it matters again where a head looks, and queries and "
        "keys get a gradient. The gain is learned."
    )
    source = "Wang et al. 2022, who rescale what tokens do not share (arXiv 2203.05962); the gain is ours"
    moves = frozenset({"value_alike", "query_grad", "key_grad"})
    changes = (Contrasted,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs values that can be changed."""
        if case.call.seen.value is None or case.place.route == "softmax":
            return f"{case.site} is attention written out, whose values cannot be reached"
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Amplify the values, with a gain for each key head."""
        # `next_share` is measured where a query sees the next key: NaN in all heads means causal.
        running = bool(case.vital("next_share").isnan().all())
        common, varied, noise = sizes(case, running)
        if not bool((varied > noise).all()):
            raise NotApplicable(
                f"the values of {case.site} differ by no more than rounding: there is nothing left to "
                "amplify. Look at what computes them"
            )
        gain = common / varied
        if not bool((gain > LEAST_GAIN).any()):
            raise NotApplicable(
                f"the values of {case.site} differ by about as much as their mean, so they are not "
                "the cause"
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
    """Rms (K,) of the mean of the values, of their differences from it, and of rounding noise."""
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
