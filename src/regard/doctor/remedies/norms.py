"""QK-norm: normalises the queries and keys of each head, with a learned gain.

q' = g_q q / rms(q), k' = g_k k / rms(k), for each head; "layer" subtracts the mean first.

The gain is one number for each head, not one for each dim: it acts after rotary positions, which
rotate pairs of dims, and different gains within a pair would distort the angle.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.arguments import check_one_of
from regard.doctor.remedies.base import (
    Applied,
    Remedy,
    RemedyCase,
    for_heads,
    named,
    needs_sides,
    put_change,
    too_sharp,
)
from regard.doctor.remedies.change import Change, by_head
from regard.precision import widened

EPS = 1e-6
KINDS = ("rms", "layer")


class NormedSides(Change):
    """Normalised query and key, times `query_gain` (H,) and `key_gain` (K,)."""

    def __init__(self, heads: int, key_heads: int, norm: str = "rms") -> None:
        super().__init__()
        check_one_of("norm", norm, KINDS)
        self.query_gain = nn.Parameter(torch.ones(heads))
        self.key_gain = nn.Parameter(torch.ones(key_heads))
        self.norm = norm

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key, normalised."""
        return self._normed(query, self.query_gain), self._normed(key, self.key_gain)

    def _normed(self, x: Tensor, gain: Tensor) -> Tensor:
        work = widened(x)
        if self.norm == "layer":
            work = work - work.mean(-1, keepdim=True)
        rms = torch.sqrt(work.square().mean(-1, keepdim=True) + EPS)
        return (work / rms * by_head(gain, work)).to(x.dtype)

    def arguments(self) -> dict[str, Any]:
        """The numbers of heads and the kind of norm."""
        heads, key_heads = self.query_gain.shape[0], self.key_gain.shape[0]
        return {"heads": heads, "key_heads": key_heads, "norm": self.norm}


class QKNorm(Remedy):
    """QK-norm: normalises queries and keys."""

    name = "qk-norm"
    does = (
        "Normalises the queries and keys of each head, with a learned gain, so that logits cannot "
        "grow with their norms. Gains start at the median size of the head; for a head that is too "
        "sharp they start no higher than gives logits of variance 1."
    )
    source = "ViT-22B (arXiv 2302.05442); Wortsman et al. 2023 (arXiv 2309.14322); Qwen3, Gemma 3"
    moves = frozenset(
        {
            "logit_max",
            "logit_var",
            "logit_bound",
            "entropy",
            "max_weight",
            "jacobian",
            "key_spread",
            "query_spread",
            "query_norm",
            "key_norm",
            "c50",
            "query_grad",
            "key_grad",
        }
    )
    changes = (NormedSides,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a query and key that can be changed."""
        return needs_sides(case)

    def apply(
        self, case: RemedyCase, *, norm: str = "rms", keep: bool = False, **_: Any
    ) -> Applied:
        """Add the norms with two gains for each head; `keep` does not soften sharp heads."""
        place = case.place
        change = NormedSides(place.heads, place.key_heads, norm).to(**case.like())
        on_query, on_key = start_gains(case, norm)
        limited = too_sharp(case.finding) and not keep
        if limited:
            on_query, on_key = limited_gains(case, on_query, on_key)
        with torch.no_grad():
            change.query_gain.copy_(on_query)
            change.key_gain.copy_(on_key)
        undo, names = put_change(case, "qk_norm", change)
        keeps = "as far as the queries, and the keys, of a head have one length"
        if limited:
            keeps += f"; {named(case.heads)} softened to logits of variance 1"
        return Applied(
            f"{norm} norm on the queries and keys of {place.heads} heads", keeps, undo, names
        )


def start_gains(case: RemedyCase, norm: str) -> tuple[Tensor, Tensor]:
    """The median rms of the queries (H,) and keys (K,) of each head."""

    def size(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if norm == "layer" else x
        return x.square().mean(-1).sqrt().transpose(0, 1).flatten(1).median(-1).values.cpu()

    query, key = case.sides()
    return size(query), size(key)


def limited_gains(case: RemedyCase, on_query: Tensor, on_key: Tensor) -> tuple[Tensor, Tensor]:
    """The gains, lowered for sick heads whose logits would have a variance above 1.

    Logits of random directions have the standard deviation `scale g_q g_k sqrt(d)`. Gains of keys
    that heads share stay, because the other heads may be healthy.
    """
    root = case.sides()[0].shape[-1] ** 0.5
    group = case.place.heads // case.place.key_heads
    spread = case.call.seen.scale * on_query * on_key.repeat_interleave(group) * root
    excess = for_heads(case, spread.abs().clamp(min=1.0), torch.ones_like(spread))
    if group > 1:
        return on_query / excess, on_key
    return on_query / excess.sqrt(), on_key / excess.sqrt()
