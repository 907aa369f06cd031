"""Large tensors in one safetensors file: written piece by piece, mapped into memory when they are read.

The file names the checksum of its content, so that one that was cut off or changed is refused, not half read.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.measuring.files import write_atomic
from regard.recipes.estimator import RecipeError

ENTRY = "regard-index"
PIECE = 2**26  # bytes that are written or checked at once
DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the tensors and facts, atomically, with no second copy in memory."""
    views = {name: as_bytes(x) for name, x in tensors.items()}
    entries, place = {}, 0
    for name, x in tensors.items():
        end = place + views[name].size
        entries[name] = {
            "dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [place, end],
        }  # fmt: skip
        place = end
    told = {**facts, "checksum": checksum(views)}
    header = json.dumps({"__metadata__": {ENTRY: json.dumps(told)}, **entries}).encode()
    header += b" " * (-len(header) % 8)  # as the format asks, so that tensors are aligned

    def content() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(header)) + header
        for view in views.values():
            yield from pieces(view)

    write_atomic(path, content())


def read_tensors(path: Path, verify: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and the tensors, which stay on the disk until they are used.

    Raises:
        RecipeError: there is no such file, it was cut off or changed, or it is no index.
    """
    import safetensors

    if not path.is_file():
        raise RecipeError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[ENTRY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        known = facts["checksum"]
    # A RecursionError is JSON that is nested too deeply.
    except (
        safetensors.SafetensorError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise RecipeError(f"{path} is no saved index, or was cut off ({error})") from None
    if verify and checksum({name: as_bytes(x) for name, x in tensors.items()}) != known:
        raise RecipeError(
            f"{path} is damaged: its content has another checksum than when it was saved"
        )
    return facts, tensors


def checksum(views: Mapping[str, np.ndarray]) -> int:
    """The CRC-32 of all bytes, tensors in the order of their names."""
    found = 0
    for name in sorted(views):
        for piece in pieces(views[name]):
            found = zlib.crc32(piece, found)
    return found


def as_bytes(x: Tensor) -> np.ndarray:
    """The bytes of a tensor on the CPU, not copied if it is contiguous."""
    own = x.detach().cpu().contiguous()
    flat = own.view(-1) if math.prod(own.shape) else own.new_zeros(0)
    return flat.view(torch.uint8).numpy()


def pieces(view: np.ndarray) -> Iterator[memoryview]:
    """The bytes in pieces."""
    for first in range(0, view.size, PIECE):
        yield view[first : first + PIECE].data
