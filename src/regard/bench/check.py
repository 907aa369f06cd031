"""The error of a candidate against fp64, and the gate that decides whether its time is shown.

**The rule.** Errors are relative: |x - truth| / |truth|, where truth is the formula in fp64. Let e be
the error of the textbook formula, eager and in the dtype of the setting.

- The error of the output may be at most `max(2 e, r) + stated`.
- The error of the gradient of a (of the query, for dot) may be at most `max(2 e, 2 r) + stated`.
- The errors of the gradients of b, value and v may be at most `max(16 e, 2 r) + 2 stated`, where e is
  the worst of all gradients. These gradients are sums whose terms cancel, so their relative errors
  vary by chance.

`stated` is 0 for an exact candidate; an approximate one declares it for the output and for the
gradient (`Candidate.stated`). r is the error of rounding the result once to the dtype, 3.9e-3 in bf16;
it matters where the textbook's own error happens to be small. In fp32 r is 16 roundings, 128 for
gradients, because sums may be computed in another order.

Rows of queries are independent, so a sample of rows is compared. The candidate runs at full size with
an output gradient that is 0 on all other rows. The formula runs on the sampled rows against all keys,
in blocks that fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.bench.candidate import BOTH, FORWARD, Stated, Work
from regard.bench.peers import dot, textbook_summed
from regard.bench.results import Pass
from regard.bench.tensors import Tensors
from regard.measuring.errors import allowed, distance, spread_rows, worst

FACTOR, OTHERS_FACTOR = 2.0, 16.0
# The least limit (`measuring.errors.rounding`): in eps of the dtype or of fp32, whichever is larger.
OUTPUT_ROUNDINGS, GRADIENT_ROUNDINGS = (0.5, 8.0), (1.0, 128.0)
MOST_ROWS = 64
# Limits on elements of the [B, H, rows, L, N] tensor: for all sampled rows together, and for one block.
ALL_NUMBERS = {"cuda": 2**31, "cpu": 2**25}
BLOCK_NUMBERS = {"cuda": 2**26, "cpu": 2**22}


class Wrong(Exception):
    """The error of a pass is too large, so it gets no time; the message says how large it is."""


class PassErrors(NamedTuple):
    """Relative errors of one pass, with the textbook's errors in the same dtype and the limits.

    The gradient fields are None if only a forward pass was checked.
    """

    output: float
    plain_output: float
    output_limit: float
    gradient: float | None = None
    plain_gradient: float | None = None
    gradient_limit: float | None = None
    others: float | None = None
    others_limit: float | None = None

    @property
    def output_passed(self) -> bool:
        """Whether the output's error is within its limit; NaN fails the comparison."""
        return self.output <= self.output_limit

    @property
    def gradient_passed(self) -> bool:
        """Whether all gradients are within their limits; NaN fails the comparison."""
        pairs = ((self.gradient, self.gradient_limit), (self.others, self.others_limit))
        return all(x is not None and y is not None and x <= y for x, y in pairs)


class Truth:
    """Reference results on sampled rows, in fp64 and in the setting's dtype, cached by formula."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        s = tensors.setting
        # At least 4 rows, however large a row is: fewer would say little about the output.
        most = ALL_NUMBERS[tensors.device.type] // (s.all_heads * s.len_k * s.hidden)
        count = min(s.len_q, MOST_ROWS, max(most, 4))
        self.rows = spread_rows(count, s.len_q, tensors.device)
        self.grad = torch.zeros_like(tensors.grad)
        self.grad.index_copy_(-2, self.rows, tensors.grad.index_select(-2, self.rows))
        self.known: dict[bool, tuple[list[Tensor], list[float]]] = {}

    def of(self, is_dot: bool) -> tuple[list[Tensor], list[float]]:
        """The fp64 results on the sampled rows, and the errors of the textbook in the dtype."""
        if is_dot not in self.known:
            dtype = self.tensors.setting.torch_dtype
            truth = formula(self.tensors, self.rows, is_dot, torch.float64)
            plain = formula(self.tensors, self.rows, is_dot, dtype)
            errors = [distance(x, y) for x, y in zip(plain, truth, strict=True)]
            self.known[is_dot] = truth, errors
        return self.known[is_dot]


def formula(tensors: Tensors, rows: Tensor, is_dot: bool, dtype: torch.dtype) -> list[Tensor]:
    """The textbook's output (B, H, rows, E) on these rows, and its gradients.

    The gradients are of the query rows, the key, the value, and v summed over heads.
    """
    t, s = tensors, tensors.setting
    query, key = (t.dot_query, t.dot_key) if is_dot else (t.a, t.b)
    attend: Callable[..., Tensor] = dot if is_dot else textbook_summed
    at_once = BLOCK_NUMBERS[t.device.type] // (s.heads * s.len_k * s.hidden)
    sums = [torch.zeros_like(x, dtype=torch.float64) for x in (key, t.value, t.v)]
    outputs, query_grads = [], []
    for entry in range(s.batch):
        here = slice(entry, entry + 1)
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        for block in rows.split(max(at_once, 1)):
            given = (query[here].index_select(-2, block), key[here], t.value[here])
            leaves = [x.detach().to(dtype).requires_grad_() for x in given]
            leaves += [] if is_dot else [t.v.detach().to(dtype).requires_grad_()]
            output = attend(*leaves)
            grad = t.grad[here].index_select(-2, block).to(dtype)
            found = torch.autograd.grad(output, leaves, grad)
            kept[0].append(output.detach())
            kept[1].append(found[0])
            totals = (sums[0][here], sums[1][here], sums[2])[: len(found) - 1]
            torch._foreach_add_(totals, [x.double() for x in found[1:]])
        outputs.append(torch.cat(kept[0], -2))
        query_grads.append(torch.cat(kept[1], -2))
    parts = sums[:2] if is_dot else [*sums[:2], sums[2].sum(0)]
    return [torch.cat(outputs), torch.cat(query_grads), *parts]


def check(work: Work, truth: Truth, which: str) -> PassErrors:
    """The errors of a candidate from one run: of the output, and in a `BOTH` pass of every gradient."""
    is_dot = work.candidate.family == "dot"
    exact, plain = truth.of(is_dot)
    stated, dtype, rows = work.candidate.stated, work.tensors.setting.torch_dtype, truth.rows
    if which != BOTH:
        output = work.forward().index_select(-2, rows)
        limit = output_limit(plain[0], stated, dtype)
        return PassErrors(distance(output, exact[0]), plain[0], limit)
    output, query, *others = work.both(truth.grad)
    if len(others) > 2:
        # Candidates store v in different shapes, some of them shared by all heads: compare the sum.
        others[2] = others[2].double().reshape(-1, others[2].shape[-1]).sum(0)
    found = [output.index_select(-2, rows), query.index_select(-2, rows), *others]
    errors = [distance(x, y) for x, y in zip(found, exact, strict=True)]
    return PassErrors(
        errors[0],
        plain[0],
        output_limit(plain[0], stated, dtype),
        errors[1],
        plain[1],
        allowed(plain[1], FACTOR, dtype, GRADIENT_ROUNDINGS) + stated.gradient,
        worst(errors[2:]),
        allowed(worst(plain[1:]), OTHERS_FACTOR, dtype, GRADIENT_ROUNDINGS) + 2 * stated.gradient,
    )


def output_limit(plain: float, stated: Stated, dtype: torch.dtype) -> float:
    """The largest error with which an output passes."""
    return allowed(plain, FACTOR, dtype, OUTPUT_ROUNDINGS) + stated.output


def judge(result: Pass, errors: PassErrors, which: str) -> None:
    """Record the errors of a pass.

    Raises:
        Wrong: one of them is too large.
    """
    if which == FORWARD:
        result.error, result.plain_error = errors.output, errors.plain_output
        result.limit = errors.output_limit
    else:
        result.error, result.plain_error = errors.gradient, errors.plain_gradient
        result.limit, result.others_error = errors.gradient_limit, errors.others
    if not errors.output_passed:
        raise Wrong(
            f"no time: its output errs by {errors.output:.1e} against fp64, and "
            f"{errors.output_limit:.1e} would pass"
        )
    if which == BOTH and not errors.gradient_passed:
        raise Wrong(
            f"no time: the gradient of a errs by {errors.gradient:.1e} against fp64 and the "
            f"others by {errors.others:.1e}; {errors.gradient_limit:.1e} and "
            f"{errors.others_limit:.1e} would pass"
        )
