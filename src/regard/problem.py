"""`Problem`: one checked and lowered attention call, in the shapes that engines read.

Shape legend: `*` leading dims (broadcast), H query heads, K key heads, V value heads (K and V
divide H), Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.forms import Form
from regard.mask import LARGEST_WHOLE, Mask


@dataclass(frozen=True, init=False, eq=False)
class Problem:
    """A checked and lowered attention call: what an engine runs. Frozen: `with_changed` makes another.

    Attributes:
        form: the lowered score, tensors (*, heads, length, width).
        value: (*, V, L, value dim).
        mask: a `Mask` whose dense parts broadcast to (*, H, Q, L), or None.
        bias: broadcasts to (*, H, Q, L), as many dims as the query or 2, or None.
        sink: (H,) or (1,), or None.
        temperature: a number, or a tensor that broadcasts to (*, H, Q).
        softcap: a positive number or None.
        dropout: a probability below 1.
        want: the statistics asked for.
        lead: the broadcast leading dims `*`.
        error: the largest output error that an approximation may make, or None for none at all.
        key_shape: of the keys as they were given, before a score lowered them.
        heads, queries, keys: H, Q and L.
    """

    form: Form
    value: Tensor
    mask: Mask | None
    bias: Tensor | None
    sink: Tensor | None
    temperature: float | Tensor
    softcap: float | None
    dropout: float
    want: frozenset[str]
    lead: tuple[int, ...]
    error: float | None
    key_shape: Sequence[int]
    heads: int
    queries: int
    keys: int

    def __init__(
        self,
        form: Form,
        value: Tensor,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        sink: Tensor | None = None,
        temperature: float | Tensor = 1.0,
        softcap: float | None = None,
        dropout: float = 0.0,
        want: frozenset[str] = frozenset(),
        lead: tuple[int, ...] | None = None,
        error: float | None = None,
        key_shape: Sequence[int] | None = None,
    ) -> None:
        query, key = form.query, form.key
        # Each shape is read once: every read makes a new torch.Size. With the direct comparison of heads
        # this takes 2.0 us, not 2.3.
        query_shape, lowered_shape = query.shape, key.shape
        heads = query_shape[-3]
        if lowered_shape[-3] != heads or value.shape[-3] != heads:
            _check_groups("key", lowered_shape[-3], heads)
            _check_groups("value", value.shape[-3], heads)
        # Through `object`, since a frozen class refuses `self.form = form`. One by one: a loop over a dict
        # takes twice as long, and small calls wait for it.
        put = object.__setattr__
        put(self, "form", form)
        put(self, "value", value)
        put(self, "mask", mask)
        put(self, "bias", bias)
        put(self, "sink", sink)
        put(self, "temperature", temperature)
        put(self, "softcap", softcap)
        put(self, "dropout", dropout)
        put(self, "want", want)
        put(self, "lead", broadcast_lead(query, key, value) if lead is None else lead)
        put(self, "error", error)
        put(self, "key_shape", lowered_shape if key_shape is None else key_shape)
        put(self, "heads", heads)
        put(self, "queries", query_shape[-2])
        put(self, "keys", lowered_shape[-2])

    @property
    def hard(self) -> bool:
        """Whether this is a hard look-up: every query takes its best key."""
        return isinstance(self.temperature, (int, float)) and self.temperature == 0

    def with_form(self, form: Form) -> Problem:
        """The same call with another form, the value in the form's dtype, and no error allowed."""
        value = self.value.to(form.query.dtype)
        return self.with_changed({"form": form, "value": value, "error": None})

    def with_changed(self, fields: dict[str, Any]) -> Problem:
        """The same call with some fields changed.

        `dataclasses.replace` would do, but torch.compile of torch 2.6 cannot trace it.
        """
        return Problem(
            fields.get("form", self.form),
            fields.get("value", self.value),
            fields.get("mask", self.mask),
            fields.get("bias", self.bias),
            fields.get("sink", self.sink),
            fields.get("temperature", self.temperature),
            fields.get("softcap", self.softcap),
            fields.get("dropout", self.dropout),
            fields.get("want", self.want),
            fields.get("lead", self.lead),
            fields.get("error", self.error),
            fields.get("key_shape", self.key_shape),
        )

    def hides_whole(self, shape: Sequence[int]) -> bool:
        """Whether each key, or each value, is either seen by all queries that share it or by none of them.

        `shape` is that of the keys or values, (*, heads, L, width). What no query sees holds 0 or is known to
        be finite, so that an engine may multiply it by a weight of 0. What only some queries see may hold
        NaN, and 0 times NaN is NaN.
        """
        shapes = []
        if self.bias is not None:
            if self.bias.shape[-2] > 1:
                return False
            shapes.append(tuple(self.bias.shape[:-2]))
        if self.mask is not None:
            if not self.mask.same_for_every_query(self.queries):
                return False
            shapes += self.mask.shapes()
        # Where sequences or heads share keys (size 1), mask and bias must be shared by them too.
        own = (*[1] * len(self.lead), *shape[:-2])
        for shape in shapes:
            # From the last dim on; torch.compile of torch 2.6 cannot trace `zip` here.
            for i in range(1, min(len(shape), len(own)) + 1):
                if shape[-i] not in (1, own[-i]):
                    return False
        return True

    def visible_pairs(self) -> Tensor | None:
        """Booleans that broadcast to (*, H, Q, L), True = attend; None if nothing is hidden."""
        seen = None
        if self.mask is not None:
            seen = self.mask.visible(self.queries, self.keys, self.device)
        if self.bias is not None:
            given = self.bias != -torch.inf
            seen = given if seen is None else seen & given
        return seen

    @property
    def on_cpu(self) -> bool:
        """Whether the tensors are on the CPU."""
        return self.value.device.type == "cpu"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.value.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the output."""
        return self.value.dtype


def broadcast_lead(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The leading dims that query, key and value broadcast to, or an error."""
    lead = query.shape[:-3]
    if key.shape[:-3] == lead and value.shape[:-3] == lead:
        return tuple(lead)
    try:
        return tuple(torch.broadcast_shapes(lead, key.shape[:-3], value.shape[:-3]))
    except RuntimeError:
        raise ValueError(
            "the leading (batch) dims of query, key and value do not broadcast: "
            f"{tuple(lead)}, {tuple(key.shape[:-3])} and {tuple(value.shape[:-3])}"
        ) from None


def hide_padding(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key and value with padding set to 0, and which keys are real (*, heads or 1, L).

    Padding is a query that sees no key, or a key and value that no query sees. It is zeroed before the
    score lowers it: whatever it holds, NaN included, must not reach the gradients of the score's
    parameters, where 0 * NaN would be NaN. Keys and values stay as they are if the caller says that they
    are finite (`Mask.over_finite`). The last result is None if nothing is padding.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    rows = real = None
    if bias is not None:
        seen = bias != -torch.inf
        if mask is not None and queries * keys <= LARGEST_WHOLE:
            # Mask and bias together may hide a key that neither hides alone.
            seen = seen & mask.visible(queries, keys, query.device)
        rows, real = seen.any(-1), seen.any(-2)
    if mask is not None and not mask.hides_no_key(queries, keys):
        by_mask = mask.real(queries, keys, query.device)
        rows = by_mask[0] if rows is None else rows & by_mask[0]
        real = by_mask[1] if real is None else real & by_mask[1]
    if rows is None or real is None:
        return query, key, value, None
    query = torch.where(_shared(rows, query), query, 0)
    key_real = _shared(real, key)
    if bias is not None or mask is None or not mask.hides_finite:
        key, value = torch.where(key_real, key, 0), torch.where(_shared(real, value), value, 0)
    return query, key, value, key_real.squeeze(-1)


def _check_groups(name: str, heads: int, query_heads: int) -> None:
    """Refuse a number of key or value heads that does not divide the query heads."""
    if heads != query_heads and (heads == 0 or query_heads % heads):
        raise ValueError(
            f"{name} has {heads} heads, which does not divide the {query_heads} query heads; "
            "grouped heads need a divisor"
        )


def hide_unpaired(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zero keys and values that no query sees because there is none, and queries without a key.

    Any of the three may lack rows, or have an empty batch that the others broadcast to. What is left over is
    read into no output, and must not become 0 * NaN in a gradient either.
    """
    never = query.new_zeros((), dtype=torch.bool)
    batches = 0 in (*query.shape[:-2], *key.shape[:-2], *value.shape[:-2])
    if batches or key.shape[-2] == 0:
        query = torch.where(never, query, 0)
    if batches or query.shape[-2] == 0:
        key, value = torch.where(never, key, 0), torch.where(never, value, 0)
    return query, key, value


def _shared(real: Tensor, x: Tensor) -> Tensor:
    """`real` (*, h, length) as booleans that broadcast to x: (*, heads or 1, length, 1).

    Where several sequences or heads share a row of x, the row is real if it is real for any of them.
    So x stays shared, and is not copied for each.
    """
    heads, count = x.shape[-3], real.shape[-2] if real.ndim > 1 else 1
    if count != 1 and count != heads:
        if count > heads > 0 and count % heads == 0:
            real = real.unflatten(-2, (heads, count // heads)).any(-2)
        else:
            real = real.any(-2, keepdim=True)
    for dim in range(3, real.ndim + 1):
        shared = x.ndim < dim + 1 or x.shape[-dim - 1] == 1
        if shared and real.shape[-dim] != 1:
            real = real.any(-dim, keepdim=True)
    return real.unsqueeze(-1)
