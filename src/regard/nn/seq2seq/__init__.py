"""Attention for recurrent decoders, the encoder-decoder around it, and search.

This folder holds what decodes step by step from a fixed source. Attention of a sequence over itself,
and its cache, are in `transformer`.
"""

from regard.nn.seq2seq.attention import BahdanauAttention, DecoderAttention, LuongAttention
from regard.nn.seq2seq.location import Location, coverage_loss
from regard.nn.seq2seq.memory import (
    AttentionResult,
    AttentionState,
    Decoded,
    DecoderState,
    Encoded,
    Memory,
    Source,
)
from regard.nn.seq2seq.model import EncoderDecoder
from regard.nn.seq2seq.monotonic import MonotonicAttention, expected_alignment, hard_alignment
from regard.nn.seq2seq.recurrent import AttentionalVector, RecurrentDecoder, RecurrentEncoder
from regard.nn.seq2seq.search import Hypotheses, beam_search, gnmt_length_penalty, greedy

__all__ = [
    "AttentionResult",
    "AttentionState",
    "AttentionalVector",
    "BahdanauAttention",
    "Decoded",
    "DecoderAttention",
    "DecoderState",
    "Encoded",
    "EncoderDecoder",
    "Hypotheses",
    "Location",
    "LuongAttention",
    "Memory",
    "MonotonicAttention",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "Source",
    "beam_search",
    "coverage_loss",
    "expected_alignment",
    "gnmt_length_penalty",
    "greedy",
    "hard_alignment",
]
