"""What is measured: settings by their sizes, and suites of settings by name.

A setting is known by its sizes alone, so that suites which share one measure it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DOT_DIM = 64
LENGTHS = {"cuda": (512, 1024, 2048, 4096, 8192, 16384, 32768), "cpu": (256, 512, 1024, 2048)}
QUICK_LENGTHS = {"cuda": (512, 2048), "cpu": (256, 512)}
# The most asked for first: a budget may end a run early.
HIDDEN = (16, 64, 32, 128)


@dataclass(frozen=True)
class Setting:
    """Sizes of one comparison.

    Args:
        name: what it is called; not part of what it is.
        loop: one call for each query, as a recurrent decoder makes them, in place of one for all.
    """

    name: str
    batch: int
    heads: int
    len_q: int
    len_k: int
    hidden: int
    value_dim: int
    dtype: str
    loop: bool = False

    @property
    def key(self) -> str:
        """The sizes as one word."""
        sizes = f"b{self.batch}-h{self.heads}-q{self.len_q}-k{self.len_k}-n{self.hidden}"
        return f"{sizes}-v{self.value_dim}-{self.dtype}{'-loop' * self.loop}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype by torch's own name."""
        import torch  # late: options are read before it is loaded

        return getattr(torch, self.dtype)

    @property
    def all_heads(self) -> int:
        """Heads of all batch entries together."""
        return self.batch * self.heads

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key of one call; in a loop there is one for each query."""
        queries = 1 if self.loop else self.len_q
        return self.all_heads * queries * self.len_k

    @property
    def numbers(self) -> int:
        """Numbers in the tensor that the textbook builds."""
        return self.pairs * self.hidden

    @property
    def by_wall(self) -> bool:
        """Whether the clock on the wall counts for a caller.

        A small call waits for the program that launches it, and that is what its user waits for.
        """
        return self.loop or self.all_heads * self.len_q * self.len_k < 2**20

    @property
    def input_bytes(self) -> int:
        """Of the tensors that every candidate is given, as they are drawn in fp32."""
        columns = self.hidden + self.value_dim + DOT_DIM
        return 4 * self.all_heads * (self.len_q + self.len_k) * columns

    def with_heads(self, count: int) -> Setting:
        """The same with at most that many heads of one batch entry."""
        return replace(self, batch=1, heads=min(count, self.heads))

    def title(self) -> str:
        """The sizes for a person."""
        heads = f"{self.heads} head{'s' * (self.heads > 1)}"
        loop = ", query by query" if self.loop else ""
        return (
            f"{self.name}: batch {self.batch}, {heads}, {self.len_q} x {self.len_k}{loop}, "
            f"hidden {self.hidden}, value {self.value_dim}, {self.dtype}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def usual_dtype(device: str) -> str:
    """Half precision where matrix units are fast at it."""
    return "bfloat16" if device == "cuda" else "float32"


def square(device: str, lengths: Sequence[int], hidden: Sequence[int]) -> list[Setting]:
    """Self-attention, by length and hidden width."""
    batch, heads = (4, 16) if device == "cuda" else (1, 8)
    dtype = usual_dtype(device)
    return [
        Setting(f"square {length}, hidden {width}", batch, heads, length, length, width, 64, dtype)
        for width in hidden
        for length in lengths
    ]


def shapes(device: str) -> list[Setting]:
    """The shapes that people run."""
    dtype = usual_dtype(device)
    return [
        Setting("NMT decoder 512", 64, 1, 1, 30, 512, 512, dtype),
        Setting("NMT decoder 1000", 64, 1, 1, 30, 1000, 1000, dtype),
        Setting("speech", 16, 1, 100, 1500, 128, 512, dtype, loop=True),
        Setting("Luong parallel 256", 64, 1, 50, 50, 256, 256, dtype),
        Setting("Luong parallel 512", 64, 1, 50, 50, 512, 512, dtype),
    ]


def bars(device: str) -> list[Setting]:
    """The settings that bars are set for (`bars.py`)."""
    if device == "cuda":
        return square(device, [4096], [16, 64])
    return square(device, [1024], [16])


SUITES = {
    "bars": "the ratios that the engines must reach",
    "shapes": "shapes that people run: NMT decoders, speech, Luong's parallel attention",
    "square": "self-attention by length and hidden width",
}


def suite(
    name: str,
    device: str,
    *,
    lengths: Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    quick: bool = False,
) -> list[Setting]:
    """The settings of a suite, the most important first.

    `lengths` and `hidden` choose the sizes of `square`, whose usual ones depend on the device.
    """
    if name == "bars":
        return bars(device)
    if name == "shapes":
        return shapes(device)
    usual = QUICK_LENGTHS if quick else LENGTHS
    return square(device, lengths or usual[device], hidden or (HIDDEN[:1] if quick else HIDDEN))
