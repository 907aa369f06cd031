"""Calls drawn by hypothesis: shapes, layouts, masks and options. Values come from a seed.

hypothesis is good at structure and poor at numbers that matter to floats, so that it draws the
structure and one seed, and torch the numbers.

Shape legend: H query heads, Q query length, L key length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import Mask

LENGTHS = (1, 2, 3, 5, 15, 16, 17, 33)
LAYOUTS = ("plain", "transposed", "sliced", "heads last", "expanded")
INNER = ("dot", "scaled_dot", "cosine", "gaussian", "bilinear", "low_rank")
PAIRWISE = ("additive", "gatv2")
MASKS = ("causal", "top left", "window", "keys", "queries", "segments", "dense", "dense heads")
OPTIONS = ("bias", "hiding bias", "sink", "softcap", "temperature", "temperatures", "some hard")


@dataclass(frozen=True)
class Call:
    """One call of `attend`, described by sizes and names so that a failure can be read."""

    score: str = "scaled_dot"
    lead: tuple[int, ...] = (2,)
    shared: tuple[bool, bool, bool] = (False, False, False)  # leading dims of size 1 instead
    heads: tuple[int, int, int] = (2, 2, 2)  # of query, key and value
    queries: int = 5
    keys: int = 6
    dim: int = 4
    value_dim: int = 3
    layouts: tuple[str, str, str, str] = ("plain",) * 4  # of q, k, v and the incoming gradient
    masks: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    seed: int = 0
    tile: int = 2**19


@st.composite
def calls(draw: st.DrawFn, scores: tuple[str, ...], options: tuple[str, ...] = OPTIONS) -> Call:
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    divisors = [n for n in (1, 2, 3, 4, 6) if heads % n == 0]
    key_heads, value_heads = draw(st.sampled_from(divisors)), draw(st.sampled_from(divisors))
    length = st.sampled_from(LENGTHS) | st.integers(0, 20)
    chosen = draw(st.frozensets(st.sampled_from(options), max_size=3))
    layouts = draw(st.tuples(*[st.sampled_from(LAYOUTS)] * 4))
    if "some hard" in chosen and layouts[1] == "expanded":
        # A matrix product may round equal keys differently, and a hard look-up then picks any.
        layouts = (layouts[0], "plain", *layouts[2:])
    return Call(
        score=draw(st.sampled_from(scores)),
        lead=tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))),
        shared=draw(st.tuples(st.booleans(), st.booleans(), st.booleans())),
        heads=(heads, key_heads, value_heads),
        queries=draw(length),
        keys=draw(length),
        dim=draw(st.sampled_from([1, 2, 4, 7])),
        value_dim=draw(st.sampled_from([1, 3, 4, 8])),
        layouts=layouts,
        masks=draw(st.frozensets(st.sampled_from(MASKS), max_size=3)),
        options=chosen - ({"temperature"} if chosen & {"temperatures", "some hard"} else set()),
        seed=draw(st.integers(0, 2**31)),
        tile=draw(st.sampled_from([1, 100, 1000, 2**19])),
    )


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers (but for `expanded`) with other strides."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "sliced":
        wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "heads last":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "expanded":
        return x[..., :1, :].expand(x.shape) if x.shape[-2] else x
    return x


class Numbers:
    """Tensors from a seed, which are the same numbers in every dtype but for their rounding."""

    def __init__(self, call: Call, dtype: torch.dtype = torch.float64) -> None:
        self.call, self.dtype = call, dtype
        self.generator = torch.Generator().manual_seed(call.seed)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def randint(self, high: int, *shape: int) -> Tensor:
        return torch.randint(max(high, 1), shape, generator=self.generator)

    def inputs(self) -> list[Tensor]:
        c = self.call
        lengths, widths = (c.queries, c.keys, c.keys), (c.dim, c.dim, c.value_dim)
        found = []
        for shared, heads, length, width, layout in zip(
            c.shared, c.heads, lengths, widths, c.layouts[:3], strict=True
        ):
            lead = tuple(1 for _ in c.lead) if shared else c.lead
            x = lay_out(self.randn(*lead, heads, length, width), layout)
            found.append(x.detach().requires_grad_())
        return found

    def lead(self) -> tuple[int, ...]:
        """The leading dims that the inputs broadcast to."""
        return tuple(1 for _ in self.call.lead) if all(self.call.shared) else self.call.lead

    def score(self) -> regard.Score:
        c, heads = self.call, self.call.heads[0]
        score = {
            "dot": lambda: regard.Dot(),
            "scaled_dot": lambda: regard.ScaledDot(),
            "cosine": lambda: regard.Cosine(heads),
            "gaussian": lambda: regard.Gaussian(heads=c.heads[1]),
            "bilinear": lambda: regard.Bilinear(c.dim, c.dim, heads),
            "low_rank": lambda: regard.LowRank(c.dim, c.dim, 2, heads, c.heads[1]),
            "additive": lambda: regard.Additive(c.dim, heads, bias=True),
            "gatv2": lambda: regard.GATv2(c.dim, heads),
        }[c.score]().to(self.dtype)
        with torch.no_grad():
            for parameter in score.parameters():
                parameter.copy_(0.7 * self.randn(*parameter.shape))
        return score

    def mask(self) -> Mask | None:
        c, mask = self.call, None
        for name in sorted(c.masks):
            part = self.part(name)
            mask = part if mask is None else mask & part
        return mask

    def part(self, name: str) -> Mask:
        c, lead = self.call, self.lead()
        if name == "causal":
            # With key lengths alone the bottom right is not defined; see the error.
            plain = "keys" not in c.masks or "queries" in c.masks
            return Mask.causal("bottom_right" if plain else "top_left")
        if name == "top left":
            return Mask.causal("top_left")
        if name == "window":
            return Mask.window(3, 2, "top_left")
        if name == "keys":
            return Mask.lengths(keys=self.randint(c.keys + 1, *lead))
        if name == "queries":
            return Mask.lengths(queries=self.randint(c.queries + 1, *lead[-1:]))
        if name == "segments":
            return Mask.segments(self.randint(3, c.queries) - 1, self.randint(3, *lead, c.keys) - 1)
        shape = (c.queries, c.keys) if name == "dense" else (*lead, c.heads[0], 1, c.keys)
        return Mask.dense(self.randn(*shape) > -0.7)

    def options(self) -> dict:
        c, heads = self.call, self.call.heads[0]
        full = (*self.lead(), heads, c.queries)
        found = {}
        for name in sorted(c.options):
            if name == "bias":
                found["bias"] = self.randn(*full[:-2], 1, c.queries, c.keys).requires_grad_()
            elif name == "hiding bias":
                bias = self.randn(c.queries, c.keys)
                found["bias"] = bias.masked_fill(bias > 0.8, -torch.inf).requires_grad_()
            elif name == "sink":
                found["sink"] = self.randn(heads).requires_grad_()
            elif name == "softcap":
                found["softcap"] = 1.5
            elif name == "temperature":
                found["temperature"] = 0.6
            else:
                warm = 0.5 + self.randn(*full, 1).abs()
                cold = name == "some hard"
                warm = warm.masked_fill(warm > 1.2, 0.0) if cold else warm
                found["temperature"] = warm.requires_grad_()
        return found
