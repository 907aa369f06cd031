"""The error of a candidate against fp64, and the rule that decides whether its time is shown.

**The rule.** Errors are relative, |x - truth| / |truth|, truth being the formula in fp64. With e the
error of the textbook's own formula, eager and in the dtype of the setting,

- the output may err by `max(2 e, r) + stated`,
- the gradient of a (of the query, for dot) by `max(2 e, 2 r) + stated`,
- the gradients of b, value and v by `max(16 e, 2 r) + 2 stated`, e being the worst of all
  gradients: terms that cancel in these sums make the relative error of each a matter of chance,

where `stated` is 0 for what claims to be exact, and what the candidate states for the output or for
the gradient if it is an approximation (`Candidate.stated`), and r is what rounding the result once to
the dtype may cost: 3.9e-3 in bf16. It matters where the textbook was lucky. In fp32 r is 16 times
that, 128 for gradients, since sums may be made in another order.

Rows of queries do not know of one another, so that a sample of rows is compared: the candidate runs
at full size, with a gradient that is 0 on all other rows; the formula runs on the sampled rows against
all keys, in blocks that fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.bench.candidate import BOTH, Stated, Work
from regard.bench.peers import dot, textbook_summed
from regard.bench.tensors import Tensors
from regard.measuring.errors import allowed, distance, spread_rows, worst

FACTOR, OTHERS_FACTOR = 2.0, 16.0
# In eps of the dtype, and of fp32.
OUTPUT_ROUNDINGS, GRADIENT_ROUNDINGS = (0.5, 8.0), (1.0, 128.0)
MOST_ROWS = 64
# Numbers of the [B, H, rows, L, N] tensor: of all sampled rows together, and at one time.
ALL_NUMBERS = {"cuda": 2**31, "cpu": 2**25}
BLOCK_NUMBERS = {"cuda": 2**26, "cpu": 2**22}


class Errors(NamedTuple):
    """Relative errors, beside those of the textbook in the same dtype and the limits.

    The gradient's fields are None where only a forward pass was checked.
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
        """Written so that NaN fails."""
        return self.output <= self.output_limit

    @property
    def gradient_passed(self) -> bool:
        """All gradients; written so that NaN fails."""
        pairs = ((self.gradient, self.gradient_limit), (self.others, self.others_limit))
        return all(x is not None and y is not None and x <= y for x, y in pairs)


class Truth:
    """The formula in fp64 and in the dtype itself on sampled rows, made once for each formula."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        s = tensors.setting
        most = ALL_NUMBERS[tensors.device.type] // (s.all_heads * s.len_k * s.hidden)
        count = min(s.len_q, MOST_ROWS, max(most, 4))
        self.rows = spread_rows(count, s.len_q, tensors.device)
        self.grad = torch.zeros_like(tensors.grad)
        self.grad.index_copy_(-2, self.rows, tensors.grad.index_select(-2, self.rows))
        self.known: dict[bool, tuple[list[Tensor], list[float]]] = {}

    def of(self, is_dot: bool) -> tuple[list[Tensor], list[float]]:
        """What is true on the sampled rows, and the errors of the textbook in the dtype."""
        if is_dot not in self.known:
            dtype = self.tensors.setting.torch_dtype
            truth = formula(self.tensors, self.rows, is_dot, torch.float64)
            plain = formula(self.tensors, self.rows, is_dot, dtype)
            errors = [distance(x, y) for x, y in zip(plain, truth, strict=True)]
            self.known[is_dot] = truth, errors
        return self.known[is_dot]


def formula(tensors: Tensors, rows: Tensor, is_dot: bool, dtype: torch.dtype) -> list[Tensor]:
    """Output (B, H, rows, E) and gradients of query rows, key, value, and v summed over heads."""
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


def check(work: Work, truth: Truth, which: str) -> Errors:
    """Run a candidate once and compare: the output, and in a `BOTH` pass every gradient."""
    is_dot = work.candidate.family == "dot"
    exact, plain = truth.of(is_dot)
    stated, dtype, rows = work.candidate.stated, work.tensors.setting.torch_dtype, truth.rows
    if which != BOTH:
        output = work.forward().index_select(-2, rows)
        limit = output_limit(plain[0], stated, dtype)
        return Errors(distance(output, exact[0]), plain[0], limit)
    output, query, *others = work.both(truth.grad)
    if len(others) > 2:  # v, in whatever shape the candidate holds it
        others[2] = others[2].double().reshape(-1, others[2].shape[-1]).sum(0)
    found = [output.index_select(-2, rows), query.index_select(-2, rows), *others]
    errors = [distance(x, y) for x, y in zip(found, exact, strict=True)]
    return Errors(
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
    """The largest error of an output that passes."""
    return allowed(plain, FACTOR, dtype, OUTPUT_ROUNDINGS) + stated.output
