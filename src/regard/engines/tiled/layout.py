"""Tensors of a problem in the layout of the operators, and results back; `operators.py` has the legend."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.engines.tiled.arguments import Arguments
from regard.engines.tiled.eager import numbers
from regard.forms import Inner
from regard.mask import Spans, visible
from regard.precision import working_dtype
from regard.problem import Problem


class Layout:
    """Brings tensors (*, heads, rows, columns) to (B, K, G, rows, columns) and back."""

    def __init__(self, p: Problem) -> None:
        self.problem = p
        key, value = p.form.key, p.value
        key_heads, value_heads = key.shape[-3], value.shape[-3]
        groups = max(key_heads, value_heads)
        # Neither divides the other: every query head becomes a group of its own.
        if groups % key_heads or groups % value_heads:
            groups = p.heads
        self.groups, self.group = groups, p.heads // groups
        self.batch = math.prod(p.lead)

    def five(self, x: Tensor) -> Tensor:
        """`x` with 5 dims, of size 1 wherever it broadcasts."""
        x = x.view(*[1] * (3 - x.ndim), *x.shape) if x.ndim < 3 else x
        lead, tail = x.shape[:-3], x.shape[-2:]
        heads = x.shape[-3]
        # Fewer heads than groups: keys and values differ in their number of heads.
        if heads != 1 and heads != self.groups and heads != self.problem.heads:
            x = x.repeat_interleave(self.groups // heads, -3)
            heads = self.groups
        if heads == 1:
            split = (1, 1)
        elif heads == self.problem.heads:
            split = (self.groups, self.group)
        else:
            split = (self.groups, 1)
        if math.prod(lead) == 1:
            return x.reshape(1, *split, *tail)
        if lead != self.problem.lead:
            x = x.expand(*self.problem.lead, *x.shape[-3:])
        return x.reshape(self.batch, *split, *tail)

    def back(self, x: Tensor) -> Tensor:
        """A result (B, K, G, ...) as (*, H, ...)."""
        return x.reshape(*self.problem.lead, self.problem.heads, *x.shape[3:])

    def arguments(self, bias: Tensor | None, raw: bool = False, masked: bool = True) -> Arguments:
        """The arguments of the operators.

        `raw` keeps the score and the mask alone; with `masked` False the mask is left out too.
        """
        p, form = self.problem, self.problem.form
        # A number goes into scale, v, alpha and beta. A tensor goes to the kernels as `rate`, with 1 in
        # hard rows, which are replaced afterwards.
        factor, rate = 1.0, None
        if isinstance(p.temperature, Tensor) and not raw:
            soft = torch.where(p.temperature == 0, 1, p.temperature).to(working_dtype(p.dtype))
            rate = self.five((1 / soft).unsqueeze(-1))
        elif not isinstance(p.temperature, Tensor) and p.temperature and not raw:
            factor = 1 / p.temperature
        inner = isinstance(form, Inner)
        spans = self.spans() if masked and p.mask is not None else Spans(None, None, (), None)
        segments = spans.segments[0] if len(spans.segments) > 0 else (None, None)
        return Arguments(
            self.five(form.query),
            self.five(form.key),
            self.five(p.value),
            None if inner else self.five(form.v * factor if factor != 1 else form.v),
            self.term(form.alpha, factor, -1) if inner else None,
            self.term(form.beta, factor, -2) if inner else None,
            rate,
            None if bias is None else self.five(bias),
            None if spans.dense is None else self.five(spans.dense),
            None if spans.start is None else self.rows(spans.start, -1),
            None if spans.stop is None else self.rows(spans.stop, -1),
            None if segments[0] is None else self.rows(segments[0], -1),
            None if segments[1] is None else self.rows(segments[1], -2),
            # Drawn on the device of the tensors, so that the host does not wait for a GPU.
            torch.randint(2**62, (), device=p.device) if p.dropout and not raw else None,
            self.numbers(factor, raw),
            [self.batch, self.groups, self.group, p.queries, p.keys],
            "" if inner else form.activation,
        )

    def numbers(self, factor: float, raw: bool) -> Tensor:
        """Scale, soft cap, dropout and parameter of the activation; see `Arguments`."""
        p, form = self.problem, self.problem.form
        scale = form.scale * factor if isinstance(form, Inner) else 1.0
        parameter = 0.0 if isinstance(form, Inner) else form.parameter
        softcap, dropout = (0.0, 0.0) if raw else (p.softcap or 0.0, p.dropout)
        return numbers(scale, softcap, dropout, parameter)

    def term(self, x: Tensor | None, factor: float, dim: int) -> Tensor | None:
        """A term of the inner form times `factor`, as a column (dim -1, alpha) or a row (dim -2, beta)."""
        return None if x is None else self.rows(x * factor if factor != 1 else x, dim)

    def rows(self, x: Tensor, dim: int) -> Tensor:
        """(*, heads, length) or (length,) as a column (dim -1) or a row (dim -2) of 5 dims."""
        return self.five(x.unsqueeze(dim))

    def spans(self) -> Spans:
        """The mask as spans. Operators take one set of segments: with more, the whole mask becomes dense."""
        p = self.problem
        assert p.mask is not None
        spans = p.mask.spans(p.queries, p.keys, p.device)
        if len(spans.segments) < 2:
            return spans
        return Spans(None, None, (), visible(spans, p.keys, p.device))
