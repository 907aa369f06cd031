"""Attention layers, transformer blocks and stacks of them, and the cache for generation."""

from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock, FeedForward, Passed
from regard.nn.transformer.cache import Cache, DecoderCache
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.stacks import Decoder, Encoder

__all__ = [
    "Cache",
    "CrossAttention",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "Passed",
    "SelfAttention",
]
