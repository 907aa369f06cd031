"""Greedy and beam search.

Both put the model into eval mode while they run, keep no gradients, and never choose `pad` or
`bos`. A hypothesis is the tokens after `bos`, up to and with `eos`, or `max_length` tokens without.

Shape legend: B batch, K beam, N hypotheses returned, T steps, H heads, L source length,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import Counts, check_sizes
from regard.describe import sizes
from regard.nn.seq2seq.checks import check_not_negative
from regard.nn.seq2seq.model import EncoderDecoder
from regard.precision import widened

NEVER = -torch.inf
# Beyond this the penalty is so large that scores of long hypotheses become 0 in single precision and
# can no longer be compared.
LARGEST_ALPHA = 8


class Hypotheses(NamedTuple):
    """The results of a search, best first.

    If a search found fewer than N, the rest have length 0 and score -inf.

    Args:
        tokens: (B, N, T), `pad` after the end.
        lengths: (B, N), how many tokens, `eos` included.
        scores: (B, N), log probability divided by the length penalty.
        log_probs: (B, N).
        finished: (B, N), whether it ends in `eos`.
        weights: (B, N, H, T, L), the attention weights of each step, 0 after the end.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor
    log_probs: Tensor
    finished: Tensor
    weights: Tensor

    __repr__ = sizes


def gnmt_length_penalty(length: int, alpha: float) -> float:
    """`((5 + length) / 6) ** alpha`, as in GNMT (Wu et al. 2016); 1 where alpha is 0.

    Log probabilities are divided by it: the larger alpha, the longer the results.
    """
    return ((5 + length) / 6) ** alpha


def greedy(
    model: EncoderDecoder, source: Tensor, lengths: Counts | None = None, *, max_length: int = 100
) -> Hypotheses:
    """The most probable token at each step; N is 1.

    Args:
        model: an `EncoderDecoder`.
        source: (B, L) tokens.
        lengths: (B,), how many of them are real; None for all.
        max_length: the most tokens to produce, `eos` included.
    """
    check_sizes(max_length=max_length)
    with _evaluating(model):
        memory, state = model.encode(source, lengths)
        token = torch.full((source.shape[0],), model.bos, device=source.device)
        done = torch.zeros_like(token, dtype=torch.bool)
        log_prob = state.attention.total.new_zeros(source.shape[0])
        tokens, weights, length = [], [], torch.zeros_like(token)
        while len(tokens) < max_length and not bool(done.all()):
            logits, weight, state = model.step(token, memory, state)
            best, token = _allowed_log_probs(logits, model).max(-1)
            token = token.masked_fill(done, model.pad)
            log_prob = log_prob + best.masked_fill(done, 0)
            tokens.append(token)
            weights.append(weight.masked_fill(done[:, None, None], 0))
            length = length + ~done
            done = done | (token == model.eos)
        # An empty batch takes no step, and torch.stack of an empty list fails.
        no_weights = state.attention.weights.unsqueeze(2)[:, :, :0]
        found = Hypotheses(
            torch.stack(tokens, 1) if tokens else token.unsqueeze(1)[:, :0],
            length,
            log_prob,
            log_prob,
            done,
            torch.stack(weights, 2) if weights else no_weights,
        )
        return Hypotheses(*(x.unsqueeze(1) for x in found))


def beam_search(
    model: EncoderDecoder,
    source: Tensor,
    lengths: Counts | None = None,
    *,
    beam: int = 4,
    n_best: int = 1,
    length_penalty: float = 0.0,
    max_length: int = 100,
) -> Hypotheses:
    """Keep the `beam` most probable prefixes at each step.

    A hypothesis that ends among the best `beam` continuations of a step is set aside, and its place
    goes to the next best one; a search is over when `beam` of them have ended. Prefixes that have
    not ended after `max_length` tokens then compete as they are. With beam 1 the result is
    that of `greedy`; with a beam of all prefixes the search is exhaustive. A beam may be larger
    than the vocabulary.

    Args:
        model: an `EncoderDecoder`.
        source: (B, L) tokens.
        lengths: (B,), how many of them are real; None for all.
        beam: K.
        n_best: how many hypotheses to return, at most `beam`.
        length_penalty: alpha of `gnmt_length_penalty`, from 0, which is none, to 8.
        max_length: the most tokens to produce, `eos` included.
    """
    check_sizes(beam=beam, n_best=n_best, max_length=max_length)
    if n_best > beam:
        raise ValueError(f"n_best={n_best} hypotheses cannot come from beam={beam}; enlarge beam")
    check_not_negative(length_penalty=length_penalty)
    if length_penalty > LARGEST_ALPHA:
        raise ValueError(f"length_penalty must be from 0 to {LARGEST_ALPHA}, got {length_penalty}")
    with _evaluating(model):
        memory, state = model.encode(source, lengths)
        # All beams of a source share its memory: repeat it once, and reorder only the states.
        spread = torch.arange(source.shape[0], device=source.device).repeat_interleave(beam)
        memory, state = memory.reorder(spread), state.reorder(spread)
        beams = _Beams(model, source, beam, length_penalty)
        for _ in range(max_length):
            if bool(beams.done.all()):
                break
            logits, weights, state = model.step(beams.token.flatten(), memory, state)
            beams.advance(_allowed_log_probs(logits, model), weights)
            state = state.reorder((beams.parent + spread.view(-1, beam) * beam).flatten())
        beams.close()
        heads_keys = state.attention.weights.shape[1:]
        return beams.best(n_best, heads_keys)


class _Ended(NamedTuple):
    """Hypotheses that have ended, (B, K) each; see `Hypotheses` for scores and log_probs.

    Args:
        length: how many tokens.
        parent: the beam, before the last token, that it came from.
        token: the last one.
    """

    scores: Tensor
    log_probs: Tensor
    length: Tensor
    parent: Tensor
    token: Tensor

    def merge(self, others: _Ended) -> _Ended:
        """The best K of both by score."""
        both = [torch.cat(pair, 1) for pair in zip(self, others, strict=True)]
        order = both[0].topk(self.scores.shape[1]).indices
        return _Ended(*(x.gather(1, order) for x in both))


class _Beams:
    """The live beams of one search, those that ended, and the trail of tokens that led to each.

    Attributes:
        token, parent, log_probs: (B, K), the last token of each beam, the beam it extended, and
            its log probability; -inf for a beam that holds nothing.
        done: (B,), whether the search for a source is over.
    """

    def __init__(self, model: EncoderDecoder, source: Tensor, beam: int, alpha: float) -> None:
        self.eos, self.pad, self.alpha, self.beam = model.eos, model.pad, alpha, beam
        zeros = torch.zeros(source.shape[0], beam, dtype=torch.int64, device=source.device)
        never = zeros + NEVER
        self.token, self.parent = zeros + model.bos, zeros
        # At first all beams are equal: only one may be extended, or all would stay copies.
        self.log_probs = never.index_fill(1, zeros.new_zeros(1), 0.0)
        self.ended = _Ended(never, never, zeros, zeros, zeros)
        self.count, self.done = zeros[:, 0], zeros[:, 0] > 0
        self.trail: list[tuple[Tensor, Tensor, Tensor]] = []  # tokens, parents, weights

    def advance(self, log_probs: Tensor, weights: Tensor) -> None:
        """Extend by one token: log_probs (B * K, V) and weights (B * K, H, L) of the beams."""
        batch, beam = self.token.shape
        words = log_probs.shape[-1]
        total = self.log_probs.unsqueeze(-1) + log_probs.view(batch, beam, words)
        # Each beam has one continuation that ends (eos), so of the best 2 K at least K continue.
        best, place = total.flatten(1).topk(min(2 * beam, beam * words))
        parent, token = place // words, place % words
        ends = token == self.eos
        ending = ends & (torch.arange(best.shape[1], device=ends.device) < beam)
        self.set_aside(best.masked_fill(~ending, NEVER), parent, token, len(self.trail) + 1)
        self.log_probs, order = best.masked_fill(ends, NEVER).topk(beam)
        self.parent, self.token = parent.gather(1, order), token.gather(1, order)
        self.done = self.done | (self.count >= beam) | (self.log_probs == NEVER).all(1)
        self.trail.append((self.token, self.parent, weights.unflatten(0, (batch, beam))))

    def set_aside(self, log_probs: Tensor, parent: Tensor, token: Tensor, length: int) -> None:
        """Add hypotheses (B, any) of `length` tokens to those that ended, except -inf and done sources."""
        log_probs = log_probs.masked_fill(self.done.unsqueeze(1), NEVER)
        self.count = self.count + (log_probs > NEVER).sum(1)
        scores = log_probs / gnmt_length_penalty(length, self.alpha)
        lengths = torch.full_like(parent, length)
        self.ended = self.ended.merge(_Ended(scores, log_probs, lengths, parent, token))

    def close(self) -> None:
        """End the search: beams without `eos` compete as they are."""
        self.set_aside(self.log_probs, self.parent, self.token, len(self.trail))

    def best(self, count: int, heads_keys: torch.Size) -> Hypotheses:
        """The best hypotheses; tokens and weights are read backwards along the trail."""
        scores, log_probs, length, last_parent, last = (x[:, :count] for x in self.ended)
        length = length.masked_fill(scores == NEVER, 0)
        longest = int(length.max()) if length.numel() else 0
        tokens = last.new_full((*last.shape, longest), self.pad)
        weights = scores.new_zeros((*last.shape, longest, *heads_keys))
        row = torch.arange(last.shape[0], device=last.device).unsqueeze(1)
        beam = last_parent
        for t in reversed(range(longest)):
            token, parent, weight = self.trail[t]
            final, inside = length == t + 1, length > t
            now = torch.where(final, last, token.gather(1, beam))
            beam = torch.where(final, last_parent, parent.gather(1, beam))
            tokens[:, :, t] = now.masked_fill(~inside, self.pad)
            weights[:, :, t] = weight[row, beam].masked_fill(~inside[..., None, None], 0)
        finished = (last == self.eos) & (length > 0)
        return Hypotheses(tokens, length, scores, log_probs, finished, weights.transpose(2, 3))


def _allowed_log_probs(logits: Tensor, model: EncoderDecoder) -> Tensor:
    """Log probabilities (B, V), -inf for tokens that are not allowed in a hypothesis."""
    log_probs = widened(logits).log_softmax(-1)
    never = sorted({model.pad, model.bos} - {model.eos})
    return log_probs.index_fill(-1, torch.tensor(never, device=logits.device), NEVER)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """A context in eval mode without gradients; restores the mode of every part on exit."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
