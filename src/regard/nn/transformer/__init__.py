"""Attention layers, transformer blocks and stacks of them, and the cache for generation.

Positions are in `regard.nn.position`, loading and saving in `regard.nn.weights`.
"""

from regard.nn.transformer.blocks import BlockOutput, DecoderBlock, EncoderBlock
from regard.nn.transformer.cache import Cache, DecoderCache
from regard.nn.transformer.feedforward import FeedForward
from regard.nn.transformer.heads import AttentionOutput
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.options import AttentionOptions, BlockOptions
from regard.nn.transformer.stacks import Decoder, DecoderOutput, Encoder, EncoderOutput

__all__ = [
    "AttentionOptions",
    "AttentionOutput",
    "BlockOptions",
    "BlockOutput",
    "Cache",
    "CrossAttention",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "DecoderOutput",
    "Encoder",
    "EncoderBlock",
    "EncoderOutput",
    "FeedForward",
    "SelfAttention",
]
