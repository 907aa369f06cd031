"""Forward, backward, hard look-up and Jacobian over tiles, the same for both forms.

Shape legend: tiles are (b, k, g, q, l); see `tiles`. Statistics are (B, K, G, Q).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.base import jacobian_norm
from regard.engines.cpu.forms import InnerTiles, PairwiseTiles, new_zeros, select_matmul
from regard.engines.cpu.tiles import WHOLE_DIM, Tile, TiledShape, add_cut, cut, key_tiles, row_tiles


class KernelInputs(NamedTuple):
    """The inputs of one call in working precision, tensors with 5 dims (see `tiles`).

    `rate` (1 / temperature) multiplies the score. `start`, `stop` and `query_segment` are columns
    (B, 1, 1, Q, 1), `key_segment` is a row (B, 1, 1, 1, L).
    """

    form: InnerTiles | PairwiseTiles
    value: Tensor
    rate: Tensor | None
    bias: Tensor | None
    dense: Tensor | None
    start: Tensor | None
    stop: Tensor | None
    query_segment: Tensor | None
    key_segment: Tensor | None
    softcap: float
    dropout: float
    seed: int
    shape: TiledShape


class Logits(NamedTuple):
    """The stages of one tile: raw scores, capped logits, final logits, and which pairs are seen.

    `final` and `seen` have the full shape of the tile. The others have size 1 where all tensors of the
    form broadcast. `seen` is None where every pair is seen.
    """

    score: Tensor
    capped: Tensor
    final: Tensor
    seen: Tensor | None


def span(x: KernelInputs, row: Tile) -> tuple[int, int]:
    """The first key and the end of the keys that any query of the row tile may see."""
    first = 0 if x.start is None else int(cut(x.start, row, row.q).min())
    last = x.shape.keys if x.stop is None else int(cut(x.stop, row, row.q).max())
    return first, last


def visible(x: KernelInputs, tile: Tile) -> Tensor | None:
    """Which pairs of the tile are seen, None for all."""
    parts = []
    # Most tiles of a causal mask are wholly on one side of it: compare the ends before building booleans.
    if x.start is not None or x.stop is not None:
        column = torch.arange(tile.l.start, tile.l.stop, device="cpu")
        if x.start is not None:
            start = cut(x.start, tile, tile.q)
            if int(start.max()) > tile.l.start:
                parts.append(column >= start)
        if x.stop is not None:
            stop = cut(x.stop, tile, tile.q)
            if int(stop.min()) < tile.l.stop:
                parts.append(column < stop)
    if x.query_segment is not None and x.key_segment is not None:
        own = cut(x.query_segment, tile, tile.q)
        parts += [own == cut(x.key_segment, tile, tile.q, tile.l), own >= 0]
    if x.dense is not None:
        parts.append(cut(x.dense, tile, tile.q, tile.l))
    if x.bias is not None:
        parts.append(cut(x.bias, tile, tile.q, tile.l) != -torch.inf)
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    return seen


def tile_logits(x: KernelInputs, tile: Tile) -> Logits:
    """The logits of one tile, from the scores of the form to bias and mask."""
    score = x.form.scores(tile)
    logits = score if x.rate is None else score * cut(x.rate, tile, tile.q)
    capped = torch.tanh(logits / x.softcap) * x.softcap if x.softcap else logits
    final = capped
    if x.bias is not None:
        final = capped + cut(x.bias, tile, tile.q, tile.l)
    final = final.expand(*tile_rows(x.shape, tile)[:-1], -1)
    seen = visible(x, tile)
    if seen is not None:
        seen = seen.expand(final.shape)
        final = final.masked_fill(~seen, -torch.inf)
    return Logits(score, capped, final, seen)


def keep_mask(x: KernelInputs, tile: Tile, like: Tensor) -> Tensor:
    """The dropout factors of one tile, 0 or 1 / (1 - p).

    They depend on the seed and the number of the tile alone, so that the backward draws the same.
    """
    generator = torch.Generator("cpu").manual_seed((x.seed + tile.number) % 2**63)
    kept = torch.empty_like(like).bernoulli_(1 - x.dropout, generator=generator)
    return kept.div_(1 - x.dropout)


def forward(x: KernelInputs, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output (B, K, G, Q, dv), tail, entropy (undefined unless requested) and the largest logit.

    The tail is LSE minus the largest logit, in fp64. The two are kept apart because at large logits
    their sum would round the tail away, and with it the weights that the backward computes again.
    """
    s = x.shape
    rows = (s.batch, s.groups, s.heads, s.queries, 1)
    output = x.value.new_empty(*rows[:-1], x.value.shape[-1])
    spread, peak = x.value.new_zeros(rows), x.value.new_zeros(rows)
    tail = x.value.new_zeros(rows, dtype=torch.float64)
    for row in row_tiles(s):
        result = forward_rows(x, row, entropy)
        for whole, part in zip((output, tail, spread, peak), result, strict=True):
            cut_exact(whole, row).copy_(part)
    return output, tail.squeeze(-1), spread.squeeze(-1), peak.squeeze(-1)


def forward_rows(
    x: KernelInputs, row: Tile, entropy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same four results for one block of queries, by online softmax over its tiles of keys."""
    # top: largest logit so far; total: sum of exp(logit - top); rest: the same without the largest;
    # moment: sum of (logit - top) exp(logit - top), for the entropy; sums: weighted values.
    new = x.value.new_zeros
    lead = tile_rows(x.shape, row)
    top, total, rest, moment = new(lead).fill_(-torch.inf), new(lead), new(lead), new(lead)
    sums = new(*lead[:-1], x.value.shape[-1])
    for tile in key_tiles(row, x.shape, *span(x, row)):
        logits, seen = tile_logits(x, tile)[2:]
        raised = torch.maximum(top, logits.amax(-1, keepdim=True))
        # Rows that have seen nothing yet: -inf - -inf would be NaN.
        base = torch.where(raised == -torch.inf, 0, raised)
        shrink = torch.exp(top - base)
        below = logits - base
        exp = torch.exp(below)
        if entropy:
            rest = rest * shrink + off_the_maximum(logits, exp, top, shrink)
            # The moment is taken about the new maximum: each earlier term shifts by top - base.
            lift = torch.where(top == -torch.inf, 0, top - base)
            below.masked_fill_(below == -torch.inf, 0)
            moment = shrink * (moment + lift * total) + (exp * below).sum(-1, keepdim=True)
        total = total * shrink + exp.sum(-1, keepdim=True)
        if x.dropout:
            exp = exp * keep_mask(x, tile, exp)
        sums = sums * shrink + select_matmul(exp, cut(x.value, tile, tile.l), seen)
        top = raised
    total = torch.where(total == 0, 1, total)
    # Entropies of saturated rows need the digits of a small rest, which 1 + rest would round away.
    tail = torch.log1p(rest.double()) if entropy else total.double().log()
    return sums / total, tail, tail - moment / total, top


def off_the_maximum(logits: Tensor, exp: Tensor, top: Tensor, shrink: Tensor) -> Tensor:
    """What a tile adds to the sum of exponentials over all logits but one largest.

    The largest contributes exactly 1 and is left out, so that a saturated row keeps the digits of the
    others. If the tile has a new largest logit, its first one is left out and the former one joins the
    sum. If not, the whole tile is added.
    """
    peak, first = logits.max(-1, keepdim=True)
    leads = peak > top
    others = exp.scatter(-1, first, torch.where(leads, 0, exp.gather(-1, first)))
    return others.sum(-1, keepdim=True) + torch.where(leads & (top > -torch.inf), shrink, 0)


class Gradients(NamedTuple):
    """The gradients of value, rate and bias; the form holds those of its own inputs."""

    value: Tensor
    rate: Tensor | None
    bias: Tensor | None


class QueryRows(NamedTuple):
    """What the backward is given for each query: (B, K, G, Q, 1), `grad` and `output` with dv columns."""

    grad: Tensor
    output: Tensor
    peak: Tensor
    tail: Tensor
    grad_tail: Tensor | None
    entropy: Tensor | None
    grad_entropy: Tensor | None

    def cut(self, row: Tile) -> QueryRows:
        """The rows of one block of queries."""
        return QueryRows(*(None if x is None else cut_exact(x, row) for x in self))  # type: ignore[arg-type] # None stays None


def backward(x: KernelInputs, rows: QueryRows, bias_gradient: bool) -> Gradients:
    """The gradients of value, rate and bias, and in `x.form` those of its inputs; computes each tile again."""
    grads = Gradients(
        new_zeros(x.value),
        None if x.rate is None else new_zeros(x.rate),
        new_zeros(x.bias) if x.bias is not None and bias_gradient else None,
    )
    x.form.start_gradients()
    # The gradient of a row that sees nothing is 0, even if the incoming one is NaN.
    empty = rows.peak == -torch.inf
    of_tail = None if rows.grad_tail is None else torch.where(empty, 0, rows.grad_tail)
    rows = rows._replace(grad=torch.where(empty, 0, rows.grad), grad_tail=of_tail)
    for row in row_tiles(x.shape):
        block = rows.cut(row)
        # d logit = p * (d p - <grad, output> + grad_tail): the last two terms are one number for a row.
        shift = (block.grad * block.output).sum(-1, keepdim=True).neg_()
        if block.grad_tail is not None:
            shift += block.grad_tail.to(shift.dtype)
        for tile in key_tiles(row, x.shape, *span(x, row)):
            backward_tile(x, tile, block, shift, grads)
    return grads


def backward_tile(
    x: KernelInputs, tile: Tile, rows: QueryRows, shift: Tensor, grads: Gradients
) -> None:
    """Add the gradients of one tile to `grads` and to the form."""
    score, capped, final, seen = tile_logits(x, tile)
    below = final - torch.where(rows.peak == -torch.inf, 0, rows.peak)
    weights = torch.exp(below).mul_(torch.exp(-rows.tail).to(below.dtype))
    if seen is not None:
        weights.masked_fill_(~seen, 0)  # NaN in a row must not reach keys hidden from it
    slope = rows.grad @ cut(x.value, tile, tile.l).mT
    kept = weights
    if x.dropout:
        keep = keep_mask(x, tile, weights)
        kept, slope = weights * keep, slope * keep
    flipped = None if seen is None else seen.mT
    add_cut(grads.value, select_matmul(kept.mT, rows.grad, flipped), tile, tile.l)
    slope += shift
    if rows.grad_entropy is not None and rows.entropy is not None:
        # d entropy / d logit = -p (log p + entropy).
        log_weight = below.sub_(rows.tail.to(below.dtype))
        log_weight.masked_fill_(log_weight == -torch.inf, 0)
        slope -= rows.grad_entropy * (log_weight + rows.entropy)
    slope *= weights
    if seen is not None:
        slope.masked_fill_(~seen, 0)
    if grads.bias is not None:
        add_cut(grads.bias, slope, tile, tile.q, tile.l)
    if x.softcap:
        slope *= 1 - (capped / x.softcap) ** 2
        if seen is not None:
            slope.masked_fill_(~seen, 0)  # a hidden NaN score has a slope of NaN
    if x.rate is not None and grads.rate is not None:
        product = slope * score
        if seen is not None:
            product.masked_fill_(~seen, 0)
        add_cut(grads.rate, product, tile, tile.q)
        slope = slope * cut(x.rate, tile, tile.q)
    give_to_form(x, tile, slope, seen, score.shape)


def give_to_form(
    x: KernelInputs, tile: Tile, slope: Tensor, seen: Tensor | None, shape: torch.Size
) -> None:
    """Add the gradient of a tile's scores to the inputs of the form; `shape` is that of the scores."""
    if slope.shape != shape:
        # Several batch entries share queries and keys: their scores are one, and so is the gradient.
        slope = slope.sum_to_size(shape)
        seen = None if seen is None else seen.to(torch.int64).sum_to_size(shape) > 0
    x.form.add_gradients(tile, slope, seen)


def best_keys(x: KernelInputs, hard: Tensor) -> Tensor:
    """The index of the best visible key of each hard row, (B, K, G, Q): -1 for none, -2 for NaN."""
    s = x.shape
    best = hard.new_full((s.batch, s.groups, s.heads, s.queries, 1), -1, dtype=torch.int64)
    for row in row_tiles(s):
        if not bool(cut(hard, row, row.q).any()):
            continue
        top = x.value.new_full(tile_rows(s, row), -torch.inf)
        index = torch.full_like(top, -1, dtype=torch.int64)
        for tile in key_tiles(row, s, *span(x, row)):
            logits = tile_logits(x, tile).final
            peak = logits.amax(-1, keepdim=True)
            first = (logits == peak).to(torch.uint8).argmax(-1, keepdim=True) + tile.l.start
            index = torch.where(peak > top, first, index)  # strictly: the lowest index stays
            index = torch.where(peak.isnan(), -2, index)
            top = torch.maximum(top, peak)
        cut_exact(best, row).copy_(index)
    return best.squeeze(-1)


def jacobian(x: KernelInputs, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """The norm of the softmax Jacobian (B, K, G, Q), in a second pass with known maximum and total.

    `share` is the weight of all keys together and `left` that of the sink; all (B, K, G, Q, 1). The
    largest weight is kept apart, see `jacobian_norm`.
    """
    norm = torch.zeros_like(peak)
    for row in row_tiles(x.shape):
        top, log_total, of_keys = (cut_exact(t, row) for t in (peak, tail, share))
        base = torch.where(top == -torch.inf, 0, top)
        rest = cut_exact(left, row).clone()
        squares, cubes = torch.zeros_like(base), torch.zeros_like(base)
        taken = torch.zeros_like(base, dtype=torch.bool)
        for tile in key_tiles(row, x.shape, *span(x, row)):
            logits = tile_logits(x, tile).final
            weights = torch.exp(logits - base - log_total) * of_keys
            high, index = logits.max(-1, keepdim=True)
            # The largest weight is left out once, where it first occurs.
            here = (high == top) & ~taken
            weights.scatter_(-1, index, torch.where(here, 0, weights.gather(-1, index)))
            taken |= here
            rest += weights.sum(-1, keepdim=True)
            squares += weights.square().sum(-1, keepdim=True)
            cubes += weights.pow(3).sum(-1, keepdim=True)
        largest = torch.where(top == -torch.inf, 0, torch.exp(-log_total) * of_keys)
        cut_exact(norm, row).copy_(jacobian_norm(largest, rest, squares, cubes))
    return norm.squeeze(-1)


def all_scores(x: KernelInputs) -> Tensor:
    """Raw scores (B, K, G, Q, L), computed tile by tile."""
    s = x.shape
    scores = x.value.new_empty(s.batch, s.groups, s.heads, s.queries, s.keys)
    for row in row_tiles(s):
        for tile in key_tiles(row, s, 0, s.keys):
            cut_exact(scores, tile, tile.l).copy_(x.form.scores(tile))
    return scores


def all_scores_backward(x: KernelInputs, grad: Tensor) -> None:
    """Add the gradient of raw scores to the inputs of the form."""
    x.form.start_gradients()
    for row in row_tiles(x.shape):
        for tile in key_tiles(row, x.shape, 0, x.shape.keys):
            # Scores are computed again for the hidden units that they leave in the form.
            shape, part = x.form.scores(tile).shape, cut_exact(grad, tile, tile.l)
            seen = visible(x, tile)
            give_to_form(x, tile, part, None if seen is None else seen.expand_as(part), shape)


def cut_exact(x: Tensor, tile: Tile, columns: slice = WHOLE_DIM) -> Tensor:
    """The part of a tensor that belongs to the tile, where no dim broadcasts."""
    return x[tile.b, tile.k, tile.g, tile.q, columns]


def tile_rows(shape: TiledShape, row: Tile) -> tuple[int, ...]:
    """The sizes (b, k, g, q, 1) of a block of queries; blocks at the ends are smaller."""
    sizes = (shape.batch, shape.groups, shape.heads, shape.queries)
    return (*(len(range(*s.indices(n))) for s, n in zip(row[:4], sizes, strict=True)), 1)
