"""Settings (the sizes of one comparison) and suites (named lists of settings).

A setting is identified by its sizes, so a setting that two suites share is measured once.
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
# The most useful widths first: a budget may end a run early.
HIDDEN = (16, 64, 32, 128)


@dataclass(frozen=True)
class Setting:
    """Sizes of one comparison.

    Args:
        name: its title; not part of `key`.
        loop: one call for each query, as in a recurrent decoder, instead of one call for all queries.
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
        """The sizes as one word, which identifies the setting in results."""
        sizes = f"b{self.batch}-h{self.heads}-q{self.len_q}-k{self.len_k}-n{self.hidden}"
        return f"{sizes}-v{self.value_dim}-{self.dtype}{'-loop' * self.loop}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        import torch  # imported here: the options are parsed before torch is loaded

        return getattr(torch, self.dtype)

    @property
    def all_heads(self) -> int:
        """Number of heads over all batch entries."""
        return self.batch * self.heads

    @property
    def pairs(self) -> int:
        """Query-key pairs in one call; a loop makes one call for each query."""
        queries = 1 if self.loop else self.len_q
        return self.all_heads * queries * self.len_k

    @property
    def numbers(self) -> int:
        """Elements of the [Q, L, hidden] tensor that the textbook builds, over all heads."""
        return self.pairs * self.hidden

    @property
    def by_wall(self) -> bool:
        """Whether wall-clock time is what matters to a caller.

        In a small call the device waits for Python and kernel launches, and so does the caller.
        """
        return self.loop or self.all_heads * self.len_q * self.len_k < 2**20

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs that all candidates share, as they are drawn in fp32."""
        columns = self.hidden + self.value_dim + DOT_DIM
        return 4 * self.all_heads * (self.len_q + self.len_k) * columns

    def with_heads(self, count: int) -> Setting:
        """The same setting with batch 1 and at most `count` heads."""
        return replace(self, batch=1, heads=min(count, self.heads))

    def title(self) -> str:
        """The name and sizes, for tables and progress."""
        heads = f"{self.heads} head{'s' * (self.heads > 1)}"
        loop = ", query by query" if self.loop else ""
        return (
            f"{self.name}: batch {self.batch}, {heads}, {self.len_q} x {self.len_k}{loop}, "
            f"hidden {self.hidden}, value {self.value_dim}, {self.dtype}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        return asdict(self)


def usual_dtype(device: str) -> str:
    """The dtype of a device's suites: bf16 on a GPU, whose matrix units are fast at it, else fp32."""
    return "bfloat16" if device == "cuda" else "float32"


def square(device: str, lengths: Sequence[int], hidden: Sequence[int]) -> list[Setting]:
    """Settings of self-attention, by length and hidden width."""
    batch, heads = (4, 16) if device == "cuda" else (1, 8)
    dtype = usual_dtype(device)
    return [
        Setting(f"square {length}, hidden {width}", batch, heads, length, length, width, 64, dtype)
        for width in hidden
        for length in lengths
    ]


def shapes(device: str) -> list[Setting]:
    """Settings with shapes of published models."""
    dtype = usual_dtype(device)
    return [
        Setting("NMT decoder 512", 64, 1, 1, 30, 512, 512, dtype),
        Setting("NMT decoder 1000", 64, 1, 1, 30, 1000, 1000, dtype),
        Setting("speech", 16, 1, 100, 1500, 128, 512, dtype, loop=True),
        Setting("Luong parallel 256", 64, 1, 50, 50, 256, 256, dtype),
        Setting("Luong parallel 512", 64, 1, 50, 50, 512, 512, dtype),
    ]


def bars(device: str) -> list[Setting]:
    """The settings that the bars apply to (`bars.py`)."""
    if device == "cuda":
        return square(device, [4096], [16, 64])
    return square(device, [1024], [16])


def first_look(device: str) -> list[Setting]:
    """What `--quick` measures alone: one long and one short self-attention, one step of a decoder."""
    short, long = square(device, QUICK_LENGTHS[device], HIDDEN[:1])
    return [long, shapes(device)[0], short]


SUITES = {
    "bars": "the ratios that the engines must reach",
    "shapes": "shapes that people run: NMT decoders, speech, Luong's parallel attention",
    "square": "self-attention by length and hidden width",
}
# A suite that runs only when it is asked for, and by itself: its candidates are layers over edges.
GRAPH = "graph"


def suite(
    name: str,
    device: str,
    *,
    lengths: Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    quick: bool = False,
) -> list[Setting]:
    """The settings of a suite, the most important first.

    `lengths` and `hidden` set the sizes of `square`, whose defaults depend on the device.
    """
    if name == "bars":
        return bars(device)
    if name == "shapes":
        return shapes(device)
    usual = QUICK_LENGTHS if quick else LENGTHS
    return square(device, lengths or usual[device], hidden or (HIDDEN[:1] if quick else HIDDEN))
