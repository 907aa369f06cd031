"""`Stream`: one sequence of inputs of a model, as token ids or as vectors, which a check changes.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.probing.inputs import ASIDE, names_of

# Integers under these names are no tokens.
NO_TOKENS = (*ASIDE, "type", "segment", "length", "len")
LABELS = ("labels", "label", "targets", "target", "lm_labels", "y")


class Stream(NamedTuple):
    """One sequence of inputs.

    Attributes:
        name: of its argument.
        given: as in the batch.
        ids: (B, T) of token ids; None for vectors.
        length: T; 0 for inputs without tokens, such as images.
        shifted: whether the model may read them, or reads them, shifted right by one, as decoders do labels.
    """

    name: str
    given: Tensor
    ids: Tensor | None
    length: int
    shifted: bool = False


def streams_of(model: nn.Module, batch: Any, batch_first: bool) -> list[Stream]:
    """The inputs in a batch that may be changed, those of the decoder last."""
    found = []
    named = names_of(model, batch)
    for name, x in named.items():
        said = name.lower()
        if x.is_complex() or x.dtype == torch.bool or x.ndim < 2:
            continue
        if x.is_floating_point():
            if not any(word in said for word in ASIDE):
                found.append(of_vectors(name, x, batch_first))
        elif x.ndim == 2 and (not any(word in said for word in NO_TOKENS)):
            ids = x if batch_first else x.t()
            found.append(Stream(name, x, ids, ids.shape[1]))
    # Encoder-decoders make what the decoder reads out of the labels. Only what an embedding really reads
    # is changed, so a stream that nothing reads does no harm.
    for name, x in named.items():
        if name.lower() in LABELS and x.ndim == 2 and not x.is_floating_point():
            ids = x if batch_first else x.t()
            found.append(Stream(name, x, ids, ids.shape[1], shifted=True))
    return sorted(found, key=lambda s: s.shifted or "decoder" in s.name or "tgt" in s.name)


def of_vectors(name: str, x: Tensor, batch_first: bool) -> Stream:
    """A stream of vectors (B, T, ...) or of pictures, which have no tokens."""
    length = x.shape[1 if batch_first else 0] if x.ndim == 3 else 0
    return Stream(name, x, None, length)


def layout_of(model: nn.Module, batch_first: bool | None) -> bool:
    """Whether the first dim of inputs is the samples: as given, else as torch's modules say."""
    if batch_first is not None:
        return batch_first
    said = [
        x.batch_first for x in model.modules() if isinstance(x, nn.MultiheadAttention | nn.RNNBase)
    ]
    return not said or any(said)


def places_in(ids: Tensor, stream: Stream) -> Tensor | None:
    """For each id that an embedding reads, its place b * T + t in the stream; None for others."""
    own = stream.ids
    if own is None:
        return None
    if ids.untyped_storage().data_ptr() == stream.given.untyped_storage().data_ptr():
        return viewed(ids, stream)
    if ids.shape == own.shape and torch.equal(ids.to(own.dtype), own):
        return numbered(own)
    if ids.shape == own.t().shape and torch.equal(ids.to(own.dtype), own.t()):
        return numbered(own).t()
    if stream.shifted and reads_shifted(ids, stream):
        return numbered(own)
    return None


def reads_shifted(ids: Tensor, stream: Stream) -> bool:
    """Whether ids are those of a stream, one place later."""
    own = stream.ids
    assert own is not None
    return ids.shape == own.shape and bool((ids[:, 1:] == own[:, :-1]).float().mean() > 0.5)


def numbered(ids: Tensor) -> Tensor:
    """The places of a whole stream."""
    return torch.arange(ids.numel(), device=ids.device).view(ids.shape)


def viewed(ids: Tensor, stream: Stream) -> Tensor | None:
    """The places of ids that are a view of the batch: all of them, a step, or a slice."""
    given, own = stream.given, stream.ids
    assert own is not None
    if ids.dtype != given.dtype:
        return None
    base = torch.zeros(given.untyped_storage().nbytes() // given.element_size(), dtype=torch.long)
    places = numbered(own) if own.shape == given.shape and own is given else numbered(own).t()
    base.as_strided(given.shape, given.stride(), given.storage_offset()).copy_(places.cpu())
    return base.as_strided(ids.shape, ids.stride(), ids.storage_offset()).to(ids.device)


def sample_count(batch: Any, streams: list[Stream], batch_first: bool) -> int:
    """Number of samples of a batch."""
    for stream in streams:
        if stream.ids is not None:
            return stream.ids.shape[0]
        return stream.given.shape[0 if batch_first or stream.length == 0 else 1]
    tensors = batch.values() if isinstance(batch, Mapping) else batch
    tensors = [batch] if isinstance(batch, Tensor) else tensors
    return next((x.shape[0] for x in tensors if isinstance(x, Tensor) and x.ndim), 1)
