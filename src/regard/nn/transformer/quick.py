"""One more token through a decoder, in as few operations as a block that is written by hand.

A step of one token spends more time in Python than on the device. What the whole way checks and plans at each
step (padding, masks, statistics, the engine) does not change from token to token where there is none of it:
that case is served here, on a GPU and without gradients. All else goes the whole way.

Shape legend: B batch, H heads, K key heads, W width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.engines import step_plan
from regard.engines.sdpa import without_cudnn
from regard.forms import Form, Inner
from regard.mask import Mask
from regard.nn.position import Alibi, Rotary
from regard.nn.transformer.blocks import Block, DecoderBlock
from regard.nn.transformer.cache import Cache, DecoderCache
from regard.nn.transformer.feedforward import Residual
from regard.nn.transformer.heads import Heads
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.observed import is_observed
from regard.scores import Projected
from regard.scores.base import is_as_written
from regard.stabilize import Normalized

QUICK_ON: tuple[str, ...] = ("cuda",)


def written(kind: type, *names: str) -> dict[str, object]:
    """The methods of a class as written here: where one is replaced, a step goes the whole way."""
    return {name: getattr(kind, name) for name in names}


BLOCK = written(DecoderBlock, "attend_after", "look_around", "feed")
SELF = written(SelfAttention, "attend_after", "attend_over", "queries", "keys", "values")
CROSS = written(CrossAttention, "attend", "attend_over", "queries")
PROJECTING = written(Projected, "project_query", "project_key")


def next_token(decoder: Any, x: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache] | None:
    """What `Decoder.step` returns for one token x (B, 1, dim); None where it has to go the whole way."""
    blocks = list(decoder.blocks)
    if not may_be_quick(blocks, x, cache):
        return None

    def run() -> tuple[Tensor, DecoderCache]:
        y, own = decoder.enter(x, cache.own[0]), []
        where = cache.own[0].positions(1, x.device) if turns(blocks) else None
        for i, block in enumerate(blocks):
            y, grown = through(block, y, cache.own[i], where)
            if block.cross is not None:
                y = look_back(block, y, cache.memory[i])
            own.append(grown)
            y = block.feed(y)
        return decoder.leave(y), DecoderCache(tuple(own), cache.memory)

    return without_cudnn(run)


def turns(blocks: Any) -> bool:
    """Whether any block has rotary positions."""
    return any(isinstance(block.attention.position, Rotary) for block in blocks)


def may_be_quick(blocks: Any, x: Tensor, cache: DecoderCache) -> bool:
    """Whether this step has nothing but tokens: no gradient, padding, observer, or other method."""
    if torch.is_grad_enabled() or x.device.type not in QUICK_ON or x.shape[1] != 1:
        return False
    if not x.shape[0] or is_observed((x,)):
        return False
    for block, own in zip(blocks, cache.own, strict=True):
        layer = block.attention
        if not is_as_written(block, BLOCK) or not is_as_written(layer, SELF):
            return False
        if isinstance(layer.position, Alibi) or not layer.causal or not is_bare(own, x):
            return False
    for block, memory in zip(blocks, cache.memory, strict=False):
        if not is_as_written(block.cross, CROSS) or not is_bare(memory, x):
            return False
    return True


def is_bare(cache: Cache, x: Tensor) -> bool:
    """Whether a cache holds tokens of as many sequences as x (B, 1, dim), without padding, in its dtype."""
    value = cache.value
    if value is None or cache.left_padding is not None or cache.stop is not None:
        return False
    return value.shape[0] == x.shape[0] and value.shape[2] > 0 and value.dtype == x.dtype


def through(block: Block, x: Tensor, cache: Cache, where: Tensor | None) -> tuple[Tensor, Cache]:
    """The self-attention of a block with its norm and residual connection."""
    layer, around = block.attention, block.around_attention
    tokens = around.enter(x)
    query, key = sides(layer, tokens, with_key=True)
    if where is not None and isinstance(layer.position, Rotary):
        query = layer.position(query, positions=where)
        key = layer.position(key, positions=where)
    rows = layer.value(tokens)
    values = rows.view(rows.shape[0], layer.key_heads, 1, -1)
    grown = cache.append(layer.compare, key, values)
    return leave(around, x, attended(layer, query, grown)), grown


def look_back(block: DecoderBlock, x: Tensor, memory: Cache) -> Tensor:
    """The attention to the memory with its norm and residual connection."""
    layer, around = block.cross, block.around_cross
    assert layer is not None and around is not None
    query, _ = sides(layer, around.enter(x), with_key=False)
    return leave(around, x, attended(layer, query, memory))


def leave(around: Residual, x: Tensor, y: Tensor) -> Tensor:
    """`Residual.leave`, without a call of dropout where it does nothing."""
    return x + y if around.pre and not around.dropout.training else around.leave(x, y)


def sides(layer: Heads, tokens: Tensor, with_key: bool) -> tuple[Tensor, Any]:
    """The query (B, H, 1, W) of one token, and its key (B, K, 1, W), projected and normalised."""
    score = layer.score
    if type(score) is not Projected or not is_as_written(score, PROJECTING):
        return layer.queries(tokens), layer.keys(tokens) if with_key else None
    batch, key = tokens.shape[0], None
    rows = linear(tokens, score.query_weight, score.query_bias)
    # Of one token the heads need not be moved: they lie one after the other.
    query = rows.view(batch, score.heads, 1, -1)
    if with_key:
        rows = linear(tokens, score.key_weight, score.key_bias)
        key = rows.view(batch, score.key_heads, 1, -1)
    inside = score.score
    if isinstance(inside, Normalized):
        query = inside.change_query(query)
        key = None if key is None else inside.change_key(key)
    return query, key


def attended(layer: Heads, query: Tensor, cache: Cache) -> Tensor:
    """The output (B, 1, dim) of a layer for one query (B, H, 1, W) over a cache without padding."""
    value, side, score = cache.value, cache.key, layer.compare
    assert value is not None and side is not None
    dropped = layer.dropout and layer.training
    found = None
    if layer.sink is None and layer.engine is None and not dropped and score.softcap is None:
        found = looked_up(score.join(score.query_for(query, side), side), value)
    if found is None:
        # One query at the end of all keys sees all of them: a causal mask would hide nothing.
        return layer.attend_over(query, cache, Mask(), None, ()).output
    return layer.out(found.reshape(found.shape[0], 1, -1))


def looked_up(form: Form, value: Tensor) -> Tensor | None:
    """The context (B, H, 1, V) or (B, H, V) of a form of one query, None where it takes more than one call."""
    if isinstance(form, Inner):
        phi, psi = form.phi, form.psi
        if form.beta is not None or not phi.dtype == psi.dtype == value.dtype:
            return None
        if psi.shape[1] != value.shape[1]:
            return None
        grouped = phi.shape[1] != psi.shape[1]
        return scaled_dot_product_attention(phi, psi, value, scale=form.scale, enable_gqa=grouped)
    v = form.v.squeeze(-2)
    if form.a.dtype != value.dtype or not step_plan.computes(form.activation, v):
        return None
    if form.b.ndim != 4 or not step_plan.serves(form.b, value):
        return None
    steps, heads = step_plan.steps(), (v.shape[0], form.a.shape[1])
    given = (form.b, v.dtype, value, None, form.activation, form.parameter)
    launches = steps.launches_for(steps.step_signature(heads, *given))
    over = steps.MemorySteps(launches, form.b, value, None)
    return over.context(form.a.contiguous(), v.contiguous())
