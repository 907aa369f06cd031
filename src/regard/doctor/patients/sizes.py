"""Whether the sizes that a config names are to be believed, before anything is built from them.

A config is a few lines of text: one typed digit more, or one made to do harm, asks for a model that no
memory holds. The weights beside it are evidence: what a model is wide in, some tensor of it is too.
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
# As transformers names them for every model; `attribute_map` of a config leads to its own names.
WIDTHS = (
    "hidden_size", "embedding_size", "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim",
    "d_kv", "d_ff", "head_dim", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "type_vocab_size", "max_position_embeddings", "num_local_experts", "num_labels", "image_size",
)  # fmt: skip
# Up to here nothing is proved by what is not in the files: weights may be left out, and rotary models
# say that they see ten million positions.
DEEP, WIDE = 1000, 2**24


class WeightEvidence(NamedTuple):
    """What the files of weights hold: how many tensors, and the largest dim of one."""

    tensors: float
    largest: float


def evidence(files: Iterable[Path]) -> WeightEvidence:
    """Read from the headers alone; a file that has none proves nothing, and is infinite."""
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
    """A config and those inside of it, as of the towers of a model for text and images."""
    yield config
    for inner in vars(config).values():
        if hasattr(inner, "attribute_map"):
            yield from configs(inner)


def check_sizes(folder: Path, config: Any, files: Iterable[Path]) -> None:
    """Refuse a depth or a width that the weights cannot have.

    Args:
        folder: for the message.
        config: as transformers reads it.
        files: all weights.
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
                    f"{folder}: config.json says {name} = {size:,}, which is not to be believed of "
                    f"weights with {held}. Put config.json right, or take that of the weights"
                )


def check_memory(folder: Path, build: Callable[[], nn.Module]) -> None:
    """Refuse a model that does not fit, counted on a skeleton without numbers.

    Args:
        folder: for the message.
        build: makes the model.
    """
    try:
        with torch.device("meta"):
            skeleton = build()
    except Exception:  # the reader meets it too, and says it with the weights at hand
        return
    held = [*skeleton.parameters(), *skeleton.buffers()]
    need, free = sum(x.nbytes for x in held), memory.available(torch.device("cpu"))
    if need > free:
        raise Unusable(
            f"{folder}: config.json describes a model of {sum(x.numel() for x in held):,} numbers: "
            f"{memory.show(need)}, with {memory.show(free)} free"
        )
