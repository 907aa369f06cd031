"""Counts the kernels that calls of many lengths compile, for a GPU that need not be there.

    python tests/engines/triton/counting.py bfloat16

Training on sentences meets a new length in nearly every batch. Prints JSON: by kernel, how many are compiled for
the first few lengths, and how many more for all later ones. Nothing is compiled or run: a compiler that is never
called takes Triton's place. Not for a process in which Triton interprets.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from tests.engines.triton.compiling import Series, compile_only

import regard
from regard import Mask
from regard.engines.triton import lanes

HEADS, WIDTH, CAPABILITY = 4, 64, 90
TOKENS = 512  # of a batch: its rows follow from the length, as in training
# One of each kind: a block of queries or several, and rows in full and in part.
FIRST = (16, 17, 64, 100)
LATER = (18, 20, 24, 31, 32, 33, 40, 47, 48, 63, 65, 80, 96, 127, 128, 200, 256)


class NotCompiled:
    """Stands for a compiled kernel."""

    hash, asm = "", {"ttgir": ""}


def count_only(capability: int) -> Counter[str]:
    """From here on launches only count the kernels that they would compile, by name."""
    from triton.runtime.jit import JITFunction

    compile_only(capability)
    counted: Counter[str] = Counter()

    def count(self: Any, key: Any, signature: Any, device: Any, *rest: Any) -> NotCompiled:
        counted[self.__name__] += 1
        self.device_caches[device][0][key] = kernel = NotCompiled()
        return kernel

    JITFunction._do_compile = count
    # It reads the code of compiled kernels.
    lanes.trusted = lambda kernel: True
    return counted


def batch(queries: int, keys: int, mask: Mask | None, score: regard.Score, twice: int) -> None:
    """Calls on one batch, forward and backward: the second of a kind has launches of its own."""
    rows = max(TOKENS // max(queries, keys), 1)
    dtype = next(score.parameters()).dtype
    for _ in range(twice):
        given = [
            torch.randn(rows, HEADS, n, WIDTH).to(dtype).requires_grad_()
            for n in (queries, keys, keys)
        ]
        output = regard.attention(*given, score, mask=mask, engine="triton")
        output.float().sum().backward()


def batches(length: int, other: int, score: regard.Score) -> None:
    """What a translator does: an encoder's sentences, a decoder's own, and one looking at the other."""
    rows = max(TOKENS // max(length, other), 1)
    batch(length, length, Mask.lengths(keys=[length] * max(TOKENS // length, 1)), score, 2)
    batch(other, other, Mask.causal(), score, 2)
    batch(other, length, Mask.lengths(keys=[length] * rows), score, 2)


def series(queries: int, keys: int, dtype: torch.dtype) -> None:
    """The kernels around cuDNN of engine `sine`, forward and backward."""
    rows = max(TOKENS // max(queries, keys), 1)
    Series(dtype, 16, WIDTH, 4, rows, queries, keys).make()


def main() -> None:
    """Count for the dtype that the command line names."""
    dtype, counted = getattr(torch, sys.argv[1]), count_only(CAPABILITY)
    score = regard.Additive(WIDTH, HEADS).to(dtype)
    for length in FIRST:
        for other in FIRST:
            batches(length, other, score)
            series(length, other, dtype)
    first = Counter(counted)
    for n, length in enumerate(LATER):
        other = LATER[(7 * n) % len(LATER)]
        batches(length, other, score)
        series(length, other, dtype)
    print(json.dumps({"first": first, "later": counted - first}))


if __name__ == "__main__":
    main()
