"""The shape at which scores are compared, and its spelling on the command line, `key=value,key=value`.

Nothing here loads torch: the command line and its completion read shapes before torch is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

EXAMPLE = "d_q=256,d_k=128,len=1024,heads=8"
DTYPES = ("float32", "bfloat16", "float16")
LARGEST = 2**40

# Every key of the spelling, with its description in `--help`.
KEYS = {
    "d_q": "width of a query vector (needed)",
    "d_k": "width of a key vector (default d_q)",
    "len": "queries and keys; len_q and len_k set them apart",
    "len_q": "queries (default len)",
    "len_k": "keys (default len)",
    "heads": "query heads (default 1)",
    "key_heads": "key and value heads, a divisor of heads (default heads)",
    "d_v": "width of a value vector (default width)",
    "width": "width of projections for each head (default min(64, d_q, d_k))",
    "hidden": "hidden units of additive and GATv2 for each head (default 16)",
    "rank": "rank of the low-rank bilinear score (default min(16, width))",
    "batch": "sequences at once (default 1)",
    "dtype": "float32, bfloat16 or float16 (default float32)",
    "causal": "1 hides the keys after each query (default 0)",
}


class ShapeError(ValueError):
    """An invalid shape; the message names the key, what was given and what would work."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention call.

    Query (batch, heads, len_q, d_q), key (batch, key_heads, len_k, d_k) and value (batch,
    key_heads, len_k, d_v). Each head has its own vectors, so scores without parameters can be compared
    too. A projection costs the same arithmetic as on vectors that heads share.
    """

    d_q: int
    d_k: int
    len_q: int
    len_k: int
    heads: int
    key_heads: int
    d_v: int
    width: int
    hidden: int
    rank: int
    batch: int
    dtype: str
    causal: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        import torch  # imported here: the command line reads a shape before it loads torch

        return getattr(torch, self.dtype)

    @property
    def pairs(self) -> int:
        """Number of query-key pairs over all heads and sequences."""
        return self.batch * self.heads * self.len_q * self.len_k

    def __str__(self) -> str:
        """The spelling from which `parse_shape` reads this shape."""
        same = self.len_q == self.len_k
        lengths = f"len={self.len_q}" if same else f"len_q={self.len_q},len_k={self.len_k}"
        grouped = "" if self.key_heads == self.heads else f",key_heads={self.key_heads}"
        return (
            f"d_q={self.d_q},d_k={self.d_k},{lengths},heads={self.heads}{grouped},d_v={self.d_v},"
            f"width={self.width},hidden={self.hidden},rank={self.rank},batch={self.batch},"
            f"dtype={self.dtype},causal={int(self.causal)}"
        )

    def as_dict(self) -> dict[str, int | str | bool]:
        """All sizes by name."""
        return dataclasses.asdict(self)


def parse_shape(text: str) -> Shape:
    """The shape spelled `key=value,key=value`; see `KEYS`.

    Raises:
        ShapeError: a key is unknown, repeated or missing, or its value is out of range.
    """
    given = _split(text)
    sizes = {name: _size(name, value) for name, value in given.items() if name != "dtype"}
    if "d_q" not in sizes:
        raise _error("d_q is missing: it is the width of a query vector")
    for name in ("len_q", "len_k"):
        if name not in sizes and "len" not in sizes:
            raise _error(f"len is missing, and so is {name}: give len, or both len_q and len_k")
    d_q = sizes["d_q"]
    d_k = sizes.get("d_k", d_q)
    heads = sizes.get("heads", 1)
    width = sizes.get("width", min(64, d_q, d_k))
    shape = Shape(
        d_q=d_q,
        d_k=d_k,
        len_q=sizes.get("len_q", sizes.get("len", 0)),
        len_k=sizes.get("len_k", sizes.get("len", 0)),
        heads=heads,
        key_heads=sizes.get("key_heads", heads),
        d_v=sizes.get("d_v", width),
        width=width,
        hidden=sizes.get("hidden", 16),
        rank=sizes.get("rank", min(16, width)),
        batch=sizes.get("batch", 1),
        dtype=_dtype(given.get("dtype", "float32")),
        causal=bool(sizes.get("causal", 0)),
    )
    _check(shape)
    return shape


def _split(text: str) -> dict[str, str]:
    if not text.strip():
        raise _error("it is empty")
    given: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise _error(f"{item.strip()!r} is not key=value")
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise _error(f"unknown key {name!r} in {item.strip()!r}{hint}")
        if name in given:
            raise _error(f"{name} is given twice: {given[name]!r} and {value!r}")
        given[name] = value
    return given


def _size(name: str, value: str) -> int:
    if name == "causal":
        if value not in ("0", "1"):
            raise _error(f"causal must be 0 or 1, got {value!r}")
        return int(value)
    digits = value.replace("_", "")
    # Check the number of digits first: `int` raises ValueError for more than 4300.
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) > 0):
        raise _error(f"{name} must be a positive whole number, got {value!r}")
    if int(digits) > LARGEST:
        raise _error(f"{name} is too large: {value}")
    return int(digits)


def _dtype(value: str) -> str:
    if value not in DTYPES:
        raise _error(f"dtype must be one of {', '.join(DTYPES)}, got {value!r}")
    return value


def _check(shape: Shape) -> None:
    if shape.heads % shape.key_heads:
        raise _error(f"key_heads={shape.key_heads} does not divide heads={shape.heads}")
    if shape.causal and shape.len_q > shape.len_k:
        raise _error(
            f"causal=1 needs len_q <= len_k, got {shape.len_q} and {shape.len_k}: the last query is "
            "aligned with the last key, so the first queries would see no key"
        )


def _error(problem: str) -> ShapeError:
    stop = "" if problem.endswith("?") else "."
    return ShapeError(f"shape: {problem}{stop} Keys: {', '.join(KEYS)}. Example: {EXAMPLE}")
