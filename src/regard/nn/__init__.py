"""Modules to build models with, all on `regard.attention`.

| module | what it is |
|---|---|
| `multihead` | a drop-in for `torch.nn.MultiheadAttention`, with any score |
| `transformer` | attention layers, encoder and decoder blocks, the cache for generation |
| `position` | sinusoidal, learned, rotary positions, ALiBi |
| `seq2seq` | attention for recurrent decoders, an encoder-decoder, greedy and beam search |
| `graph` | attention over the edges of a graph |
| `weights` | save and load by safetensors |

Formulas of scores belong to `regard.scores`, and how they are computed to `regard.engines`: a module
projects, splits heads, reads masks and calls `regard.attention`.
"""

from regard.nn import seq2seq
from regard.nn.graph import GraphAttended, GraphAttention
from regard.nn.linear import reset_all
from regard.nn.multihead import MultiheadAttention, from_torch, replace_attention
from regard.nn.position import Alibi, LearnedPosition, Rotary, Sinusoidal
from regard.nn.seq2seq import (
    BahdanauAttention,
    DecoderAttention,
    Location,
    LuongAttention,
    MonotonicAttention,
)
from regard.nn.transformer import (
    AttentionOutput,
    BlockOutput,
    Cache,
    CrossAttention,
    Decoder,
    DecoderBlock,
    DecoderCache,
    DecoderOutput,
    Encoder,
    EncoderBlock,
    EncoderOutput,
    FeedForward,
    SelfAttention,
)
from regard.nn.weights import load, save

__all__ = [
    "Alibi",
    "AttentionOutput",
    "BahdanauAttention",
    "BlockOutput",
    "Cache",
    "CrossAttention",
    "Decoder",
    "DecoderAttention",
    "DecoderBlock",
    "DecoderCache",
    "DecoderOutput",
    "Encoder",
    "EncoderBlock",
    "EncoderOutput",
    "FeedForward",
    "GraphAttended",
    "GraphAttention",
    "LearnedPosition",
    "Location",
    "LuongAttention",
    "MonotonicAttention",
    "MultiheadAttention",
    "Rotary",
    "SelfAttention",
    "Sinusoidal",
    "from_torch",
    "load",
    "replace_attention",
    "reset_all",
    "save",
    "seq2seq",
]
