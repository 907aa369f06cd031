"""Counts the kernels that few queries are compiled to over many numbers of keys, for a GPU that need not be there.

    python tests/engines/triton/lengths.py 90

As `compiling.py`: kernels are compiled and not run. One line of JSON for each kind of call, with the number of
kernels of each name after the first length, and after all of them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable

import torch
from compiling import compile_only

import regard
from regard import Mask

# A sole key, numbers that 16 divides and others, one block and many, one part and many.
LENGTHS = (5, 1, 16, 30, 31, 512, 1500, 4096, 5003)
BATCH, HIDDEN, VALUE = 2, 64, 48


def tensors(keys: int, heads: int, queries: int = 1) -> list[torch.Tensor]:
    """Query, key and value in bf16."""
    shapes = ((queries, HIDDEN), (keys, HIDDEN), (keys, VALUE))
    return [torch.randn(BATCH, heads, *s).bfloat16().requires_grad_() for s in shapes]


def plain(keys: int) -> None:
    """One query without options, forward and backward."""
    score = regard.Additive(HIDDEN, 2).bfloat16()
    regard.attention(*tensors(keys, 2), score, engine="triton").sum().backward()


def masked(keys: int) -> None:
    """Three queries, a mask by sequence and a bias for each pair."""
    seen = torch.rand(BATCH, 1, 1, keys) < 0.9
    bias = torch.randn(BATCH, 2, 3, keys, requires_grad=True)
    score = regard.Additive(HIDDEN, 2).bfloat16()
    given = {"mask": Mask.dense(seen), "bias": bias, "engine": "triton"}
    regard.attention(*tensors(keys, 2, 3), score, **given).float().sum().backward()


def stepped(keys: int) -> None:
    """A decoder's step with weights, gradients that are added up, and hidden keys."""
    from regard.engines.step_plan import steps

    _, key, value = (x.detach() for x in tensors(keys, 1))
    a, v = torch.randn(BATCH, HIDDEN).bfloat16(), torch.randn(1, HIDDEN).bfloat16()
    visible, total = torch.ones(BATCH, keys, dtype=torch.bool), torch.zeros(BATCH, 1, keys)
    given = (key, v.dtype, value, visible, "tanh", 0.0)
    launches = steps().launches_for(steps().step_signature((1, 1), *given))
    over = steps().MemorySteps(launches, key, value, visible)
    over.step(a, v, total, False)
    found = over.step(a, v, total, True)
    sums = (*over.new_sides(), over.new_copies())
    known = (torch.randn(BATCH, 1, VALUE).bfloat16(), found.output, found.weights)
    over.backward(a, v, known, found.weights, sums, True)
    over.context(a, v)
    launches.of_v(sums[2], keys)


CALLS: dict[str, Callable[[int], None]] = {"plain": plain, "masked": masked, "stepped": stepped}


def main() -> None:
    """Compile all, and count."""
    kernels = compile_only(int(sys.argv[1]))
    for name, call in CALLS.items():
        kernels.clear()
        call(LENGTHS[0])
        first = Counter(kernel for kernel, _ in kernels)
        for keys in LENGTHS[1:]:
            call(keys)
        last = Counter(kernel for kernel, _ in kernels)
        print(json.dumps({"call": name, "first": first, "last": last}), flush=True)


if __name__ == "__main__":
    main()
