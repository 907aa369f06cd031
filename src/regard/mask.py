"""`Mask`: which keys each query may see, as one frozen value; and `Spans`, the form that engines read.

True means *attend*, everywhere. Masks are combined with `&`: a query sees a key only if every part
allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.arguments import numbers_as_tensor
from regard.describe import describe

# The most query-key pairs for which a mask is built as one boolean tensor: 16 MiB for each sequence
# and head.
LARGEST_WHOLE = 2**24
Alignment = Literal["bottom_right", "top_left"]


class Band(NamedTuple):
    """The keys from `left` before to `right` after the query's own position; None is no limit."""

    left: int | None
    right: int | None
    alignment: Alignment

    @property
    def is_causal(self) -> bool:
        """Whether it hides the keys after the query and no others."""
        return self.left is None and self.right == 0


class Spans(NamedTuple):
    """A mask resolved for given numbers of queries and keys: the form that engines read.

    Query i sees key j where `start[i] <= j < stop[i]` (int64, (*, 1, Q or 1), None for no limit),
    its segment equals the key's in every pair of `segments` ((*, 1, Q), (*, 1, L)), and `dense`
    (*, H or 1, Q or 1, L or 1) is True.
    """

    start: Tensor | None
    stop: Tensor | None
    segments: tuple[tuple[Tensor, Tensor], ...]
    dense: Tensor | None


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may see. Build one with the class methods and combine with `&`.

    ```python
    Mask.causal()                                      # the last query sits at the last key
    Mask.window(left=128) & Mask.causal()              # each query sees 128 keys before it
    Mask.lengths(keys=lengths, queries=lengths)        # padding; aligns a causal mask too
    Mask.segments(ids)                                 # several sequences packed into one row
    Mask.dense(allowed)                                # any boolean tensor, True = attend
    ```

    A query that sees nothing gets output 0, gradient 0 and LSE -inf. If padding is known to be finite,
    `over_finite()` saves the copies that zero it.
    """

    allowed: tuple[Tensor, ...] = ()
    key_lengths: Tensor | None = None
    query_lengths: Tensor | None = None
    bands: tuple[Band, ...] = ()
    packed: tuple[tuple[Tensor, Tensor], ...] = ()
    hides_finite: bool = False

    @classmethod
    def dense(cls, allowed: Tensor) -> Mask:
        """The mask of a boolean tensor, True = attend: (Q, L), or as many dims as the query."""
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            raise TypeError(
                f"mask must be a boolean tensor with True = attend, got {describe(allowed)}. From "
                "0/1 integers use mask.bool(); additive float masks are `bias=`"
            )
        if allowed.ndim < 2:
            raise ValueError(
                f"a dense mask ends in (query length, key length), got shape "
                f"{tuple(allowed.shape)}; for padding use Mask.lengths(keys=...)"
            )
        return cls(allowed=(allowed,))

    @classmethod
    def lengths(
        cls,
        *,
        keys: Tensor | Sequence[int] | int | None = None,
        queries: Tensor | Sequence[int] | int | None = None,
    ) -> Mask:
        """The mask of padding at the end: how many keys and queries of each sequence are real.

        Integers of the shape of the leading dims without heads: (batch,) for (batch, heads,
        length, dim) and for (batch, length, dim).
        """
        if keys is None and queries is None:
            raise ValueError("Mask.lengths needs keys=, queries= or both")
        return cls(key_lengths=_integers(keys, "keys"), query_lengths=_integers(queries, "queries"))

    @classmethod
    def causal(cls, alignment: Alignment = "bottom_right") -> Mask:
        """The mask that hides the keys after the query.

        With unequal lengths, `bottom_right` puts the last (real) query at the last (real) key, as
        decoding with a cache needs; `top_left` puts the first at the first, as SDPA's `is_causal`.
        """
        return cls(bands=(Band(None, 0, _alignment(alignment)),))

    @classmethod
    def window(
        cls,
        left: int | None = None,
        right: int | None = None,
        alignment: Alignment = "bottom_right",
    ) -> Mask:
        """The mask of a sliding window: keys from `left` before to `right` after, both included."""
        for name, size in (("left", left), ("right", right)):
            if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
                raise TypeError(f"window {name} must be an integer or None, got {size!r}")
            if size is not None and size < 0:
                raise ValueError(f"window {name} must be 0 or more, got {size}")
        if left is None and right is None:
            raise ValueError("Mask.window needs left=, right= or both")
        return cls(bands=(Band(left, right, _alignment(alignment)),))

    @classmethod
    def segments(cls, queries: Tensor, keys: Tensor | None = None) -> Mask:
        """The mask of packed sequences: ids (*, Q) and (*, L), and a query sees its own segment.

        Ids need not be sorted; `keys` defaults to `queries` (self-attention). A negative id is
        padding and sees nothing.
        """
        queries = _ids(queries, "queries")
        return cls(packed=((queries, queries if keys is None else _ids(keys, "keys")),))

    def over_finite(self) -> Mask:
        """The same mask; the caller promises that hidden keys and values are finite and of usual size.

        Without the promise `attention` zeroes keys and values that no query sees, which copies both in
        every call. A decoder that zeroes its padding once saves these copies in every step. If the promise
        is broken, NaN may reach outputs and gradients.
        """
        return Mask(*self._parts(), hides_finite=True)

    def with_allowed(self, allowed: tuple[Tensor, ...]) -> Mask:
        """The same mask with other dense parts."""
        return Mask(allowed, *self._parts()[1:], hides_finite=self.hides_finite)

    def _parts(self) -> tuple:
        """The fields that hide something; torch.compile of 2.6 cannot trace `dataclasses.replace`."""
        return self.allowed, self.key_lengths, self.query_lengths, self.bands, self.packed

    def __and__(self, other: Mask) -> Mask:
        """The mask that allows what both allow."""
        if not isinstance(other, Mask):
            raise TypeError(
                f"a Mask is combined with another Mask, got {describe(other)}; a boolean tensor "
                "becomes one as Mask.dense(tensor)"
            )
        return Mask(
            allowed=self.allowed + other.allowed,
            key_lengths=_shorter(self.key_lengths, other.key_lengths),
            query_lengths=_shorter(self.query_lengths, other.query_lengths),
            bands=self.bands + other.bands,
            packed=self.packed + other.packed,
            hides_finite=self.hides_finite and other.hides_finite,
        )

    def __bool__(self) -> bool:
        """Refused: `mask and other` would silently be `other` alone."""
        raise TypeError("a Mask is neither true nor false; combine masks with &, not with `and`")

    def __repr__(self) -> str:
        """The parts, without the numbers."""
        parts = [f"dense{tuple(x.shape)}" for x in self.allowed]
        parts += ["key lengths"] if self.key_lengths is not None else []
        parts += ["query lengths"] if self.query_lengths is not None else []
        parts += [
            f"causal({b.alignment})" if b.is_causal else f"window({b.left}, {b.right})"
            for b in self.bands
        ]
        parts += ["segments"] * len(self.packed)
        return f"Mask({' & '.join(parts) or 'everything'})"

    @property
    def only_keys(self) -> bool:
        """Whether every query sees the same keys."""
        same = self.query_lengths is None and len(self.bands) == len(self.packed) == 0
        return same and all(x.shape[-2] == 1 for x in self.allowed)

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors on `device`."""
        tensors = (*self.allowed, self.key_lengths, self.query_lengths)
        pairs = [x for pair in self.packed for x in pair]
        if all(x is None or x.device == device for x in (*tensors, *pairs)):
            return self
        return Mask(
            tuple(x.to(device) for x in self.allowed),
            None if self.key_lengths is None else self.key_lengths.to(device),
            None if self.query_lengths is None else self.query_lengths.to(device),
            self.bands,
            tuple((q.to(device), k.to(device)) for q, k in self.packed),
            self.hides_finite,
        )

    def spans(self, queries: int, keys: int, device: torch.device) -> Spans:
        """The mask resolved for these numbers of queries and keys; see `Spans`."""
        mask = self.to(device)
        key_end = None if mask.key_lengths is None else mask.key_lengths[..., None, None]
        query_end = None if mask.query_lengths is None else mask.query_lengths[..., None, None]
        start, stop = None, key_end
        by_row = len(mask.bands) > 0 or query_end is not None
        row = torch.arange(queries, device=device) if by_row else None
        for band in mask.bands:
            assert row is not None
            # The key at the position of each query.
            own = row + mask.offset(band, queries, keys, key_end, query_end)
            if band.left is not None:
                start = _either(start, own - band.left, torch.maximum)
            if band.right is not None:
                stop = _either(stop, own + band.right + 1, torch.minimum)
        if query_end is not None:
            assert row is not None
            # A padded query sees nothing: its span stops at 0.
            end = torch.where(row < query_end, torch.iinfo(torch.int64).max, 0)
            stop = _either(stop, end, torch.minimum)
        segments = tuple((q.unsqueeze(-2), k.unsqueeze(-2)) for q, k in mask.packed)
        dense = None
        for allowed in mask.allowed:
            dense = allowed if dense is None else dense & allowed
        return Spans(start, stop, segments, dense)

    def offset(
        self,
        band: Band,
        queries: int,
        keys: int,
        key_end: Tensor | None,
        query_end: Tensor | None,
    ) -> Tensor | int:
        """The key position of query 0 for this band's alignment."""
        if band.alignment == "top_left" or (key_end is None and query_end is None):
            return 0 if band.alignment == "top_left" else keys - queries
        if query_end is None and queries > 1:
            raise ValueError(
                "a bottom-right aligned mask with key lengths needs the query lengths too: is a "
                "short sequence's last query its last row, or is that row padding? Use "
                "Mask.lengths(keys=..., queries=...), or alignment='top_left'"
            )
        if queries == 1 and query_end is None:
            query_end = torch.ones_like(key_end)  # type: ignore[arg-type] # not both are None
        return (keys if key_end is None else key_end) - (
            queries if query_end is None else query_end
        )

    def hides_nothing(self, queries: int, keys: int) -> bool:
        """Whether every query sees every key, as far as can be told without reading tensors."""
        return self._bands_only() and all(
            queries == 1 and band.is_causal and band.alignment == "bottom_right"
            for band in self.bands
        )

    def _bands_only(self) -> bool:
        lengths = self.key_lengths is not None or self.query_lengths is not None
        return not lengths and len(self.allowed) == len(self.packed) == 0

    def hides_no_key(self, queries: int, keys: int) -> bool:
        """Whether every key is known to be seen by some query, and every query to see some key."""
        # With equal lengths each query sees its own position at least.
        return self._bands_only() and queries == keys

    @property
    def is_only_causal(self) -> bool:
        """Whether it is one causal band and nothing else."""
        return self._bands_only() and len(self.bands) == 1 and self.bands[0].is_causal

    def same_for_every_query(self, queries: int) -> bool:
        """Whether it is known to hide the same keys from every query, as padding of keys does."""
        return queries == 1 or self.only_keys

    def shapes(self) -> list[tuple[int, ...]]:
        """The leading dims and heads (*, h) of each part that is a tensor."""
        lengths = [x for x in (self.key_lengths, self.query_lengths) if x is not None]
        found = [tuple(x.shape[:-2]) for x in self.allowed]
        found += [(*x.shape, 1) for x in lengths]
        return found + [(*ids.shape[:-1], 1) for pair in self.packed for ids in pair]

    def real(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which queries see some key (*, h, Q), and which keys some query sees (*, h, L).

        Up to 2**24 pairs, several parts are combined before they are looked at. Beyond that each part is
        looked at alone, to save memory: what only several parts together hide then counts as real.
        """
        spans = self.spans(queries, keys, device)
        ends = spans.start is not None or spans.stop is not None
        parts = int(ends) + len(spans.segments) + int(spans.dense is not None)
        if parts > 1 and queries * keys <= LARGEST_WHOLE:
            seen = visible(spans, keys, device)
            return seen.any(-1), seen.any(-2)
        if parts == 1 and spans.dense is not None:
            rows, dense = spans.dense.any(-1), spans.dense
            real = dense.squeeze(-2) if dense.shape[-2] == 1 else dense.any(-2)
            return rows.expand(*rows.shape[:-1], queries), real.expand(*real.shape[:-1], keys)
        column = torch.arange(keys, device=device)
        rows = torch.ones(1, queries, dtype=torch.bool, device=device)
        real = torch.ones(1, keys, dtype=torch.bool, device=device)
        # Spans of neighbouring queries overlap or touch. So the keys that any query sees lie between the
        # first start and the last stop.
        start = column.new_zeros(1, 1) if spans.start is None else spans.start.clamp(min=0)
        stop = column.new_full((1, 1), keys) if spans.stop is None else spans.stop.clamp(max=keys)
        rows = rows & (start < stop)
        if queries:
            filled = (start < stop).expand(torch.broadcast_shapes(start.shape, stop.shape))
            first = torch.where(filled, start, keys).amin(-1, keepdim=True)
            last = torch.where(filled, stop, 0).amax(-1, keepdim=True)
            real = real & (column >= first) & (column < last)
        for q, k in spans.segments:
            rows = rows & (q >= 0) & _member(q, k)
            real = real & (k >= 0) & _member(k, q)
        if spans.dense is not None:
            rows, real = rows & spans.dense.any(-1), real & spans.dense.any(-2)
        return rows, real

    def visible(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """The whole mask as booleans, (*, H or 1, Q or 1, L) broadcastable; True = attend."""
        return visible(self.spans(queries, keys, device), keys, device)


def visible(spans: Spans, keys: int, device: torch.device) -> Tensor:
    """Spans as booleans, (*, H or 1, Q or 1, L) broadcastable; True = attend."""
    ends = spans.start is not None or spans.stop is not None or len(spans.segments) > 0
    if spans.dense is not None and not ends and spans.dense.shape[-1] == keys:
        return spans.dense
    column = torch.arange(keys, device=device)
    seen = torch.ones(1, keys, dtype=torch.bool, device=device)
    if spans.start is not None:
        seen = seen & (column >= spans.start.unsqueeze(-1))
    if spans.stop is not None:
        seen = seen & (column < spans.stop.unsqueeze(-1))
    for q, k in spans.segments:
        seen = seen & (q.unsqueeze(-1) == k.unsqueeze(-2)) & (q.unsqueeze(-1) >= 0)
    return seen if spans.dense is None else seen & spans.dense


def _member(x: Tensor, others: Tensor) -> Tensor:
    """Whether each element of x (*, n) is among `others` (*, m) in the same leading dims."""
    if not others.shape[-1]:
        return torch.zeros_like(x, dtype=torch.bool)
    lead = torch.broadcast_shapes(x.shape[:-1], others.shape[:-1])
    # By binary search: comparing all pairs would take n * m memory.
    x, ordered = x.expand(*lead, -1).contiguous(), others.expand(*lead, -1).sort(-1).values
    place = torch.searchsorted(ordered, x).clamp(max=others.shape[-1] - 1)
    return ordered.gather(-1, place) == x


def _integers(x: Tensor | Sequence[int] | int | None, name: str) -> Tensor | None:
    if x is None:
        return None
    x = x if isinstance(x, Tensor) else numbers_as_tensor(x, f"Mask.lengths {name}")
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        raise TypeError(
            f"Mask.lengths {name} must be integers, got {x.dtype}; for a boolean mask use "
            "Mask.dense(mask), True = attend"
        )
    return x.to(torch.int64)


def _ids(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or x.dtype == torch.bool or x.is_floating_point():
        raise TypeError(
            f"Mask.segments {name} must be an integer tensor of segment ids, got {describe(x)}"
        )
    if x.ndim < 1:
        raise ValueError(f"Mask.segments {name} must end in a length dim, got a single number")
    return x.to(torch.int64)


def _alignment(alignment: str) -> Alignment:
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"alignment must be 'bottom_right' or 'top_left', got {alignment!r}")
    return alignment  # type: ignore[return-value] # checked above


def _shorter(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return _either(x, y, torch.minimum)


def _either(x: Tensor | None, y: Tensor | None, combine) -> Tensor | None:
    if x is None or y is None:
        return y if x is None else x
    return combine(x, y)
