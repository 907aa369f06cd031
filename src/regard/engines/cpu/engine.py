"""The `cpu` engine: a problem into operator arguments, and the results back."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.engines.base import Attended, soft_capped, with_hard_rows
from regard.engines.cpu.ops import Arguments, attend, scores
from regard.forms import Inner
from regard.mask import Spans, visible
from regard.precision import working_dtype
from regard.problem import Problem

WEIGHTS_ALONE = frozenset({"weights"})


class Cpu:
    """Both forms on the CPU in tiles with online softmax.

    Memory grows with the length, not with its square: the backward recomputes each tile. The
    [Q, L, hidden] tensor of a pairwise score is never built.
    """

    name = "cpu"

    def refusals(self, problem: Problem) -> list[str]:
        """Only other devices."""
        where = problem.device.type
        return [] if problem.on_cpu else [f"the tensors are on {where!r}, not on the CPU"]

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives."""
        return ["it has no second derivative (engine 'reference' has)"]

    def run(self, problem: Problem) -> Attended:
        """Run the operators and put sink, statistics and hard rows together."""
        p, layout = problem, Layout(problem)
        if p.hard:
            return all_hard_rows(p, layout)
        if weights_say_all(p):
            return from_weights(p)
        args = layout.arguments(p.bias)
        rows = attend("entropy" in p.want, args)
        output, tail, entropy, peak = (layout.back(x) for x in rows)
        empty = peak == -torch.inf
        lse = torch.where(empty, peak, (peak + tail).to(peak.dtype))
        share, left = torch.where(empty, 0.0, torch.ones_like(peak)), torch.zeros_like(peak)
        if p.sink is not None:
            sink = p.sink.to(peak.dtype).view(-1, 1)
            # Not lse - sink: the sum in lse has rounded away what the difference would need.
            margin = torch.where(empty | (sink == -torch.inf), 0, (peak - sink) + tail)
            share, left = shares(margin, empty, sink)
            output = output * share.unsqueeze(-1)
            lse, entropy = with_sink(lse, sink, margin, entropy)
        found = {"lse": lse, "entropy": entropy, "max_logit": peak}
        if "max_weight" in p.want:
            largest = torch.exp(-tail).to(peak.dtype) * share
            found["max_weight"] = torch.where(empty, 0, largest).detach()
        if "jacobian" in p.want:
            found["jacobian"] = jacobian(layout, args, peak, tail.to(peak.dtype), share, left)
        if "weights" in p.want:
            found["weights"] = dense_weights(p) * share.unsqueeze(-1)
        found = {name: x for name, x in found.items() if name in p.want}
        return add_hard_rows(p, layout, Attended(output.to(p.dtype), **found))


class Layout:
    """Brings tensors (*, heads, rows, columns) to (B, K, G, rows, columns) and back."""

    def __init__(self, p: Problem) -> None:
        self.problem = p
        key, value = p.form.key, p.value
        key_heads, value_heads = key.shape[-3], value.shape[-3]
        groups = max(key_heads, value_heads)
        if groups % key_heads or groups % value_heads:
            groups = p.heads
        self.groups, self.group = groups, p.heads // groups
        self.batch = math.prod(p.lead)

    def five(self, x: Tensor) -> Tensor:
        """5 dims, with size 1 kept wherever `x` broadcasts."""
        x = x.view(*[1] * (3 - x.ndim), *x.shape) if x.ndim < 3 else x
        lead, tail = x.shape[:-3], x.shape[-2:]
        heads = x.shape[-3]
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
        return x.expand(*self.problem.lead, *x.shape[-3:]).reshape(self.batch, *split, *tail)

    def back(self, x: Tensor) -> Tensor:
        """(B, K, G, ...) to (*, H, ...)."""
        return x.reshape(*self.problem.lead, self.problem.heads, *x.shape[3:])

    def arguments(self, bias: Tensor | None, raw: bool = False, masked: bool = True) -> Arguments:
        """The operators' arguments; `raw` leaves out all but score and mask, not `masked` that too."""
        p, form = self.problem, self.problem.form
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
            torch.randint(2**62, (), device="cpu") if p.dropout and not raw else None,
            self.numbers(factor, raw),
            [self.batch, self.groups, self.group, p.queries, p.keys],
            "" if inner else form.activation,
        )

    def numbers(self, factor: float, raw: bool) -> Tensor:
        """Scale, soft cap, dropout and parameter; see `Arguments`."""
        p, form = self.problem, self.problem.form
        scale = form.scale * factor if isinstance(form, Inner) else 1.0
        parameter = 0.0 if isinstance(form, Inner) else form.parameter
        softcap, dropout = (0.0, 0.0) if raw else (p.softcap or 0.0, p.dropout)
        numbers = [scale, softcap, dropout, parameter]
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    def term(self, x: Tensor | None, factor: float, dim: int) -> Tensor | None:
        """A term as a column (dim -1, alpha) or a row (dim -2, beta), times `factor`."""
        return None if x is None else self.rows(x * factor if factor != 1 else x, dim)

    def rows(self, x: Tensor, dim: int) -> Tensor:
        """(*, heads, length) or (length,) as a column (dim -1) or a row (dim -2) of 5 dims."""
        return self.five(x.unsqueeze(dim))

    def spans(self) -> Spans:
        """The mask resolved; a second set of segments goes into the dense part."""
        p = self.problem
        assert p.mask is not None
        spans = p.mask.spans(p.queries, p.keys, p.device)
        if len(spans.segments) < 2:
            return spans
        return Spans(None, None, (), visible(spans, p.keys, p.device))


def shares(margin: Tensor, empty: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of all keys together, and the sink's, (*, H, Q); 0 for what is at -inf.

    `margin` is how far the keys' LSE is above the sink, 0 where either is -inf.
    """
    no_sink = sink == -torch.inf
    share = torch.where(empty, 0, torch.where(no_sink, 1, torch.sigmoid(margin)))
    left = torch.where(no_sink, 0, torch.where(empty, 1, torch.sigmoid(-margin)))
    return share.to(sink.dtype), left.to(sink.dtype)


def with_sink(lse: Tensor, sink: Tensor, margin: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """LSE and entropy with the sink as one more outcome.

    The entropy is the keys' own, in proportion to their share, and that of the choice between keys
    and sink.
    """
    empty, no_sink = lse == -torch.inf, sink == -torch.inf
    # -log of each share; softplus would lose digits beyond its threshold.
    of_keys, of_sink = -F.logsigmoid(margin), -F.logsigmoid(-margin)
    share, left = shares(margin, empty, sink)
    choice = torch.where(empty | no_sink, 0, share * of_keys + left * of_sink)
    larger = torch.where(margin > 0, lse + of_keys, sink + of_sink)
    total = torch.where(empty, sink.expand_as(lse), torch.where(no_sink, lse, larger))
    return total.to(lse.dtype), (share * entropy + choice).to(lse.dtype)


def weights_say_all(p: Problem) -> bool:
    """Whether the output can be had from the weights asked for, and nothing else is needed.

    Tiles would compute every score once more: for a decoder's one query that is half of the time.
    """
    plain = p.sink is None and not p.dropout and not isinstance(p.temperature, Tensor)
    return plain and p.want == WEIGHTS_ALONE


def from_weights(p: Problem) -> Attended:
    """`weights @ value`, in working precision."""
    weights = dense_weights(p)
    heads = p.value.shape[-3]
    value = p.value.to(weights.dtype).unsqueeze(-3)
    output = weights.unflatten(-3, (heads, p.heads // heads)) @ value
    return Attended(output.flatten(-4, -3).to(p.dtype), weights=weights)


def dense_weights(p: Problem) -> Tensor:
    """The weights (*, H, Q, L) from raw scores, as if there were no sink.

    Not from the row statistics: scores in other blocks round otherwise, and a sole key would get
    a weight that is not quite 1.
    """
    logits = blocked_scores(p)
    temperature = p.temperature
    if isinstance(temperature, Tensor):
        temperature = torch.where(temperature == 0, 1, temperature).to(logits.dtype).unsqueeze(-1)
    logits = logits / temperature
    if p.softcap is not None:
        logits = soft_capped(logits, p.softcap)
    seen = p.visible_pairs()
    if p.bias is not None:
        logits = logits + torch.where(p.bias == -torch.inf, 0, p.bias).to(logits.dtype)
    logits = logits.expand(*p.lead, p.heads, p.queries, p.keys)
    if seen is not None:
        # A row that sees nothing would be NaN, and its gradient too.
        logits = torch.where(seen | ~seen.any(-1, keepdim=True), logits, -torch.inf)
    weights = logits.softmax(-1)
    return weights if seen is None else torch.where(seen, weights, 0)


def hard_lookup(p: Problem, layout: Layout, hard: Tensor) -> tuple[Tensor, Tensor]:
    """The value of the best key of each hard row, and its index: -1 for none, -2 for NaN."""
    # A finite bias does not matter at temperature 0, but -inf still hides a key.
    hidden = None if p.bias is None else torch.where(p.bias == -torch.inf, p.bias, 0)
    plain = layout.arguments(hidden, raw=True)
    detached = [x.detach() if isinstance(x, Tensor) else x for x in plain]
    index = layout.back(torch.ops.regard.cpu_best_keys(*detached, hard))
    value = p.value.repeat_interleave(p.heads // p.value.shape[-3], -3)
    value = value.expand(*p.lead, *value.shape[-3:])
    at = index.unsqueeze(-1)
    if p.keys:
        found = value.gather(-2, at.clamp(min=0).expand(*index.shape, value.shape[-1]))
    else:
        found = value.new_zeros(*index.shape, value.shape[-1])
    if p.dropout:
        found = found * F.dropout(torch.ones_like(found[..., :1]), p.dropout)
    found = torch.where(at == -1, 0, found)
    return torch.where(at == -2, torch.nan, found), index


def all_hard_rows(p: Problem, layout: Layout) -> Attended:
    """A hard look-up for every query."""
    every = p.value.new_ones(1, 1, 1, 1, 1, dtype=torch.bool)
    output, index = hard_lookup(p, layout, every)
    found = {name: mass(index, p) for name in p.want - {"weights"}}
    if "weights" in p.want:
        found["weights"] = one_hot(index, p)
    return with_hard_rows(Attended(output, **found), every[0, 0, 0], mass(index, p))


def add_hard_rows(p: Problem, layout: Layout, soft: Attended) -> Attended:
    """Put hard look-ups in the rows whose temperature is 0."""
    if not isinstance(p.temperature, Tensor):
        return soft
    hard = layout.five(p.temperature.detach().unsqueeze(-1)) == 0
    found, index = hard_lookup(p, layout, hard)
    rows = p.temperature == 0
    changed = {"output": torch.where(rows.unsqueeze(-1), found, soft.output)}
    if soft.weights is not None:
        changed["weights"] = torch.where(rows.unsqueeze(-1), one_hot(index, p), soft.weights)
    return with_hard_rows(soft.with_changed(changed), rows, mass(index, p))


def one_hot(index: Tensor, p: Problem) -> Tensor:
    """Weights (*, H, Q, L) of a hard look-up."""
    at = index.unsqueeze(-1)
    weights = (torch.arange(p.keys, device=at.device) == at).to(working_dtype(p.dtype))
    return torch.where(at == -2, torch.nan, weights)


def mass(index: Tensor, p: Problem) -> Tensor:
    """The sum of those weights: 1, or 0 where nothing is seen."""
    total = (index >= 0).to(working_dtype(p.dtype))
    return torch.where(index == -2, torch.nan, total)


def jacobian(layout: Layout, args: Arguments, *rows: Tensor) -> Tensor:
    """The norm of the softmax Jacobian (*, H, Q), without gradient."""
    p = layout.problem
    full = (*p.lead, p.heads, p.queries)
    shape = (layout.batch, layout.groups, layout.group, p.queries)
    flat = [x.detach().expand(full).reshape(shape) for x in rows]
    detached = [x.detach() if isinstance(x, Tensor) else x for x in args]
    return layout.back(torch.ops.regard.cpu_jacobian(*detached, *flat))


def blocked_scores(problem: Problem) -> Tensor:
    """Raw scores (*, H, Q, L) in working precision without the [Q, L, hidden] tensor."""
    layout = Layout(problem)
    return layout.back(scores(layout.arguments(None, raw=True, masked=False)))
