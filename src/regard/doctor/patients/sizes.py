"""Checks the sizes that a config names before anything is built from them.

A config is a few lines of text: one digit too many, by mistake or on purpose, asks for a model that
fits into no memory. The weights beside it are evidence: every width of a model is a dim of some
tensor.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.doctor.patients.patient import Unusable
from regard.measuring import memory

LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
# Names that transformers gives to all models; `attribute_map` of a config maps them to its own
# names.
WIDTHS = (
    "hidden_size", "embedding_size", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim",
    "d_kv", "d_ff", "head_dim", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "type_vocab_size", "max_position_embeddings", "num_local_experts", "num_labels", "image_size",
)  # fmt: skip
# Smaller sizes are accepted without evidence: files may leave weights out, and the configs of
# rotary models name up to ten million positions.
DEEP, WIDE = 1000, 2**24


class WeightEvidence(NamedTuple):
    """What the files of weights hold: the number of tensors, and the largest dim of any."""

    tensors: float
    largest: float


def evidence(files: Iterable[Path]) -> WeightEvidence:
    """The evidence in the headers of files; infinite if a file has none and so proves nothing."""
    counts, largest = [0.0], [0.0]
    for path in files:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="pt") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
            counts.append(len(shapes))
            largest += [max(shape, default=1) for shape in shapes]
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                counts.append(len(archive.infolist()))
            largest.append(path.stat().st_size)
        else:
            return WeightEvidence(math.inf, math.inf)
    return WeightEvidence(sum(counts), max(largest))


def configs(config: Any) -> Iterator[Any]:
    """A config and the configs inside it, such as those for text and images of one model."""
    yield config
    for inner in vars(config).values():
        if hasattr(inner, "attribute_map"):
            yield from configs(inner)


def check_sizes(folder: Path, config: Any, files: Iterable[Path]) -> None:
    """Raise `Unusable` for a depth or width that does not fit the weights.

    Args:
        folder: the folder, for the message.
        config: the config as transformers reads it.
        files: all files of weights.
    """
    found = evidence(files)
    for part in configs(config):
        for name in (*LAYERS, *WIDTHS):
            size = getattr(part, name, None)
            if not isinstance(size, int):
                continue
            deep = name in LAYERS and size > max(found.tensors, DEEP)
            wide = name in WIDTHS and size > max(found.largest, WIDE)
            if deep or wide:
                held = f"{found.tensors:,.0f} tensors, the largest {found.largest:,.0f} wide"
                raise Unusable(
                    f"{folder}: config.json says {name} = {size:,}, which does not fit weights "
                    f"with {held}. Fix config.json, or use the one that came with the weights"
                )


def check_memory(folder: Path, build: Callable[[], nn.Module]) -> None:
    """Raise `Unusable` for a model that does not fit into memory, counted on the meta device.

    Args:
        folder: the folder, for the message.
        build: makes the model.
    """
    try:
        with torch.device("meta"):
            skeleton = build()
    except Exception:  # loading raises the same error, with a message for the user
        return
    held = [*skeleton.parameters(), *skeleton.buffers()]
    need, free = sum(x.nbytes for x in held), memory.available(torch.device("cpu"))
    if need > free:
        raise Unusable(
            f"{folder}: config.json describes a model of {sum(x.numel() for x in held):,} numbers, "
            f"which need {memory.show(need)} of memory; {memory.show(free)} are free"
        )
