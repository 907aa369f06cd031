"""The tolerance of an engine: twice the error of plain PyTorch in the same dtype, plus a small floor.

The rule, for every tensor that an engine returns (output, statistics, each gradient):

    max |engine - oracle|  <=  2 * max |plain - oracle|  +  (2 eps + eps_w * logit) * size

*oracle* is the textbook in fp64, *plain* is the same textbook in the dtype of the case, on the same
rounded inputs. So conditioning, lengths and widths need no constants: where a formula loses precision in
plain PyTorch, an engine may lose as much.

The second term is the floor. It is needed because on small tensors plain PyTorch can be exact by
luck. Its size is what storing numbers costs:

- 2 eps of the dtype: half an eps for the result itself, and half an eps each for the features of
  the two sides and for the gradient handed on between an engine and a score.
- eps_w of the working precision (fp32 at least) times the largest |logit| of the case: LSE is one
  number, rounded by eps_w |LSE| / 2, and a tiled engine recomputes its weights as
  exp(logit - LSE), whose argument is rounded by as much again.
- *size* is the largest entry of the result, or of the terms that cancel in it if these are larger.
  For example, the gradient of a bias that is the same for all keys is 0, but a sum of terms that are
  not 0.

In fp64 plain PyTorch *is* the oracle, and its error would read 0. Rounding errors are proportional
to eps, so the yardstick there is the error of plain fp32 times 2**-29, on inputs that fp32 holds
exactly.

Exact values have no tolerance: infinities and NaN must be where the oracle has them, and results for a
query that sees nothing or a key that no query sees must be exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FACTOR = 2.0  # times the error of plain PyTorch
FLOOR_EPS = 2.0  # times eps of the dtype and the size of the result


class Measure(NamedTuple):
    """The errors of one tensor.

    Args:
        what: which tensor, for example "output" or "gradient of key through lse, entropy".
        error: the engine's largest error against the oracle.
        plain: the largest error of plain PyTorch in the same dtype.
        allowed: the largest error that the rule allows.
        size: the largest entry of the oracle, or of the terms that cancel in it.
        wrong: what is wrong beyond rounding, such as a shape; empty if nothing is.
    """

    what: str
    error: float
    plain: float
    allowed: float
    size: float
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """Whether the engine keeps its promise."""
        return self.ratio <= 1

    @property
    def ratio(self) -> float:
        """The error divided by the allowed error; above 1 the promise is broken."""
        if self.wrong or (self.error and not self.allowed):
            return float("inf")
        return self.error / self.allowed if self.allowed else 0.0

    def __str__(self) -> str:
        """One line."""
        if self.wrong:
            return f"{self.what}: {self.wrong}"
        return (
            f"{self.what}: error {self.error:.2e}, allowed {self.allowed:.2e} "
            f"(plain PyTorch {self.plain:.2e}, size {self.size:.2e})"
        )


def yardstick_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which plain PyTorch runs beside an engine in `dtype`; see the module's docstring."""
    return torch.float32 if dtype == torch.float64 else dtype


def compare(
    what: str,
    got: Tensor,
    plain: Tensor,
    oracle: Tensor,
    dtype: torch.dtype,
    *,
    size: float = 0.0,
    logit: float = 0.0,
    exact: Tensor | None = None,
) -> Measure:
    """The errors of one tensor of an engine against the oracle.

    Args:
        what: its name in the report.
        got: the result of the engine.
        plain: the result of plain PyTorch in `yardstick_dtype(dtype)`.
        oracle: the result in fp64.
        dtype: of the case.
        size: of the terms that cancel in the result, if they are larger than the result itself.
        logit: the largest |logit| of the case.
        exact: booleans that broadcast to the shape: where True, `got` must equal the oracle.
    """
    if got.shape != oracle.shape:
        wrong = f"has shape {tuple(got.shape)}, expected {tuple(oracle.shape)}"
        return Measure(what, 0, 0, 0, 0, wrong)
    got, plain, oracle = got.detach().double(), plain.detach().double(), oracle.detach()
    finite = oracle.isfinite()
    error, usual = ((x - oracle).masked_fill(~finite, 0).abs() for x in (got, plain))
    size = max(size, _largest(oracle.masked_fill(~finite, 0).abs()))
    eps = torch.finfo(dtype).eps
    working = min(eps, torch.finfo(torch.float32).eps)
    # NaN or infinity in plain PyTorch is no excuse for the engine: it counts as an error of 0.
    usual_error = _largest(usual.nan_to_num(0, 0, 0)) * eps
    usual_error /= torch.finfo(yardstick_dtype(dtype)).eps
    return Measure(
        what,
        error=_largest(error),
        plain=usual_error,
        allowed=FACTOR * usual_error + (FLOOR_EPS * eps + working * logit) * size,
        size=size,
        wrong=_pattern(got, oracle, exact),
    )


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _pattern(got: Tensor, oracle: Tensor, exact: Tensor | None) -> str:
    """What differs in places that must agree exactly, in words; empty if nothing does."""
    if bool((got.isnan() != oracle.isnan()).any()):
        return f"NaN in {int(got.isnan().sum())} places, expected {int(oracle.isnan().sum())}"
    if bool(((got.isinf() | oracle.isinf()) & (got != oracle)).any()):
        return "infinities are not where they belong"
    if exact is not None:
        off = (got != oracle) & ~oracle.isnan() & exact
        if bool(off.any()):
            return f"{int(off.sum())} entries should be exact, one is {float(got[off][0])!r}"
    return ""
