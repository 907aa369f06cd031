"""The error of a candidate against fp64, for the output and every gradient.

Rows of queries are independent, so a sample of rows is checked. The candidate runs at full size; the
fp64 formula runs on the sampled rows against all keys.
"""

from __future__ import annotations

import copy
import time
from typing import NamedTuple

import torch
from torch import Tensor

from regard.choosing.cost.workload import Workload
from regard.measuring import textbook
from regard.measuring.errors import allowed, distance, spread_rows, worst
from regard.measuring.memory import peak

# The most numbers that the fp64 formula may hold at once, and the most rows that are checked.
LARGEST, MOST_ROWS = 2**23, 64
# An error passes up to this many times that of plain PyTorch in the same dtype. That leaves room for
# chance and for another order of summation, and is far below the error of a wrong result. The tests
# hold engines to tighter bounds. Every gradient is compared with the worst of plain PyTorch's, because
# terms that cancel in a gradient make its relative error vary by chance.
OUTPUT_FACTOR, GRADIENT_FACTOR = 4.0, 16.0
# Any error up to this many eps passes: of the dtype, to which results are rounded, or of fp32, in which
# sums are accumulated, whichever is larger.
OUTPUT_ROUNDINGS, GRADIENT_ROUNDINGS = (4, 16), (16, 256)


class CheckResult(NamedTuple):
    """Relative errors of a candidate, whether they passed, and the cost of the checked run.

    An error is the norm of the difference over the norm of the fp64 result. `seconds` is a first
    estimate of the time of a forward and backward pass, `memory` its peak in bytes.
    """

    output: float
    plain_output: float
    gradient: float
    plain_gradient: float
    passed: bool
    seconds: float
    memory: int


def sample_rows(work: Workload) -> Tensor:
    """Indices of the query rows to check: evenly spread, with the first and the last."""
    s = work.inputs.shape
    row = s.batch * s.heads * s.len_k * work.candidate.depth
    count = max(min(s.len_q, MOST_ROWS, LARGEST // row), 1)
    return spread_rows(count, s.len_q, work.inputs.query.device)


def check(work: Workload) -> CheckResult:
    """The result of running the candidate once, forward and backward, and comparing with fp64."""
    rows = sample_rows(work)
    began = time.perf_counter()
    found, memory = full_size(work, rows)
    seconds = time.perf_counter() - began
    truth = formula(work, rows, torch.float64)
    plain = formula(work, rows, work.inputs.query.dtype)
    errors = [distance(x, t) for x, t in zip(found, truth, strict=True)]
    same = [distance(x, t) for x, t in zip(plain, truth, strict=True)]
    dtype, worst_plain = work.inputs.query.dtype, worst(same[1:])
    bounds = [allowed(same[0], OUTPUT_FACTOR, dtype, OUTPUT_ROUNDINGS)]
    limit = allowed(worst_plain, GRADIENT_FACTOR, dtype, GRADIENT_ROUNDINGS)
    bounds += [limit] * len(same[1:])
    # `<=` rather than `not >`, so that NaN fails.
    passed = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    return CheckResult(errors[0], same[0], worst(errors[1:]), worst_plain, passed, seconds, memory)


def full_size(work: Workload, rows: Tensor) -> tuple[list[Tensor], int]:
    """Output and gradients on the sampled rows from a run at full size, and its peak in bytes."""
    x = work.inputs
    # With a gradient of 0 on all other rows, the gradients of keys, values and parameters come from the
    # sampled rows only and can be compared with the formula on these rows.
    grad = torch.zeros_like(x.grad).index_copy_(-2, rows, x.grad[..., rows, :])
    found: list[Tensor] = []

    def run() -> None:
        output = work.run()
        found.extend((output.detach(), *torch.autograd.grad(output, work.leaves, grad)))

    bytes_at_peak = peak(run, rows.device)
    output, query, *others = found
    return [output[..., rows, :], query[..., rows, :], *others], bytes_at_peak


def formula(work: Workload, rows: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients of the textbook formula on the sampled rows, in the given dtype."""
    x = work.inputs
    score = copy.deepcopy(work.score).to(dtype)
    given = (x.query[..., rows, :], x.key, x.value)
    query, key, value = (t.detach().to(dtype).requires_grad_() for t in given)
    keep = None if x.keep is None else x.keep[rows]
    output = textbook.attention(score, query, key, value, keep)
    leaves = [query, key, value, *score.parameters()]
    grads = torch.autograd.grad(output, leaves, x.grad[..., rows, :].to(dtype))
    return [output.detach(), *grads]
