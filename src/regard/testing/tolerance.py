"""How much an engine may err: twice what plain PyTorch errs in the same dtype, and a small floor.

The rule, for every tensor that comes back (output, statistics, each gradient):

    max |engine - oracle|  <=  2 * max |plain - oracle|  +  floor

*oracle* is the textbook in fp64, *plain* the same textbook in the dtype of the case, on the same
rounded inputs. So conditioning, lengths and widths need no constants: a formula that is hard for
plain PyTorch is allowed to be as hard for an engine.

The floor is there because on small tensors plain PyTorch can be right by luck. It is
`FLOOR_ULPS = 4` units in the last place of the largest entry: the result itself is rounded once to
the dtype (half a unit), and so are, at worst, the features of each side and the gradient that is
handed on between an engine and a score (half a unit each, at most doubled by the softmax, whose
weights move by at most twice a relative change of the logits): 0.5 + 3 * 2 * 0.5 = 3.5.

In fp64 plain PyTorch *is* the oracle, and its error would read 0. Rounding errors are proportional
to the unit roundoff, so there the yardstick is the error of plain fp32 times 2**-29, on inputs that
both hold exactly.

Where a value is exact there is no tolerance: infinities and NaN must be where the oracle has them,
and what belongs to a query that sees nothing or a key that nobody sees is exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FACTOR = 2.0
FLOOR_ULPS = 4.0


class Measure(NamedTuple):
    """The errors of one tensor.

    Args:
        what: which tensor, for example "output" or "gradient of key through lse, entropy".
        error: the engine's largest error against the oracle.
        plain: that of plain PyTorch in the same dtype.
        floor: what is allowed besides.
        scale: the oracle's largest entry.
        wrong: what is wrong beyond rounding, empty if nothing.
    """

    what: str
    error: float
    plain: float
    floor: float
    scale: float
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """Whether the engine keeps its promise."""
        return not self.wrong and self.error <= FACTOR * self.plain + self.floor

    @property
    def ratio(self) -> float:
        """The error over what is allowed: above 1 the promise is broken."""
        allowed = FACTOR * self.plain + self.floor
        if self.wrong:
            return float("inf")
        return self.error / allowed if allowed else float("inf" if self.error else 0)

    def __str__(self) -> str:
        """One line."""
        if self.wrong:
            return f"{self.what}: {self.wrong}"
        return (
            f"{self.what}: error {self.error:.2e}, plain PyTorch {self.plain:.2e}, "
            f"allowed {FACTOR * self.plain + self.floor:.2e}, largest entry {self.scale:.2e}"
        )


def yardstick_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of plain PyTorch beside an engine in `dtype`; see the module."""
    return torch.float32 if dtype == torch.float64 else dtype


def compare(
    what: str,
    got: Tensor,
    plain: Tensor,
    oracle: Tensor,
    dtype: torch.dtype,
    exact: Tensor | None = None,
) -> Measure:
    """Measure one tensor of an engine against the oracle.

    Args:
        what: its name in the report.
        got: what the engine gave.
        plain: what plain PyTorch gave in `yardstick_dtype(dtype)`.
        oracle: the truth in fp64.
        dtype: of the case.
        exact: booleans that broadcast to the shape: where True, `got` must equal the oracle.
    """
    if got.shape != oracle.shape:
        wrong = f"has shape {tuple(got.shape)}, expected {tuple(oracle.shape)}"
        return Measure(what, 0, 0, 0, 0, wrong)
    got, plain = got.detach().double(), plain.detach().double()
    oracle = oracle.detach()
    finite = oracle.isfinite()
    error, usual = ((x - oracle).masked_fill(~finite, 0).abs() for x in (got, plain))
    scale = _largest(oracle.masked_fill(~finite, 0).abs())
    shrink = torch.finfo(dtype).eps / torch.finfo(yardstick_dtype(dtype)).eps
    return Measure(
        what,
        error=_largest(error),
        # Where plain PyTorch itself breaks down it allows nothing.
        plain=_largest(usual.nan_to_num(0, 0, 0)) * shrink,
        floor=FLOOR_ULPS * torch.finfo(dtype).eps * scale,
        scale=scale,
        wrong=_pattern(got, oracle, exact),
    )


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _pattern(got: Tensor, oracle: Tensor, exact: Tensor | None) -> str:
    """What differs where nothing may, in words."""
    if bool((got.isnan() != oracle.isnan()).any()):
        return f"NaN in {int(got.isnan().sum())} places, expected {int(oracle.isnan().sum())}"
    if bool((got.isinf() | oracle.isinf()).logical_and(got != oracle).any()):
        return "infinities are not where they belong"
    if exact is not None:
        off = (got != oracle) & ~oracle.isnan() & exact
        if bool(off.any()):
            return f"{int(off.sum())} entries should be exact, one is {float(got[off][0])!r}"
    return ""
