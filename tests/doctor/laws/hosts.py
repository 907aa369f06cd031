"""The hosts of planted faults and of healthy checks: builders, batches, and what they declare.

Hosts with `apart=True` were not looked at while laws and their thresholds were made: their counts are
reported alone, and nothing may be tuned on them.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import huggingface, kept_apart
from .cached import CachedDecoder
from .faults import FAULTS, OUTSIDE
from .handmade import DIM, WORDS, Bahdanau, Pooling, Small, Torch, Whole

B, T, SOURCE = 4, 14, 11
MASKS = ("shifted-mask", "no-causal-mask", "inverted-causal", "no-padding-mask", "inverted-padding",
         "padding-of-wrong-side")  # fmt: skip
ALONG = ("no-padding-mask", "inverted-padding", "mask-after-softmax", "softmax-over-batch",
         "zero-queries", "weights-without-gradient", "dropout-left-on", "detached-keys")  # fmt: skip


class Host(NamedTuple):
    """A model that faults are planted in.

    Attributes:
        name: of the host.
        build: from faults by layer to the model.
        batch: makes its batch.
        layers: number of attention layers that a fault may be planted in.
        site: the name of the attention call of a layer; "" for any.
        has: what it has, as `Fault.needs` says.
        options: what a user declares to `check`.
        faults: the faults that can be planted; None for all that `has` allows.
        apart: whether it was kept apart.
    """

    name: str
    build: Callable[[Mapping[int, str]], nn.Module]
    batch: Callable[[], Any]
    layers: int
    site: str
    has: tuple[str, ...]
    options: dict[str, Any] = {}  # noqa: RUF012
    faults: tuple[str, ...] | None = None
    apart: bool = False

    def plantable(self) -> list[str]:
        """The faults that are faults here."""
        names = FAULTS if self.faults is None else self.faults
        own = {*self.has, "masked"} if {"causal", "padding"} & set(self.has) else set(self.has)
        return [x for x in names if set(FAULTS[x].needs) <= own]


def tokens(*size: int) -> Tensor:
    return torch.randint(3, WORDS, size)


def real(length: int = T, left: bool = False) -> Tensor:
    mask = torch.ones(B, length, dtype=torch.long)
    mask[1, -4:] = mask[2, -2:] = 0
    return mask.flip(1) if left else mask


def ids_and_mask(left: bool = False, labels: bool = False) -> dict[str, Tensor]:
    ids = tokens(B, T)
    found = {"input_ids": ids, "attention_mask": real(left=left)}
    return found | ({"labels": ids.clone()} if labels else {})


def two_streams() -> dict[str, Tensor]:
    return {
        "input_ids": tokens(B, SOURCE), "attention_mask": real(SOURCE), "labels": tokens(B, T),
    }  # fmt: skip


def small(
    name: str, has: tuple[str, ...], options: dict[str, Any] | None = None, **made: Any
) -> Host:
    vectors = made.get("vectors", False)
    positions = made.get("positions", "table")
    causal = made.setdefault("causal", False)

    def batch() -> Any:
        x = torch.randn(B, T, DIM) if vectors else tokens(B, T)
        return {"x": x, "attention_mask": real(left=causal)} if "padding" in has else x

    has += (positions,) + (("causal",) if causal else ()) + ("own-queries",)
    given = {"causal": causal} | (options or {})
    return Host(
        name, lambda faults: Small(faults, **made), batch, 3, "blocks.{}.attention", has, given
    )


def of_transformers(
    kind: str, batch: Callable[[], Any], site: str, has: tuple[str, ...], layers: int = 3,
    faults: tuple[str, ...] | None = None, apart: bool = False, **more: Any,
) -> Host:  # fmt: skip
    # Positions of transformers are not ours to lose.
    inside = tuple(
        x for x in FAULTS if x not in ("rotary-lost", "rotary-on-queries-only", "positions-lost")
    )
    return Host(kind, lambda f: huggingface.built(kind, f, **more), batch, layers, site,
                (*has, "own-queries"), {}, faults or inside, apart)  # fmt: skip


def cached(name: str, rotary: bool, pairs: bool) -> Host:
    def batch() -> dict[str, Tensor]:
        return {"x": tokens(B, T), "attention_mask": real(left=True)}

    made = ("weights-in-half", "positions-restart", "cache-turned", "newest-key-hidden", *MASKS)
    return Host(name, lambda f: CachedDecoder(f, rotary=rotary, pairs=pairs), batch, 3, "blocks.{}",
                ("causal", "padding", "own-queries", "cache", *(("own-cache",) if rotary else ())),
                {"causal": True}, made)  # fmt: skip


HOSTS = (
    cached("cached-decoder", rotary=False, pairs=False),
    cached("cached-decoder-rotary", rotary=True, pairs=True),
    small("decoder-sdpa", ("padding",), causal=True),
    small("decoder-matmul-rotary", (), {"positions": "rotary"}, causal=True, how="matmul",
          positions="rotary", form="tuple"),
    small("decoder-einsum-no-positions", ("padding",), causal=True, how="einsum", positions="none",
          form="dict"),
    small("encoder-vectors", ("padding",), how="matmul", vectors=True),
    small("encoder-pooled", ("padding",), pooled=True),
    Host("whole-decoder", Whole, lambda: tokens(B, T), 2, "Whole", ("causal", "own-queries"),
         # Of attention in the model itself only the first call is asked whether it mixes tokens.
         {"causal": True}, tuple(x for x in FAULTS if x not in OUTSIDE and x not in
                                 ("heads-by-view", "queries-by-view"))),
    Host("torch-decoder", lambda f: Torch(f, causal=True),
         lambda: (tokens(B, T), real(left=True) == 0), 3, "layers.{}.self_attn", ("causal", "padding", "table"),
         {"causal": True}, (*MASKS, "positions-lost")),
    Host("torch-encoder-tokens-first", lambda f: Torch(f, causal=False, seq_first=True),
         lambda: (tokens(T, B), real() == 0), 3, "layers.{}.self_attn", ("padding", "table"),
         {}, (*MASKS, "positions-lost")),
    of_transformers("GPT2LMHeadModel", lambda: ids_and_mask(left=True, labels=True), "transformer.h.{}.attn",
                    ("causal", "padding", "cache")),
    of_transformers("BertForMaskedLM", ids_and_mask, "bert.encoder.layer.{}.attention.self", ("padding",)),
    of_transformers("ViTModel", lambda: {"pixel_values": torch.randn(B, 3, 32, 32)},
                    "layers.{}.attention", ()),
    of_transformers("T5ForConditionalGeneration", two_streams, "decoder.block.{}.layer.0.SelfAttention",
                    ("causal",), 2, inside="decoder.*SelfAttention"),
    Host("bahdanau", Bahdanau,
         lambda: {"source": tokens(B, SOURCE), "lengths": torch.tensor([11, 7, 9, 10]),
                  "target": tokens(B, 5)}, 1, "score", ("padding",), {"causal": True},
         (*ALONG, "detached-queries")),
    Host("pooling", Pooling, lambda: {"x": torch.randn(B, T, DIM), "padding_mask": real() == 0}, 1, "pool",
         ("padding",), {}, (*(x for x in ALONG if x != "detached-keys"), "softmax-over-queries")),
    *kept_apart.hosts(),
)  # fmt: skip
