"""`Tiled`, the base of engines on the tiled operators: adds sink, statistics, hard rows, dense weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.engines.base import Attended, Engine, soft_capped, with_hard_rows
from regard.engines.tiled.arguments import Arguments
from regard.engines.tiled.layout import Layout
from regard.engines.tiled.operators import Operators
from regard.precision import working_dtype
from regard.problem import Problem

WEIGHTS_ALONE = frozenset({"weights"})


class Tiled(Engine):
    """An engine on the tiled operators; a subclass adds its kernels, `refusals` and `missing_promises`.

    Attributes:
        name: the name of the engine.
        operators: its kernels as registered operators.
    """

    name: str
    operators: Operators

    def run(self, problem: Problem) -> Attended:
        """The result: output of the operators, then sink, statistics and hard rows."""
        p, layout = problem, Layout(problem)
        if p.hard:
            return self.all_hard_rows(p, layout)
        if weights_say_all(p):
            return self.from_weights(p)
        args = layout.arguments(p.bias)
        if p.sink is None and len(p.want) == 0 and not isinstance(p.temperature, Tensor):
            # Most calls end here: the code below would take longer than a short kernel.
            return Attended(layout.back(self.operators.output(args)).to(p.dtype))
        rows = self.operators.attend("entropy" in p.want, args)
        output, tail, entropy, peak = (layout.back(x) for x in rows)
        empty = peak == -torch.inf
        # share: weight of all keys together; left: weight of the sink.
        lse = torch.where(empty, peak, (peak + tail).to(peak.dtype))
        share, left = torch.where(empty, 0.0, torch.ones_like(peak)), torch.zeros_like(peak)
        if p.sink is not None:
            sink = p.sink.to(peak.dtype).view(-1, 1)
            # Not lse - sink: at large logits lse has rounded away the digits that the difference needs.
            margin = torch.where(empty | (sink == -torch.inf), 0, (peak - sink) + tail)
            share, left = shares(margin, empty, sink)
            output = output * share.unsqueeze(-1)
            lse, entropy = with_sink(lse, sink, margin, entropy)
        found = {"lse": lse, "entropy": entropy, "max_logit": peak}
        if "max_weight" in p.want:
            largest = torch.exp(-tail).to(peak.dtype) * share
            found["max_weight"] = torch.where(empty, 0, largest).detach()
        if "jacobian" in p.want:
            found["jacobian"] = self.jacobian(layout, args, peak, tail.to(peak.dtype), share, left)
        if "weights" in p.want:
            weights = self.dense_weights(p)
            # The weight of a hidden key is 0, also in a row of NaN.
            found["weights"] = torch.where(weights == 0, 0, weights * share.unsqueeze(-1))
        found = {name: x for name, x in found.items() if name in p.want}
        return self.add_hard_rows(p, layout, Attended(output.to(p.dtype), **found))

    def scores(self, problem: Problem) -> Tensor:
        """Raw scores (*, H, Q, L) in working precision without the [Q, L, hidden] tensor."""
        layout = Layout(problem)
        return layout.back(self.operators.scores(layout.arguments(None, raw=True, masked=False)))

    def from_weights(self, p: Problem) -> Attended:
        """The output as `weights @ value` in working precision, with the weights."""
        weights = self.dense_weights(p)
        heads = p.value.shape[-3]
        value = p.value.to(weights.dtype).unsqueeze(-3)
        output = weights.unflatten(-3, (heads, p.heads // heads)) @ value
        return Attended(output.flatten(-4, -3).to(p.dtype), weights=weights)

    def dense_weights(self, p: Problem) -> Tensor:
        """The weights (*, H, Q, L) from raw scores, as if there were no sink.

        They are not computed from the row statistics: those come from other blocks, whose scores round
        differently, so that a sole key would get a weight that is not quite 1.
        """
        # The mask changes no score, but keeps hidden pairs out of the backward, where 0 times the slope of
        # a score that is NaN would be NaN.
        layout = Layout(p)
        given = layout.arguments(only_hiding(p.bias), raw=True)
        logits = layout.back(self.operators.scores(given))
        seen = p.visible_pairs()
        if seen is not None:
            # Before the temperature and the cap, which would multiply a 0 by NaN in the backward.
            logits = torch.where(seen, logits, 0)
        temperature = p.temperature
        if isinstance(temperature, Tensor):
            temperature = (
                torch.where(temperature == 0, 1, temperature).to(logits.dtype).unsqueeze(-1)
            )
        logits = logits / temperature
        if p.softcap is not None:
            logits = soft_capped(logits, p.softcap)
        if p.bias is not None:
            logits = logits + torch.where(p.bias == -torch.inf, 0, p.bias).to(logits.dtype)
        logits = logits.expand(*p.lead, p.heads, p.queries, p.keys)
        if seen is not None:
            # A row that sees nothing is left unmasked: softmax of all -inf is NaN, and so is its gradient.
            logits = torch.where(seen | ~seen.any(-1, keepdim=True), logits, -torch.inf)
        weights = logits.softmax(-1)
        return weights if seen is None else torch.where(seen, weights, 0)

    def hard_lookup(self, p: Problem, layout: Layout, hard: Tensor) -> tuple[Tensor, Tensor]:
        """The value of the best key of each hard row, and the key's index: -1 for none, -2 for NaN."""
        # A finite bias does not matter at temperature 0, but -inf still hides a key.
        plain = layout.arguments(only_hiding(p.bias), raw=True)
        index = layout.back(self.operators.best_keys(plain, hard))
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

    def all_hard_rows(self, p: Problem, layout: Layout) -> Attended:
        """The result at temperature 0: a hard look-up for every query."""
        every = p.value.new_ones(1, 1, 1, 1, 1, dtype=torch.bool)
        output, index = self.hard_lookup(p, layout, every)
        found = {name: mass(index, p) for name in p.want - {"weights"}}
        if "weights" in p.want:
            found["weights"] = one_hot(index, p)
        return with_hard_rows(Attended(output, **found), every[0, 0, 0], mass(index, p))

    def add_hard_rows(self, p: Problem, layout: Layout, soft: Attended) -> Attended:
        """`soft` with hard look-ups in the rows whose temperature is 0."""
        if not isinstance(p.temperature, Tensor):
            return soft
        hard = layout.five(p.temperature.detach().unsqueeze(-1)) == 0
        found, index = self.hard_lookup(p, layout, hard)
        rows = p.temperature == 0
        changed = {"output": torch.where(rows.unsqueeze(-1), found, soft.output)}
        if soft.weights is not None:
            changed["weights"] = torch.where(rows.unsqueeze(-1), one_hot(index, p), soft.weights)
        return with_hard_rows(soft.with_changed(changed), rows, mass(index, p))

    def jacobian(self, layout: Layout, args: Arguments, *rows: Tensor) -> Tensor:
        """The norm of the softmax Jacobian (*, H, Q), without gradient."""
        p = layout.problem
        full = (*p.lead, p.heads, p.queries)
        shape = (layout.batch, layout.groups, layout.group, p.queries)
        flat = [x.expand(full).reshape(shape) for x in rows]
        return layout.back(self.operators.jacobian(args, *flat))


def shares(margin: Tensor, empty: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of all keys together and that of the sink, (*, H, Q); 0 for one at -inf.

    `margin` is the LSE of the keys minus the sink, 0 where either is -inf.
    """
    no_sink = sink == -torch.inf
    # Not sigmoid, whose gradient y (1 - y) has no digits left near 1: a sink of little weight would get none.
    share = torch.where(empty, 0, torch.where(no_sink, 1, F.logsigmoid(margin).exp()))
    left = torch.where(no_sink, 0, torch.where(empty, 1, F.logsigmoid(-margin).exp()))
    return share.to(sink.dtype), left.to(sink.dtype)


def with_sink(lse: Tensor, sink: Tensor, margin: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """LSE and entropy with the sink as one more outcome.

    The entropy is that of the choice between keys and sink, plus the entropy of the keys times their share.
    """
    empty, no_sink = lse == -torch.inf, sink == -torch.inf
    # -log of each share; softplus would lose digits beyond its threshold.
    of_keys, of_sink = -F.logsigmoid(margin), -F.logsigmoid(-margin)
    share, left = shares(margin, empty, sink)
    choice = torch.where(empty | no_sink, 0, share * of_keys + left * of_sink)
    # The larger of the two outcomes minus the log of its share: the addition does not cancel.
    larger = torch.where(margin > 0, lse + of_keys, sink + of_sink)
    total = torch.where(empty, sink.expand_as(lse), torch.where(no_sink, lse, larger))
    return total.to(lse.dtype), (share * entropy + choice).to(lse.dtype)


def only_hiding(bias: Tensor | None) -> Tensor | None:
    """The part of a bias that hides keys: -inf where it is -inf, 0 elsewhere."""
    return None if bias is None else torch.where(bias == -torch.inf, bias, 0)


def weights_say_all(p: Problem) -> bool:
    """Whether the requested weights give the output, and nothing else is needed.

    Tiles would compute every score a second time, half of the time for a decoder's single query.
    """
    plain = p.sink is None and not p.dropout and not isinstance(p.temperature, Tensor)
    return plain and p.want == WEIGHTS_ALONE and p.hides_whole(p.value.shape)


def one_hot(index: Tensor, p: Problem) -> Tensor:
    """Weights (*, H, Q, L) of a hard look-up."""
    at = index.unsqueeze(-1)
    weights = (torch.arange(p.keys, device=at.device) == at).to(working_dtype(p.dtype))
    seen = p.visible_pairs()
    # A hidden key has none, also where the row is NaN.
    return torch.where(at == -2 if seen is None else (at == -2) & seen, torch.nan, weights)


def mass(index: Tensor, p: Problem) -> Tensor:
    """The sum of the weights of a hard look-up: 1, 0 where nothing is seen, NaN where NaN is."""
    total = (index >= 0).to(working_dtype(p.dtype))
    return torch.where(index == -2, torch.nan, total)
