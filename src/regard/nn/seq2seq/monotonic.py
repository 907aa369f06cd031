"""Monotonic attention (Raffel et al. 2017): a head that walks along the keys and never goes back.

At step i it starts at the key where it stopped at step i-1 and looks at one key after the other; at
key j it stops with probability `p_ij = sigmoid(s(q_i, k_j) + offset)`. In training the context is
the expectation over where it stops; at inference it stops for certain where p > 1/2.

Shape legend: B batch, H heads, T queries, L keys; alignments and probabilities are (..., L).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_one_of
from regard.attention import score as logits_of
from regard.describe import describe
from regard.engines import reference
from regard.engines.base import soft_capped
from regard.forms import KeySide
from regard.nn.seq2seq.attention import DecoderAttention
from regard.nn.seq2seq.checks import check_finite, check_not_negative
from regard.nn.seq2seq.location import Location
from regard.nn.seq2seq.memory import AttentionState, Memory, first_visible
from regard.precision import working_dtype
from regard.scores import Score


class MonotonicAttention(DecoderAttention):
    """Monotonic attention with stopping probabilities from any score.

    Args:
        score, width: how well a key answers a query, for example
            `Projected(Additive(64), 256, 512)`; see `DecoderAttention`.
        noise: standard deviation of normal noise on the logits in training. It teaches the model
            to keep p near 0 or 1, which is what hard attention at inference needs.
        offset: where the learned offset of each head starts; below 0 heads look further at first.
        hard: stop for certain where p > 1/2; None does so in eval mode alone. No gradient reaches
            the score through a hard stop.
        location, coverage, window: see `DecoderAttention`.
        engine: None, or "reference", plain PyTorch, which `torch.func.vmap` can go through. There
            is no softmax here, and so no other engine to choose.

    Weights sum to at most 1: the rest is the probability that the head ran past the last key. Past
    it, weights and context are 0, in all later steps too. `reset_parameters` puts the offset back
    to its start.
    """

    def __init__(
        self,
        score: Score | str | None,
        *,
        width: int | None = None,
        noise: float = 1.0,
        offset: float = -1.0,
        hard: bool | None = None,
        location: Location | None = None,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        engine: str | None = None,
    ) -> None:
        super().__init__(
            score, width=width, location=location, coverage=coverage, window=window, engine=engine
        )
        if engine is not None:
            check_one_of("engine", engine, ("reference",))
        check_not_negative(noise=noise)
        check_finite(offset=offset)
        if hard is not None and not isinstance(hard, bool):
            raise TypeError(f"hard must be True, False or None, got {describe(hard)}")
        self.noise, self.hard = noise, hard
        self.first_offset = float(offset)
        self.offset = nn.Parameter(torch.empty(self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the offset of each head to its initial value."""
        nn.init.constant_(self.offset, self.first_offset)

    @property
    def sequential(self) -> bool:
        """True: each step starts where the step before stopped."""
        return True

    def initial_state(self, memory: Memory) -> AttentionState:
        """The state before the first step: every head is at the first visible key."""
        zeros = super().initial_state(memory).total
        return AttentionState(zeros + first_visible(memory).to(zeros.dtype), zeros)

    def look(self, query: Tensor, memory: Memory, state: AttentionState) -> tuple[Tensor, Tensor]:
        """Context (B, H, T, V) and weights (B, H, T, L)."""
        logits = self.raw_logits(query, self.keys_now(memory, state))
        dtype = working_dtype(logits.dtype)
        logits = logits.to(dtype)
        if self.score.softcap is not None:
            logits = soft_capped(logits, self.score.softcap)
        logits = logits + self.offset.to(dtype).view(-1, 1, 1)
        if self.training and self.noise > 0:
            logits = logits + self.noise * torch.randn_like(logits)
        stop = torch.sigmoid(logits)
        visible = self.visible_now(memory, state)
        if visible is not None:
            stop = torch.where(visible, stop, 0)
        previous = state.weights.to(dtype).unsqueeze(2)
        hard = not self.training if self.hard is None else self.hard
        weights = hard_alignment(stop, previous) if hard else expected_alignment(stop, previous)
        return weights.to(memory.value.dtype) @ memory.value, weights

    def raw_logits(self, query: Tensor, side: KeySide) -> Tensor:
        """(B, H, T, L), before cap, offset and noise."""
        if self.engine is None:
            return logits_of(query, side, self.score)
        form = self.score.join(self.score.query_for(query, side), side)
        return reference.raw_scores(form, working_dtype(form.query.dtype))


def expected_alignment(stop: Tensor, previous: Tensor, method: str = "parallel") -> Tensor:
    """The probability that a head stops at each key.

    `alpha_j = p_j sum_{k <= j} previous_k prod_{l=k}^{j-1} (1 - p_l)`

    that is `alpha_j = p_j reach_j` with `reach_j = (1 - p_{j-1}) reach_{j-1} + previous_j`.

    The well-known closed form `p cumprod(1-p) cumsum(previous / cumprod(1-p))` divides by a product
    that underflows after some hundred keys. Both methods here add and multiply numbers from 0 to 1
    and nothing else, so that they are accurate to rounding for any number of keys.

    Args:
        stop: p, the probability to stop at each key (..., L), 0 at hidden keys.
        previous: the alignment of the step before (..., L), which broadcasts.
        method: "recursive", key by key, or "parallel", the same recursion in log2(L) rounds.
    """
    check_one_of("method", method, ("parallel", "recursive"))
    stop, previous = torch.broadcast_tensors(stop, previous)
    first = torch.zeros_like(stop[..., :1])
    keep = torch.cat([first, 1 - stop[..., :-1]], -1)  # walked on from the key before
    return stop * (
        _doubling(keep, previous) if method == "parallel" else _one_by_one(keep, previous)
    )


def hard_alignment(stop: Tensor, previous: Tensor) -> Tensor:
    """One-hot at the first key, from where `previous` stands on, with `stop` above 1/2.

    All 0 where there is none, or where `previous` is all 0: the head has run past the last key.
    """
    from_here = previous.cumsum(-1) > 0
    stops = (stop > 0.5) & from_here
    return (stops & (stops.cumsum(-1) == 1)).to(stop.dtype)


def _one_by_one(keep: Tensor, added: Tensor) -> Tensor:
    """`reach_j = keep_j reach_{j-1} + added_j`, key by key."""
    reach = [torch.zeros_like(added[..., 0])] if added.shape[-1] else []
    for j in range(added.shape[-1]):
        reach.append(keep[..., j] * reach[-1] + added[..., j])
    return torch.stack(reach[1:], -1) if reach else torch.zeros_like(added)


def _doubling(keep: Tensor, added: Tensor) -> Tensor:
    """The same; after round n each key knows the sum over the 2^n keys up to itself."""
    reach, distance = added, 1
    while distance < added.shape[-1]:
        head, tail = reach[..., :distance], keep[..., distance:]
        reach = torch.cat([head, tail * reach[..., :-distance] + reach[..., distance:]], -1)
        keep = torch.cat([keep[..., :distance], tail * keep[..., :-distance]], -1)
        distance *= 2
    return reach
