"""Writes the accuracy page: `python -m regard.testing.accuracy docs/accuracy.md`.

Every score on every engine in every dtype, measured as the contract suite measures it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch

import regard
from regard.testing.cases import DTYPES, CaseSizes, ScoreRow
from regard.testing.contract import QUICK_ENGINES, REFUSALS, EngineCall, expected_support
from regard.testing.run import (
    Case,
    Expected,
    Found,
    draw_inputs,
    measure,
    run_engine,
    run_textbook,
)
from regard.testing.tolerance import yardstick_dtype
from regard.testing.wrappers import SCORES

SIZES = CaseSizes(
    batch=2, heads=4, key_heads=2, value_heads=2, queries=64, keys=96, dim=32, value_dim=32
)
# Triton's interpreter is left out: its errors are not those of a GPU.
ENGINES = QUICK_ENGINES

HEAD = """\
# Accuracy

The error of each score on each engine against the textbook's formula in fp64, beside that of the
textbook itself: the same formula, written out and run in the same dtype. Two numbers stand in each cell:

- the **output**: the largest error, over the largest entry;
- the **worst gradient**: the same of each gradient through the output (query, key, value and every
  parameter of the score), the worst of them. Where a gradient is a sum whose terms cancel, its
  error is over the size of the terms.

Inputs are standard normal and rounded to the dtype first, so that the error is the computation's
alone.

- Sizes: {sizes}.
- Scores that take unequal dims ("unequal", low_rank, projected) have keys of width {key_dim}.
- Seed: a checksum of the case's name, so that the numbers drawn are the same on every machine;
  an error may differ in its last digit with the processor.

In fp64 the textbook is the yardstick itself; what stands there is the rounding by which another
order of summation differs from it.

torch {torch}, regard {regard}, on the CPU. Written by

```bash
python -m regard.testing.accuracy docs/accuracy.md
```

The contract suite holds every engine to twice the error of the textbook and a floor of a few units
in the last place (`regard.testing.tolerance` derives it): output, LSE, entropy, the other statistics
and every gradient, under every mask and option.
"""

TAIL = """\
## What is refused

A dash in the tables is a refusal. Besides what depends on sizes, engines refuse:

{refusals}
"""


def relative(expected: Expected, got: Found) -> str:
    """The error of the output and of the worst gradient, over their sizes."""
    found = {x.what: x.error / x.size for x in measure(expected, got)}
    output = found.pop("output")
    return f"{output:.1e} / {max(found.values()):.1e}"


def measure_row(row: ScoreRow, dtype: torch.dtype, sizes: CaseSizes) -> list[str]:
    """The cells of one score in one dtype: the textbook, then the engines."""
    inputs = draw_inputs(Case(row, dtype, sizes=sizes))
    truth, size = run_textbook(inputs, torch.float64)
    plain, _ = run_textbook(inputs, yardstick_dtype(dtype))
    expected = Expected(inputs, truth, plain, size)
    cells = ["yardstick" if dtype == torch.float64 else relative(expected, plain)]
    for engine in ENGINES:
        served = expected_support(engine, EngineCall(inputs.case))
        got = run_engine(inputs, engine, (), True, "cpu") if served else None
        cells.append("-" if got is None else relative(expected, got))
    return cells


def page(
    scores: Iterable[str] = tuple(SCORES),
    dtypes: Iterable[str] = tuple(DTYPES),
    sizes: CaseSizes = SIZES,
) -> str:
    """The whole page as text."""
    shown = ", ".join(
        f"{name.replace('_', ' ')} {size}" for name, size in sizes._asdict().items() if size
    )
    parts = [
        HEAD.format(
            sizes=shown,
            key_dim=SCORES["bilinear unequal"].dims(sizes)[1],
            torch=torch.__version__.partition("+")[0],
            regard=regard.__version__,
        )
    ]
    for name in dtypes:
        lines = [f"## {name}", "", f"| score | textbook | {' | '.join(ENGINES)} |"]
        lines.append("|---" * (2 + len(ENGINES)) + "|")
        lines += [
            f"| {score} | {' | '.join(measure_row(SCORES[score], DTYPES[name], sizes))} |"
            for score in scores
        ]
        parts.append("\n".join(lines) + "\n")
    refusals = [
        f"- `{engine}`: {', '.join(reason for reason, _ in REFUSALS[engine]) or 'nothing'}"
        for engine in ENGINES
    ]
    parts.append(TAIL.format(refusals="\n".join(refusals)))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page to the path given, or print it."""
    if len(arguments) > 1 or any(x.startswith("-") for x in arguments):
        print("usage: python -m regard.testing.accuracy [PATH]", file=sys.stderr)
        return 2
    text = page()
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
