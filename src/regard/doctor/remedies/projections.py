"""Find the weights that project to the queries and keys of a module, head by head.

Names alone are not trusted. `scale_rows` changes the weights and checks that query and key of the call
scale as wanted. If they do not, because of a norm, a bias or another layout behind a known name, the
weights are restored.

Shape legend: H query heads, K key heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.remedies.locate import LocatedCall, sides_of
from regard.doctor.remedies.undoing import undone_by_error
from regard.nn.multihead import MultiheadAttention
from regard.scores import Projected, Score

# Returns query and key of the call in the model as it is now.
Look = Callable[[], tuple[Tensor, Tensor]]

# Names of the projections in models in use: separate ones for query and key, and fused ones.
PAIRS = (
    ("q_proj", "k_proj"),
    ("query", "key"),
    ("q", "k"),
    ("Wq", "Wk"),
    ("wq", "wk"),
    ("W_q", "W_k"),
    ("w_q", "w_k"),
    ("to_q", "to_k"),
    ("q_lin", "k_lin"),
    ("q_linear", "k_linear"),
    ("query_proj", "key_proj"),
    ("linear_q", "linear_k"),
)
FUSED = (
    "c_attn",
    "qkv",
    "qkv_proj",
    "Wqkv",
    "query_key_value",
    "in_proj",
    "to_qkv",
    "W_pack",
    "attn_qkv",
)


class HeadSlices(NamedTuple):
    """The outputs of a linear map, head by head: slices along `dim` of a weight or bias.

    Attributes:
        parameter: the whole parameter.
        dim: the dim of the outputs.
        heads: index of the first output of each head.
        width: number of outputs of a head.
    """

    parameter: nn.Parameter
    dim: int
    heads: tuple[int, ...]
    width: int

    def of(self, head: int) -> Tensor:
        """The outputs of a head, as a view."""
        return self.parameter.narrow(self.dim, self.heads[head], self.width)


class QueryKeySlices(NamedTuple):
    """The parameters that project to the queries of H heads, and to the keys of K heads."""

    query: tuple[HeadSlices, ...]
    key: tuple[HeadSlices, ...]


def candidates(module: nn.Module, call: LocatedCall) -> Iterator[QueryKeySlices]:
    """The parameters that may be the projections of a module, likeliest first."""
    heads, key_heads = call.place.heads, call.place.key_heads
    score = getattr(module, "score", None)
    if isinstance(score, Score):
        inner = score.inner
        if isinstance(inner, Projected):
            of_query = _rows([inner.query_weight, inner.query_bias], 0, heads)
            yield QueryKeySlices(of_query, _rows([inner.key_weight, inner.key_bias], 0, key_heads))
    if isinstance(module, (nn.MultiheadAttention, MultiheadAttention)):
        yield _of_torch(module, heads, key_heads)
    for of_query, of_key in PAIRS:
        query: Any = getattr(module, of_query, None)
        key: Any = getattr(module, of_key, None)
        if _is_linear(query) and _is_linear(key):
            yield QueryKeySlices(_of_linear(query, heads), _of_linear(key, key_heads))
    for name in FUSED:
        fused: Any = getattr(module, name, None)
        if _is_linear(fused):
            yield from _of_fused(fused, heads, key_heads)


def scale_rows(
    module: nn.Module,
    call: LocatedCall,
    on_query: Tensor,
    on_key: Tensor,
    look: Look,
) -> Callable[[], None] | None:
    """Multiply the weights of the queries of each head by `on_query` (H,), of the keys by `on_key` (K,).

    Args:
        module: the module that has the weights.
        call: the call before the change.
        on_query: factors of the query heads.
        on_key: factors of the key heads.
        look: returns query and key of the call as they are now.

    Returns:
        The function that restores the weights, bit by bit unless they were trained since; None if no
        weights scale exactly these.
    """
    for found in candidates(module, call):
        undo = _multiply(found, on_query, on_key)
        with undone_by_error(undo):
            told = _scaled(look(), call, on_query, on_key)
        if told:
            return undo
        undo()
    return None


def _scaled(
    now: tuple[Tensor, Tensor], call: LocatedCall, on_query: Tensor, on_key: Tensor
) -> bool:
    """Whether query and key are those of the call times these factors."""
    factors = (x.view(-1, 1, 1) for x in (on_query, on_key))
    wanted = [x * factor.to(x) for x, factor in zip(sides_of(call), factors, strict=True)]
    return all(_close(x, y) for x, y in zip(now, wanted, strict=True))


def redraw_rows(
    module: nn.Module, call: LocatedCall, heads: list[int], generator: torch.Generator, look: Look
) -> Callable[[], None] | None:
    """Draw the weights of the queries and keys of these heads again: normal, with the same rms.

    Returns the function that restores the weights; None if they cannot be identified.
    """
    # A trial: double the chosen heads, and see whether exactly their queries and keys double.
    chosen = torch.ones(call.place.heads)
    chosen[heads] = 2.0
    for found in candidates(module, call):
        undo = _multiply(found, chosen, chosen)
        with undone_by_error(undo):
            told = _scaled(look(), call, chosen, chosen)
        undo()
        if told:
            return _draw(found, heads, generator)
    return None


@torch.no_grad()
def _draw(
    found: QueryKeySlices, heads: list[int], generator: torch.Generator
) -> Callable[[], None]:
    before: list[tuple[Tensor, Tensor]] = []
    for rows in (*found.query, *found.key):
        for head in heads:
            part = rows.of(head)
            before.append((part, part.clone()))
            drawn = torch.randn(part.shape, generator=generator).to(part)
            part.copy_(drawn * part.square().mean().sqrt())

    @torch.no_grad()
    def undo() -> None:
        for part, values in reversed(before):
            part.copy_(values)

    return undo


@torch.no_grad()
def _multiply(found: QueryKeySlices, on_query: Tensor, on_key: Tensor) -> Callable[[], None]:
    changed: list[tuple[Tensor, Tensor, Tensor, float]] = []
    for sides, factors in ((found.query, on_query), (found.key, on_key)):
        for rows in sides:
            for head, factor in enumerate(factors.tolist()):
                if factor != 1.0:
                    part = rows.of(head)
                    before = part.clone()
                    part.mul_(factor)
                    changed.append((part, before, part.clone(), factor))

    @torch.no_grad()
    def undo() -> None:
        for part, before, after, factor in reversed(changed):
            if torch.equal(part, after):
                part.copy_(before)
            else:  # trained since: keep what was learned, and take only the factor out
                part.div_(factor)

    return undo


def _close(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    # 1e4 eps is 0.1% in fp32: room for rounding in half precision layers, far below any wrong layout.
    limit = 1e4 * torch.finfo(x.dtype).eps * y.abs().max().clamp(min=1e-30)
    return bool(((x - y).abs().max() <= limit).item())


def _of_torch(module: Any, heads: int, key_heads: int) -> QueryKeySlices:
    """The slices of torch's or regard's multi-head module, with one stacked parameter or three."""
    whole, bias = module.in_proj_weight, module.in_proj_bias
    size = module.embed_dim
    queries, keys = getattr(module, "projected", (size, size, size))[:2]
    if whole is not None:
        query, key = [(whole, 0)], [(whole, queries)]
    else:
        query, key = [(module.q_proj_weight, 0)], [(module.k_proj_weight, 0)]
    if bias is not None:
        query, key = [*query, (bias, 0)], [*key, (bias, queries)]
    of_query = [_block(p, 0, start, queries, heads) for p, start in query]
    of_key = [_block(p, 0, start, keys, key_heads) for p, start in key]
    if module.bias_k is not None:
        of_key.append(_block(module.bias_k, 2, 0, keys, key_heads))
    return QueryKeySlices(tuple(of_query), tuple(of_key))


def _of_linear(linear: Any, heads: int) -> tuple[HeadSlices, ...]:
    weight, bias = linear.weight, getattr(linear, "bias", None)
    return (*_rows([weight], _output_dim(linear), heads), *_rows([bias], 0, heads))


def _of_fused(linear: Any, heads: int, key_heads: int) -> Iterator[QueryKeySlices]:
    """The slices of a fused projection: queries, keys and values in a row, or interleaved by head."""
    dim = _output_dim(linear)
    outputs, groups = linear.weight.shape[dim], heads + 2 * key_heads
    if outputs % groups:
        return
    width = outputs // groups
    parts = [(p, d) for p, d in ((linear.weight, dim), (linear.bias, 0)) if p is not None]
    starts = [i * width for i in range(groups)]
    layouts = [(starts[:heads], starts[heads : heads + key_heads])]
    each = heads // key_heads  # queries of a key head, then the key, then the value
    query = [(h // each * (each + 2) + h % each) * width for h in range(heads)]
    layouts.append((query, [(k * (each + 2) + each) * width for k in range(key_heads)]))
    for of_query, of_key in layouts:
        yield QueryKeySlices(
            tuple(HeadSlices(p, d, tuple(of_query), width) for p, d in parts),
            tuple(HeadSlices(p, d, tuple(of_key), width) for p, d in parts),
        )


def _rows(parameters: list, dim: int, heads: int) -> tuple[HeadSlices, ...]:
    """Whole parameters, divided into equal heads."""
    return tuple(_block(p, dim, 0, p.shape[dim], heads) for p in parameters if p is not None)


def _block(parameter: nn.Parameter, dim: int, start: int, size: int, heads: int) -> HeadSlices:
    width = size // heads
    return HeadSlices(parameter, dim, tuple(start + h * width for h in range(heads)), width)


def _is_linear(module: object) -> bool:
    # By its shape, not its class: quantised weights are no floats, and Conv1D is no nn.Linear.
    weight = getattr(module, "weight", None)
    plain = isinstance(weight, Tensor) and weight.is_floating_point() and weight.ndim == 2
    return isinstance(module, nn.Module) and plain and hasattr(module, "bias")


def _output_dim(linear: nn.Module) -> int:
    """The dim of the outputs: 0, but 1 for transformers' Conv1D, which GPT-2 has."""
    return 1 if type(linear).__name__ == "Conv1D" else 0
