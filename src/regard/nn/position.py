"""Positions of tokens: added to embeddings, rotated into queries and keys, or added to logits.

| module | acts on | knows |
|---|---|---|
| `Sinusoidal` | embeddings | the position, any length |
| `LearnedPosition` | embeddings | the position, up to a fixed length |
| `Rotary` | projected queries and keys | the distance, with inner-product scores |
| `Alibi` | the logits, as `bias=` | the distance, with every score |

Positions are integers: a range from `offset` (the number of tokens before), or `positions` given for
each token. Nothing here keeps a table. Casting a model to half precision therefore cannot round
angles or slopes, and there is no maximum length, except for learned positions.

Shape legend: `*` leading (batch) dims, H heads, Q queries, L tokens or keys, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.arguments import check_given_sizes, check_positive, readable
from regard.describe import describe
from regard.precision import widened


def _angles(positions: Tensor, count: int, dim: int, base: float) -> Tensor:
    """`positions * base^(-2i / dim)` for i below `count`, (*, L, count).

    In fp64 if the device has it: in fp32 an angle at position 100,000 has an error of 0.004.
    """
    precise = torch.float32 if positions.device.type == "mps" else torch.float64
    index = torch.arange(count, device=positions.device, dtype=precise)
    return positions.to(precise).unsqueeze(-1) * base ** (-2 * index / dim)


def _places(x: Tensor, offset: int, positions: Tensor | None, lead: Sequence[int]) -> Tensor:
    """The position of each token of x (*, L, D): `positions`, or a range from `offset`.

    `positions` are (L,), or (*, L) with leading dims that broadcast to `lead`.
    """
    length = x.shape[-2]
    if positions is None:
        if not _is_whole(offset) or offset < 0:
            raise ValueError(
                f"offset must be an integer of 0 or more, got {describe(offset)}; a position for "
                "each token is positions="
            )
        return torch.arange(offset, offset + length, device=x.device)
    if not isinstance(positions, Tensor) or positions.dtype == torch.bool or offset != 0:
        raise TypeError(
            f"positions must be a tensor of integers, and offset stay 0 beside it, got "
            f"{describe(positions)} and offset {describe(offset)}"
        )
    if positions.is_floating_point() or positions.is_complex():
        raise TypeError(f"positions must be integers, got {positions.dtype}")
    given = positions.shape[:-1]
    # One by one, because sizes may be symbolic under a compiler.
    pairs = zip(reversed(given), reversed(lead), strict=False)
    fits = len(given) <= len(lead) and all(n == 1 or n == m for n, m in pairs)
    if positions.ndim < 1 or positions.shape[-1] != length or not fits:
        wanted = f" or {(*lead, length)}" if lead else ""
        raise ValueError(
            f"positions must be ({length},){wanted} for x of shape {tuple(x.shape)}, got shape "
            f"{tuple(positions.shape)}"
        )
    if positions.device != x.device:
        raise ValueError(f"positions are on {positions.device} but x is on {x.device}")
    return positions.long()


class Sinusoidal(nn.Module):
    """Sines and cosines of the position, added to embeddings (Vaswani et al., 2017).

    Formula: `y_p = x_p + amplitude * e_p` with `e_p[2i] = sin(p base^(-2i/dim))` and
    `e_p[2i+1] = cos(p base^(-2i/dim))`.

    Args:
        dim: width of the embeddings; an odd one ends in a sine.
        amplitude: the largest value added. Far above 1 it drowns embeddings of variance 1, and far
            below 1 it is drowned by them.
        learned: learn the amplitude, starting at the given one.
        base: the slowest wave is 2 pi base tokens long.

    Parameters: 1 if learned, else none.
    """

    def __init__(
        self, dim: int, amplitude: float = 1.0, *, learned: bool = False, base: float = 10000.0
    ) -> None:
        super().__init__()
        check_given_sizes(dim=dim)
        check_positive(amplitude=amplitude, base=base)
        self.dim, self.base = dim, float(base)
        self.start = float(amplitude)
        self.amplitude = nn.Parameter(torch.empty(())) if learned else self.start
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset a learned amplitude to its initial value."""
        if isinstance(self.amplitude, nn.Parameter):
            nn.init.constant_(self.amplitude, self.start)

    def encode(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """What is added at positions (*, L), amplitude included: (*, L, dim)."""
        angle = _angles(positions, (self.dim + 1) // 2, self.dim, self.base)
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        # Narrowed, not sliced: a slice of symbolic length would not export.
        return self.amplitude * waves.narrow(-1, 0, self.dim).to(dtype)

    def forward(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """`x + e`, x (*, L, dim); positions (L,) or (*, L)."""
        _check_width(x, self.dim, self)
        where = _places(x, offset, positions, x.shape[:-2])
        return x + self.encode(where, x.dtype).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and amplitude."""
        learned = isinstance(self.amplitude, nn.Parameter)
        return f"{self.dim}, amplitude={'learned' if learned else self.amplitude}"


class LearnedPosition(nn.Module):
    """A learned vector for each position, added to embeddings.

    Formula: `y_p = x_p + weight[p]`

    Args:
        length: number of positions; later ones are refused.
        dim: width of the embeddings.

    Parameters: length * dim, initialised normal with standard deviation 0.02, so that at first a
    token counts far more than its position.
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        check_given_sizes(length=length, dim=dim)
        self.length, self.dim = length, dim
        self.weight = nn.Parameter(torch.empty(length, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors again."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """`x + weight[positions]`, x (*, L, dim); positions (L,) or (*, L)."""
        _check_width(x, self.dim, self)
        where = _places(x, offset, positions, x.shape[:-2])
        if positions is None:
            last = offset + x.shape[-2]
            if last > self.length:
                raise ValueError(_too_far(self.length, last - 1))
        elif readable(where):
            low, high = (int(n) for n in where.aminmax())
            if low < 0 or high >= self.length:
                raise ValueError(_too_far(self.length, low if low < 0 else high))
        return x + nn.functional.embedding(where, self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        """Length and width."""
        return f"{self.length}, {self.dim}"


class Rotary(nn.Module):
    """Rotary embedding: rotates pairs of features by an angle proportional to the position.

    Formula: pair i of the vector at position p is rotated by `p * base^(-2i / rotated)`.

    Queries and keys are rotated alike, after their projection. Rotations keep lengths and inner
    products, so a score that is an inner product (`Dot`, `ScaledDot`, `Cosine`, `Gaussian`) depends
    on the *difference* of the positions only. `Additive` and `GATv2` also work on rotated inputs, but
    treat each feature separately: their scores depend on both positions, not only on the difference.
    `Alibi` is relative for every score.

    ```python
    SelfAttention(64, 4, position=Rotary(16))                  # 64 / 4: as wide as each head
    SelfAttention(64, 4, Additive(8, 4), position=Rotary(8))   # as wide as the score asks for
    q, k = rotary(q), rotary(k, offset=3)                      # by hand: three keys came before
    ```

    Args:
        dim: width of each head's queries and keys.
        base: the slowest pair makes a full turn in about 2 pi base tokens.
        interleaved: which features make a pair. False: i and i + rotated / 2, the halves (Llama,
            GPT-NeoX and Hugging Face checkpoints). True: 2i and 2i + 1, neighbours (the paper,
            GPT-J). Weights trained with one do not work with the other.
        rotated: number of features, from the first, that are rotated; the rest carry no position.
            Default: all.

    Parameters: none.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        rotated: int | None = None,
    ) -> None:
        super().__init__()
        rotated = dim if rotated is None else rotated
        check_given_sizes(dim=dim, rotated=rotated)
        check_positive(base=base)
        if rotated % 2 or rotated > dim:
            raise ValueError(
                f"rotated must be an even number of at most dim {dim}, got {rotated}: features "
                "turn in pairs"
            )
        self.dim, self.rotated = dim, rotated
        self.base, self.interleaved = float(base), interleaved

    def forward(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """X (*, H, L, dim), rotated; positions (L,), or (*, L) without heads."""
        _check_width(x, self.dim, self)
        where = _places(x, offset, positions, x.shape[:-3])
        if where.ndim > 1:
            where = where.unsqueeze(-2)
        turned, rest = x.split([self.rotated, self.dim - self.rotated], -1)
        work = widened(turned)
        angle = _angles(where, self.rotated // 2, self.rotated, self.base)
        cos, sin = angle.cos().to(work.dtype), angle.sin().to(work.dtype)
        if self.interleaved:
            a, b = work.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = work.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        turned = turned.to(x.dtype)
        return turned if self.rotated == self.dim else torch.cat([turned, rest], -1)

    def extra_repr(self) -> str:
        """Width and convention."""
        pairs = "neighbours" if self.interleaved else "halves"
        return f"{self.dim}, base={self.base:g}, pairs={pairs}, rotated={self.rotated}"


class Alibi(nn.Module):
    """Attention with linear biases: the farther a key, the lower its logit (Press et al., 2022).

    Formula: `bias[h, i, j] = -slope_h * |i - j|`, to add to the logits of any score.

    With a power of two heads, n, the slopes are `2^(-8/n), 2^(-16/n), ..., 2^-8`. Another number
    takes those of the power of two below, and then every other one of the power above.

    Args:
        heads: query heads.
        causal: also hide later keys, with -inf. Without it the bias is symmetric; a causal mask
            then gives the same as `causal=True`.

    Parameters: none. Memory: heads * Q * L for the bias.
    """

    def __init__(self, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        check_given_sizes(heads=heads)
        self.heads, self.causal = heads, causal

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """The slope of each head, (H,)."""
        power = 1 << (self.heads.bit_length() - 1)
        head = torch.arange(self.heads, device=device, dtype=torch.float32)
        beyond = (2 * (head - power) + 1) * (4 / power)
        return torch.exp2(-torch.where(head < power, (head + 1) * (8 / power), beyond))

    def forward(
        self,
        queries: int,
        keys: int,
        offset: int | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """The bias (H, Q, L) in fp32.

        `offset` is the key position of the first query; default: the last query sits at the last
        key, as decoding with a cache needs.
        """
        for name, count in (("queries", queries), ("keys", keys)):
            if not _is_whole(count) or count < 0:
                raise ValueError(f"{name} must be an integer of 0 or more, got {describe(count)}")
        offset = keys - queries if offset is None else offset
        if not _is_whole(offset):
            raise ValueError(f"offset must be an integer or None, got {describe(offset)}")
        row = torch.arange(queries, device=device).unsqueeze(-1) + offset
        ahead = torch.arange(keys, device=device) - row
        bias = -self.slopes(device).view(-1, 1, 1) * ahead.abs()
        return bias.masked_fill(ahead > 0, -torch.inf) if self.causal else bias

    def extra_repr(self) -> str:
        """Heads and kind."""
        return f"{self.heads}, causal={self.causal}"


def _is_whole(x: object) -> bool:
    return isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)


def _check_width(x: Tensor, dim: int, module: nn.Module) -> None:
    fits = isinstance(x, Tensor) and x.ndim >= 2 and x.shape[-1] == dim
    if not fits or not x.is_floating_point():
        raise ValueError(
            f"{type(module).__name__} was built for (..., length, {dim}) in floating point, got "
            f"{describe(x)}"
        )


def _too_far(length: int, position: int) -> str:
    return (
        f"LearnedPosition has {length} positions, 0 to {length - 1}, got position {position}; "
        "build it longer, or use Sinusoidal, which has no longest length"
    )
