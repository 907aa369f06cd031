"""The series through the wide kernels: features are built for some heads at a time, forward and backward.

All features of a call may take many times the memory of its inputs. Heads are therefore taken in parts
whose features fit into `FEATURE_BYTES`, or one by one: either whole sequences, or key heads of one sequence
with the query heads that share them. Heads of a part lie one after another in every tensor of the call.

Shape legend: see `operators`; W width of the features, X width of the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from regard.engines.launching import Address
from regard.engines.sine_features.launch import (
    FeatureCall,
    Features,
    feature_call,
    feature_signature,
    features_of,
)
from regard.engines.sine_features.memory import FLOAT, HALF, Notes, Scratch
from regard.engines.sine_features.parts import PARTS, WideAttention
from regard.engines.sine_features.widths import Widths
from regard.engines.sizes import blocks_in

if TYPE_CHECKING:
    from regard.engines.sine_features.operators import Kept, SineInputs

# Bytes of features, values and their gradients of a part. With the chunks of the kernels (2^28 bytes) the
# workspace stays below 1 GiB, unless the features of a single head are larger.
FEATURE_BYTES = 2**29


class Part(NamedTuple):
    """Some heads of a call: `batches` sequences from `batch` on, `count` key heads from `key_head` on.

    `shared` query heads share a key head. With several sequences all heads are taken. `key_heads` are those
    of the whole call.
    """

    batch: int
    batches: int
    key_head: int
    count: int
    shared: int
    key_heads: int

    @property
    def first(self) -> int:
        """The number of the first query head among all heads of all sequences."""
        return self.first_key * self.shared

    @property
    def first_key(self) -> int:
        """The number of the first key head among those of all sequences."""
        return self.batch * self.key_heads + self.key_head

    @property
    def total(self) -> int:
        """The number of query heads of the part."""
        return self.batches * self.count * self.shared

    def inputs(self, x: SineInputs) -> SineInputs:
        """The inputs of these heads."""
        rows = slice(self.batch, self.batch + self.batches)
        keys = slice(self.key_head, self.key_head + self.count)
        heads = slice(keys.start * self.shared, keys.stop * self.shared)
        return x._replace(
            a=x.a[rows, heads], b=x.b[rows, keys], v=x.v[heads], value=x.value[rows, keys]
        )

    def query_rows(self, x: Tensor) -> Tensor:
        """The rows of these query heads of a contiguous tensor (B, H, ...), as (heads, ...)."""
        return x.flatten(0, 1)[self.first : self.first + self.total]

    def key_rows(self, x: Tensor) -> Tensor:
        """The same of a tensor (B, K, ...)."""
        first = self.first_key
        return x.flatten(0, 1)[first : first + self.batches * self.count]

    def notes(self, notes: Notes, hidden: int) -> Notes:
        """The notes, with those that kernels of features read moved to these heads."""
        return notes._replace(
            row=moved(notes.row, self.first_key * hidden), peak=moved(notes.peak, self.first_key)
        )

    def scratch(self, scratch: Scratch, features: Features) -> Scratch:
        """The scratch memory of these heads."""
        hidden = self.first * features.hidden
        return scratch._replace(
            peak=moved(scratch.peak, self.first),
            from_queries=moved(scratch.from_queries, hidden * features.query_blocks),
            from_keys=moved(scratch.from_keys, hidden * features.gradient_blocks),
        )


def moved(address: Address, words: int) -> Address:
    """An address so many words of 4 bytes further on."""
    return address[words:] if isinstance(address, Tensor) else address + 4 * words


class PartShape(NamedTuple):
    """The sizes that parts follow from: sequences, heads, key heads, lengths, and widths."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    widths: Widths

    def bytes_of_head(self, copies: int) -> int:
        """Bytes of so many copies of the features and values of a head."""
        columns = self.widths.features + self.widths.values
        return copies * HALF.itemsize * (self.queries + self.keys) * columns


def shape_of(x: SineInputs) -> PartShape:
    """The sizes of a call."""
    batch, heads, queries, _ = x.a.shape
    return PartShape(batch, heads, x.b.shape[1], queries, x.b.shape[2], x.widths)


def workspace(shape: PartShape) -> int:
    """Bytes of features, values and their gradients of the largest part, and of the chunks of its pairs."""
    most = max(part.total for part in parts_of(shape, 2))
    pairs = wide_attention().workspace(most, shape.queries, shape.keys)
    return most * shape.bytes_of_head(2) + pairs


def parts_of(shape: PartShape, copies: int) -> Iterator[Part]:
    """The parts of a call of which `copies` of features and values are held at once."""
    batch, heads, key_heads = shape[:3]
    shared = heads // key_heads
    fitting = max(FEATURE_BYTES // max(shape.bytes_of_head(copies) * shared, 1), 1)
    if fitting >= key_heads:
        step = even_step(batch, fitting // key_heads)
        for first in range(0, batch, step):
            yield Part(first, min(step, batch - first), 0, key_heads, shared, key_heads)
    else:
        step = even_step(key_heads, fitting)
        for number in range(batch):
            for first in range(0, key_heads, step):
                count = min(step, key_heads - first)
                yield Part(number, 1, first, count, shared, key_heads)


def even_step(count: int, most: int) -> int:
    """The size of parts of about the same size, each at most `most`."""
    return blocks_in(count, blocks_in(count, most))


def wide_attention() -> WideAttention:
    """The kernels that run features which cuDNN does not take."""
    if PARTS.wide is None:
        raise RuntimeError("no kernels are set for wide features: set PARTS.wide first")
    return PARTS.wide


def attend(x: SineInputs, features: Features, notes: Notes) -> tuple[Tensor, Tensor]:
    """The output over features (B, H, Q, X) in fp16, and the LSE (B, H, Q)."""
    attended = features.new(features.attended)
    lse = x.a.new_empty(x.a.shape[:3], dtype=FLOAT)
    for part in parts_of(shape_of(x), 1):
        own, call, near = bound(x, part, notes)
        q, k, v = (side.flatten(0, 1) for side in own.sides(call, near))
        hiding = x.hiding.heads(part.first, part.total)
        results = part.query_rows(attended), part.query_rows(lse)
        wide_attention().forward(q, k, v, hiding, part.first, *results)
        # Freed before those of the next part are allocated.
        del q, k, v
    return attended, lse


def backward(
    x: SineInputs, features: Features, notes: Notes, scratch: Scratch, grad: Tensor, kept: Kept
) -> tuple[Tensor, ...]:
    """The gradients of a, b, v and value; `grad` is that of the output over features."""
    grads = features.new_gradients()
    by_a, by_b, by_v, by_value = grads
    for part in parts_of(shape_of(x), 2):
        own, call, near = bound(x, part, notes)
        q, k, v = (side.flatten(0, 1) for side in own.sides(call, near))
        hiding = x.hiding.heads(part.first, part.total)
        given = (part.query_rows(y) for y in (grad, kept.attended, kept.lse))
        by_output, out, lse = given
        found = wide_attention().backward(by_output, q, k, v, hiding, part.first, out, lse)
        del q, k, v
        into = (part.query_rows(by_a), part.key_rows(by_b), part.key_rows(by_value))
        own.side_gradients(call, near, part.scratch(scratch, features), found, into)
        del found
    features.weight_gradient(feature_call(x), scratch, by_v)
    return grads


def bound(x: SineInputs, part: Part, notes: Notes) -> tuple[Features, FeatureCall, Notes]:
    """The launches for a part, its call, and its notes."""
    given = part.inputs(x)
    own = features_of(feature_signature(given))
    return own, feature_call(given), part.notes(notes, own.hidden)
