"""The fitted series: rows of numbers (`rows`), and tensors to pick rows from (`load`)."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from regard.sine.fit import FIT_GOALS, TABLES_FILE, SeriesRow


class Series(NamedTuple):
    """The rows of one kind and rank as tensors (rows,), frequencies and coefficients (rows, rank)."""

    reach: Tensor
    linear: Tensor
    frequencies: Tensor
    coefficients: Tensor
    error: Tensor
    slope_error: Tensor
    typical: Tensor
    typical_slope: Tensor


# fast: least typical error of the value. matched: the same for value and derivative, for training.
# uniform: least error anywhere within the reach, for a proven bound.
# normal: least mean square error for standard normal a and b; no bound, used only when requested by name.
KINDS = tuple(FIT_GOALS)
# Read once, at import: a compiled graph cannot open a file.
TABLES: dict[str, dict[int, list[SeriesRow]]] = {
    kind: {int(rank): [SeriesRow(**row) for row in rows] for rank, rows in ranks.items()}
    for kind, ranks in json.loads(TABLES_FILE.read_text()).items()
}
# The lowest ranks whose error is at most twice that of an exact kernel with bf16 inputs and outputs:
# FAST_RANK in the output, MATCHED_RANK in the output and in the gradients of a and b. Errors with normal
# a and b, |v|_1 = 5 and fp16 features (benchmarks/results/sine_errors.json): "fast" of rank 4 has 3.7e-3
# in the output (exact 2.5e-3) and 2.6e-2 in the gradient of a. "matched" of rank 7 has 1.6e-3 in the
# output and 2.0e-3 in the gradient of a (exact 1.6e-3); rank 6 has 3.3e-3 there, rank 5 8.1e-3.
FAST_RANK, MATCHED_RANK = 4, 7
_loaded: dict[tuple[str, int, str], Series] = {}


def ranks(kind: str) -> tuple[int, ...]:
    """The fitted ranks of a kind in increasing order."""
    return tuple(sorted(TABLES[kind]))


def rows(kind: str, rank: int) -> list[SeriesRow]:
    """The rows of a kind and rank in order of reach, or an error that lists the fitted ones."""
    if kind not in TABLES:
        near = difflib.get_close_matches(str(kind), TABLES, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown kind of sine series {kind!r}{hint}; kinds: {', '.join(TABLES)}")
    if rank not in TABLES[kind]:
        fitted = ", ".join(map(str, ranks(kind)))
        raise ValueError(f"no sine series of rank {rank!r} was fitted; ranks: {fitted}")
    return TABLES[kind][rank]


def can_lend(kind: str, rank: int) -> bool:
    """Whether this kind has a series of rank - 1 with the same reaches."""
    shorter = TABLES[kind].get(rank - 1)
    return shorter is not None and len(shorter) == len(TABLES[kind][rank])


def load_lending(kind: str, rank: int, device: torch.device | str = "cpu") -> Series:
    """Two tables in one: the rows of a rank, then those of rank - 1 with a last sine of height 0.

    `reach` is that of the first table alone.
    """
    name = (f"{kind}, lending", rank, str(device))
    if name not in _loaded:
        # Made on the CPU: the copy to the device synchronises, so that it is ready for every stream.
        long, short = load(kind, rank, "cpu"), load(kind, rank - 1, "cpu")
        with to_be_kept():
            none = torch.zeros_like(short.linear).unsqueeze(-1)
            padded = {
                "frequencies": torch.cat([short.frequencies, none], -1),
                "coefficients": torch.cat([short.coefficients, none], -1),
            }
            rows = {
                field: torch.cat([getattr(long, field), padded.get(field, getattr(short, field))])
                for field in Series._fields
            }
            lending = Series(**{**rows, "reach": long.reach})
            _loaded[name] = Series(*(x.to(device) for x in lending))
    return _loaded[name]


def load(
    kind: str,
    rank: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Series:
    """The series of a kind and rank on a device, loaded once; `dtype` float64 for inputs of fp64.

    Numbers of the table rounded to fp32 move a logit by 1e-8, more than the bound of the longest series.
    """
    name = (kind, rank, f"{device} {dtype}")
    if name not in _loaded:
        columns = zip(*rows(kind, rank), strict=True)
        with to_be_kept():
            _loaded[name] = Series(*(torch.tensor(x, dtype=dtype, device=device) for x in columns))
    return _loaded[name]


@contextlib.contextmanager
def to_be_kept() -> Iterator[None]:
    """A context in which tensors can be made that outlive the call.

    A tensor made in inference mode cannot be saved for a later backward. One made under a dispatch mode,
    such as FakeTensorMode, holds no data once the mode has ended.
    """
    with torch.inference_mode(False), _disable_current_modes():
        yield
