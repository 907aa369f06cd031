"""Terms that depend on where a decoder looked before, and the window around it.

At a decoder step such a term is a function of the key's position alone. It therefore adds to what
is kept of the keys: inside tanh for a pairwise score, `sum_h v_h tanh(a_h + b_h + term_h)`, and to
`beta(k)` for an inner one, `<phi, psi> + term`.

Shape legend: B batch, H heads, T decoder steps, L keys, C channels, E hidden width of a pairwise
score (1 for an inner one).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.arguments import Counts, check_counts, check_one_of, check_sizes
from regard.forms import InnerKey, KeySide, PairwiseKey, key_tensor
from regard.nn.seq2seq.memory import AttentionState, Memory, first_visible
from regard.scores import PairwiseScore, Projected, Score


@dataclass(frozen=True)
class Location:
    """Settings of the location term of Chorowski et al. (2015).

    Args:
        kernel: how many keys the convolution sees, an odd number: as many before as after.
        channels: features for each key and head.
        of: the weights of the `"previous"` step, the `"total"` of all steps, or `"both"`.
    """

    kernel: int = 31
    channels: int = 32
    of: str = "both"

    def __post_init__(self) -> None:
        check_sizes(kernel=self.kernel, channels=self.channels)
        check_one_of("of", self.of, ("previous", "total", "both"))
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd to be centred on its key, got {self.kernel}")


class LocationTerm(nn.Module):
    """`U (F * weights)`: earlier weights, convolved along the keys, projected to the hidden width.

    Filters start normal such that a weight of 1 at one key gives features of variance 1 around it;
    the projection keeps variance. Weights sum to 1 over all keys, so that the term starts small.
    """

    def __init__(self, location: Location, heads: int, width: int) -> None:
        super().__init__()
        self.location, self.heads = location, heads
        inputs = 2 if location.of == "both" else 1
        self.filters = nn.Parameter(torch.empty(heads * location.channels, inputs, location.kernel))
        self.projection = nn.Parameter(torch.empty(heads, location.channels, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw filters and projection again."""
        nn.init.normal_(self.filters, std=self.filters.shape[1] ** -0.5)
        nn.init.normal_(self.projection, std=self.location.channels**-0.5)

    def forward(self, state: AttentionState) -> Tensor:
        """(B, H, L, E)."""
        parts = {
            "previous": [state.weights],
            "total": [state.total],
            "both": [state.weights, state.total],
        }[self.location.of]
        x = torch.stack(parts, 2).to(self.filters.dtype)  # (B, H, inputs, L)
        if x.shape[-1] == 0:  # a convolution refuses an empty length
            return x.sum(2).unsqueeze(-1) @ self.projection[:, :1]
        x = F.conv1d(x.flatten(1, 2), self.filters, padding="same", groups=self.heads)
        return x.unflatten(1, (self.heads, -1)).mT @ self.projection


class CoverageTerm(nn.Module):
    """`w_c c`: how much each key was attended to so far, times a learned vector (See et al. 2017).

    `w_c` starts normal with variance 0.01: the coverage of a key grows past 1.
    """

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, 1, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vector again."""
        nn.init.normal_(self.weight, std=0.1)

    def forward(self, state: AttentionState) -> Tensor:
        """(B, H, L, E)."""
        return state.total.to(self.weight.dtype).unsqueeze(-1) * self.weight


def term_width(score: Score) -> int:
    """The width E of a location or coverage term: that of the score's hidden layer."""
    inner = score.inner
    if isinstance(inner, Projected):
        return term_width(inner.score)
    if not isinstance(inner, PairwiseScore):
        return 1
    if inner.width is None:
        raise ValueError(
            f"{type(inner).__name__} has no `width`, so a location or coverage term cannot know how "
            "wide its hidden layer is"
        )
    # The hidden layer need not be as wide as the keys: that of `GAT` is one number.
    like = next(inner.parameters(), torch.empty(0))
    side = inner.key(like.detach().new_zeros(1, 1, 1, inner.width))
    return key_tensor(side).shape[-1]


def add_to_keys(side: KeySide, term: Tensor) -> KeySide:
    """Lowered keys with a term (B, H, L, E) added to their hidden units.

    Keys that several heads share are repeated for each: their terms differ.
    """
    if isinstance(side, PairwiseKey):
        return PairwiseKey(_for_heads(side.b, term.shape[1]) + term.to(side.b.dtype))
    term = term.squeeze(-1).to(side.psi.dtype)
    if side.beta is not None:
        term = _for_heads(side.beta, term.shape[1]) + term
    return InnerKey(side.psi, term, side.origin)


def _for_heads(x: Tensor, heads: int) -> Tensor:
    """X with its heads repeated to `heads`, so that it can be added to a tensor of that many."""
    own = x.shape[1]
    return x if own == 1 or own == heads else x.repeat_interleave(heads // own, 1)


def in_window(memory: Memory, state: AttentionState, window: tuple[int, int]) -> Tensor:
    """Booleans (B, H, L): keys from `back` before the last peak to `ahead` after it, padding out.

    Before the first step the peak is the first visible key.
    """
    back, ahead = window
    position = torch.arange(key_tensor(memory.side).shape[2], device=state.weights.device)
    if position.shape[0] == 0:
        return state.weights > 0
    started = state.weights.any(-1, keepdim=True)
    last = torch.where(started, state.weights, first_visible(memory).to(state.weights.dtype))
    peak = last.argmax(-1, keepdim=True)
    near = (position >= peak - back) & (position <= peak + ahead)
    return near if memory.visible is None else near & memory.visible.unsqueeze(1)


def coverage_loss(weights: Tensor, lengths: Counts | None = None) -> Tensor:
    """`mean over steps of sum_j min(weight_j, coverage_j)`: attending twice costs (See et al. 2017).

    Args:
        weights: (B, H, T, L).
        lengths: (B,), how many of the steps are real; None for all.

    Returns:
        One number, from 0 to 1: the mean over heads and real steps. 0 where there are none.
    """
    if weights.ndim != 4:
        raise ValueError(
            f"weights must be (batch, heads, steps, keys), got shape {tuple(weights.shape)}"
        )
    before = weights.cumsum(-2) - weights
    cost = torch.minimum(weights, before).sum(-1).mean(1)  # (B, T)
    real = torch.ones_like(cost)
    if lengths is not None:
        lengths = check_counts(lengths, "lengths", cost)
        steps = torch.arange(cost.shape[1], device=cost.device)
        real = (steps < lengths.unsqueeze(-1)).to(cost.dtype)
    return (cost * real).sum() / real.sum().clamp(min=1)
