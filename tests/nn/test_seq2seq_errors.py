"""Wrong calls of the recurrent attentions: each gets one error, in the words of the caller."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.nn.seq2seq import (
    AttentionState,
    BahdanauAttention,
    DecoderAttention,
    LuongAttention,
)

B, L, Q, K, E = 3, 6, 5, 7, 8
KEYS = torch.zeros(B, L, K)


def bahdanau():
    return BahdanauAttention(Q, K, E)


def memory():
    return bahdanau().prepare(KEYS)


def shorn_state():
    """A total of batch 1 would broadcast."""
    state = bahdanau().initial_state(memory())
    return AttentionState(state.weights, state.total[:1])


def other_state():
    return bahdanau().initial_state(bahdanau().prepare(KEYS[:, :4]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LuongAttention(4, 5, "dot"), ValueError, "query_dim == key_dim, got 4 and 5"),
        (lambda: LuongAttention(4, 5, "mlp"), ValueError, "'general' or 'concat', got 'mlp'"),
        (lambda: LuongAttention(4, 5, scaled=True), ValueError, "learns its own scale"),
        (lambda: LuongAttention(4, 4, "dot", 2), ValueError, "2 heads apart"),
        (lambda: LuongAttention(4, 4, "dot", hidden=3), ValueError, "hidden=3 is for mode='con"),
        (lambda: BahdanauAttention(4, 5, 0), ValueError, "hidden must be an integer of 1"),
        (lambda: BahdanauAttention(4, 5, 6, window=(1, -1)), ValueError, r"window must be \(back"),
        (
            lambda: BahdanauAttention(4, 5, 6, dropout=1.0),
            ValueError,
            "dropout must be a probability from 0",
        ),
        (lambda: BahdanauAttention(4, 5, 6, location=31), TypeError, r"Location\(...\) or None"),
        (lambda: DecoderAttention(3), TypeError, "must be a Score object, a name or None, got 3"),
        (lambda: bahdanau().prepare(torch.zeros(L, K)), ValueError, r"keys must be \(batch, len"),
        (lambda: DecoderAttention("additive"), ValueError, r"width=\.\.\., or the object"),
        (lambda: DecoderAttention("dott"), ValueError, "did you mean 'dot'"),
        (lambda: DecoderAttention(regard.Dot(), width=3), ValueError, "for a score given by name"),
        (
            lambda: bahdanau().prepare(torch.zeros(B, L, 9)),
            ValueError,
            r"BahdanauAttention was built for key dim 7, got key of shape \(3, 6, 9\)",
        ),
        (
            lambda: DecoderAttention(regard.Additive(4)).prepare(KEYS),
            ValueError,
            r"DecoderAttention was built for key dim 4, got key of shape \(3, 6, 7\)",
        ),
        (lambda: bahdanau().prepare(KEYS, lengths=[7, 1, 1]), ValueError, "length 6, got 1 to 7"),
        (
            lambda: bahdanau().prepare(KEYS, lengths=torch.tensor([1, 1])),
            ValueError,
            r"\(3,\), got",
        ),
        (lambda: bahdanau().prepare(KEYS, lengths=torch.ones(B)), TypeError, "must be integers"),
        (lambda: bahdanau().prepare(KEYS, visible=torch.ones(B, L)), TypeError, "True = attend"),
        (
            lambda: bahdanau().prepare(KEYS, visible=torch.ones(B, 2) > 0),
            ValueError,
            r"\(3, 6\), got",
        ),
        (lambda: bahdanau().prepare(KEYS, values=KEYS[:, :2]), ValueError, "batch and length of k"),
        (lambda: bahdanau()(torch.zeros(1, Q), memory()), ValueError, "query has batch 1"),
        (lambda: bahdanau()(torch.zeros(Q), memory()), ValueError, r"\(batch, dim\) for one"),
        (
            lambda: bahdanau()(torch.zeros(B, 9), memory()),
            ValueError,
            r"BahdanauAttention was built for query dim 5, got query of shape \(3, 9\)",
        ),
        (
            lambda: bahdanau()(torch.zeros(B, Q), memory(), other_state()),
            ValueError,
            "state is for",
        ),
        (lambda: bahdanau()(torch.zeros(B, Q), KEYS), TypeError, r"from attention.prepare\(keys"),
        (
            lambda: bahdanau()(torch.zeros(B, Q), memory(), torch.zeros(B, 1, L)),
            TypeError,
            "state must be the AttentionState",
        ),
        (
            lambda: bahdanau()(torch.zeros(B, Q), memory(), shorn_state()),
            ValueError,
            r"state is for .* = \(1, 1, 6\), but",
        ),
        (lambda: setattr(bahdanau(), "window", (1, -2)), ValueError, r"window must be \(back"),
    ],
)
def test_one_clear_error(call, error, message):
    """A batch of 1 that broadcasts by mistake costs days (pytorch#64888): it is refused."""
    with pytest.raises(error, match=message):
        call()
