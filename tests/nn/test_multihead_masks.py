"""What users of torch's module trip over, by issue number: NaN, polarity, shapes, silent errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard import Mask
from regard.nn.multihead import MultiheadAttention

BATCH, LENGTH, DIM, HEADS = 2, 5, 8, 2
SCORES = {"scaled dot": None, "additive": lambda: regard.Additive(3, HEADS), "name": "cosine"}


def build(score: str = "scaled dot", **options) -> MultiheadAttention:
    given = SCORES[score]
    given = given() if callable(given) else given
    module = MultiheadAttention(DIM, HEADS, batch_first=True, score=given, **options)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    return module


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (BATCH, LENGTH, DIM)))


def padding(*hidden: int) -> torch.Tensor:
    """The last `hidden` keys of each sequence, True = ignore."""
    return torch.stack([torch.arange(LENGTH) >= LENGTH - n for n in hidden])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("kind", ["padding", "float padding", "pairs"])
def test_41508_gradients_with_a_row_that_sees_nothing(score, train, weights, kind):
    module, x = build(score).train(train), data().requires_grad_()
    call = {"key_padding_mask": padding(LENGTH, 1)}
    if kind == "float padding":
        call = {
            "key_padding_mask": torch.zeros(BATCH, LENGTH).masked_fill(padding(5, 1), -torch.inf)
        }
    if kind == "pairs":
        mask = torch.eye(LENGTH) == 0
        mask[2] = True
        call = {"attn_mask": mask}
    output, found = module(x, x, x, need_weights=weights, **call)
    hidden = output[0] if kind != "pairs" else output[:, 2]
    torch.testing.assert_close(hidden, module.out_proj.bias.expand_as(hidden))
    if weights:
        assert (found[0] if kind != "pairs" else found[:, 2]).count_nonzero() == 0
    output.sum().backward()
    for tensor in (x, *module.parameters()):
        assert tensor.grad.isfinite().all()


def test_41508_torch_still_gives_nan():
    """If this fails, torch has changed: the pages that say so need a look."""
    module, x = nn.MultiheadAttention(DIM, HEADS, batch_first=True), data()
    assert module(x, x, x, key_padding_mask=padding(LENGTH, 1))[0].isnan().any()


def test_160064_a_head_that_sees_nothing():
    module, x = build(), data()
    mask = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    mask[:, 1] = True
    outputs = []
    for weights in (True, False):
        call = {"attn_mask": mask.flatten(0, 1), "need_weights": weights}
        outputs.append(module(x, x, x, average_attn_weights=False, **call))
    (with_weights, found), (without, _) = outputs
    assert with_weights.isfinite().all()
    torch.testing.assert_close(with_weights, without)
    assert found[:, 1].count_nonzero() == 0
    torch.testing.assert_close(found[:, 0].sum(-1), torch.ones(BATCH, LENGTH))


def test_190486_the_switch_of_the_fast_path_changes_nothing():
    module, x = build().eval(), data()
    outputs = []
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            with torch.no_grad():
                outputs.append(module(x, x, x, key_padding_mask=padding(LENGTH, 0))[0])
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(*outputs)


def test_103963_hidden_rows_of_one_sequence_leave_the_other_alone():
    module, x = build(), data()
    both, _ = module(x, x, x, key_padding_mask=padding(LENGTH, 2))
    alone, _ = module(x[1:], x[1:], x[1:], key_padding_mask=padding(2))
    torch.testing.assert_close(both[1:], alone)


def test_170400_true_is_ignore_here_and_attend_in_the_op():
    module, x, ignore = build(), data(), padding(2, 1)
    output, weights = module(x, x, x, key_padding_mask=ignore)
    assert (weights[ignore.unsqueeze(1).expand_as(weights)] == 0).all()
    biases = module.in_proj_bias.split(module.projected)
    q, k, v = (
        (x @ w.T + b).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for w, b in zip(module.projection_weights(), biases, strict=True)
    )
    op = regard.attention(q, k, v, mask=~ignore[:, None, None])
    torch.testing.assert_close(output, module.out_proj(op.transpose(1, 2).flatten(-2)))


def test_92554_a_float_padding_mask_is_not_ignored():
    module, x = build(), data()
    added = torch.zeros(BATCH, LENGTH).masked_fill(padding(3, 1), -torch.inf)
    for weights in (True, False):
        boolean = module(x, x, x, key_padding_mask=padding(3, 1), need_weights=weights)[0]
        floats = module(x, x, x, key_padding_mask=added, need_weights=weights)[0]
        torch.testing.assert_close(floats, boolean)


@pytest.mark.parametrize("train", [True, False])
def test_107084_finite_floats_in_a_mask_are_added(train):
    """Not taken for True, and not multiplied (21518)."""
    module, x = build().train(train), data()
    plain = module(x, x, x, average_attn_weights=False)[1]
    mask = torch.randn(LENGTH, LENGTH)
    found = module(x, x, x, attn_mask=mask, average_attn_weights=False)[1]
    torch.testing.assert_close(found, (plain.log() + mask).softmax(-1))


def test_95702_masks_of_two_kinds_without_a_warning():
    module, x = build(), data()
    mask = torch.randn(LENGTH, LENGTH)
    added = torch.zeros(BATCH, LENGTH).masked_fill(padding(2, 1), -torch.inf)
    mixed = module(x, x, x, key_padding_mask=padding(2, 1), attn_mask=mask)
    floats = module(x, x, x, key_padding_mask=added, attn_mask=mask)
    torch.testing.assert_close(mixed, floats)


def test_half_precision_masks_are_added_in_full():
    """Two of -65504 would be -inf, which hides the keys instead of weighing all alike."""
    module, x = build().half(), data().half()
    lowest = torch.finfo(torch.float16).min
    given = torch.full((BATCH, LENGTH), lowest).half(), torch.full((LENGTH, LENGTH), lowest).half()
    weights = module(x, x, x, key_padding_mask=given[0], attn_mask=given[1])[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, LENGTH).half())


def test_a_learned_float_mask_gets_its_gradient():
    module, x, bias = build(), data(), torch.zeros(LENGTH, LENGTH, requires_grad=True)
    module(x, x, x, attn_mask=bias, need_weights=False)[0].square().sum().backward()
    assert bias.grad.abs().max() > 0


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_nan_in_the_padding_of_a_memory_reaches_no_gradient(first, weights):
    module, query, memory = build("additive", dropout=0.1), data(BATCH, 3, DIM), data()
    module.batch_first = first
    ignore = padding(2, 1)
    memory[ignore] = torch.nan
    if not first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    output, _ = module(query, memory, memory, key_padding_mask=ignore, need_weights=weights)
    output.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nan_in_padding_stays_out_of_real_rows(dropout):
    module, x, ignore = build(dropout=dropout), data(), padding(2, 1)
    x[ignore] = torch.nan
    for weights in (True, False):
        output, _ = module(x, x, x, key_padding_mask=ignore, need_weights=weights)
        assert output[~ignore].isfinite().all()


def test_an_added_key_is_seen_whatever_the_masks_and_the_hint_say():
    """Where torch takes the hint, with need_weights=False alone, no query sees it."""
    module, x = build(add_bias_kv=True, add_zero_attn=True), data()
    call = {"attn_mask": torch.ones(LENGTH, LENGTH).triu(1).bool(), "is_causal": True}
    with_weights, weights = module(x, x, x, **call)
    without, _ = module(x, x, x, need_weights=False, **call)
    torch.testing.assert_close(with_weights, without)
    assert weights.shape == (BATCH, LENGTH, LENGTH + 2)
    assert (weights[..., LENGTH:] > 0).all()


def test_60939_large_half_precision_inputs():
    module, x = build().half(), 200 * data().half()
    torch.nn.init.constant_(module.in_proj_weight, 0.5)
    for weights in (True, False):
        assert module(x, x, x, need_weights=weights)[0].isfinite().all()


@pytest.mark.parametrize("shape", [(0, LENGTH, LENGTH), (BATCH, 0, LENGTH), (BATCH, LENGTH, 0)])
def test_empty_dims(shape):
    batch, queries, keys = shape
    module, query, key = build(), data(batch, queries, DIM), data(batch, keys, DIM)
    for need in (True, False):
        output, weights = module(query, key, key, need_weights=need)
        assert output.shape == (batch, queries, DIM)
        assert weights is None or weights.shape == (batch, queries, keys)
    if not keys:
        torch.testing.assert_close(output, module.out_proj.bias.expand_as(output))


BAD = {
    "64888: batch sizes": (lambda x: (x, x[:1], x[:1]), {}, "one batch size, got 2, 1 and 1"),
    "lengths": (lambda x: (x, x, x[:, :3]), {}, "each key needs its value"),
    "dims": (lambda x: (x, x[0], x), {}, r"all be \(batch, length, dim\)"),
    "four dims": (lambda x: (x[None],) * 3, {}, r"or all \(length, dim\)"),
    "query width": (lambda x: (x[..., :3], x, x), {}, "query has width 3.*qdim=3"),
    "key width": (lambda x: (x, x[..., :3], x), {}, "key has width 3.*kdim=3"),
    "hint alone": (lambda x: (x,) * 3, {"is_causal": True}, "give attn_mask too"),
    "97605: a mask for each sequence": (
        lambda x: (x,) * 3,
        {"attn_mask": torch.zeros(BATCH, LENGTH, LENGTH).bool()},
        r"repeat_interleave\(num_heads, 0\)",
    ),
    "a mask with heads": (
        lambda x: (x,) * 3,
        {"attn_mask": torch.zeros(BATCH, HEADS, LENGTH, LENGTH).bool()},
        r"flatten\(0, 1\)",
    ),
    "mask shape": (
        lambda x: (x,) * 3,
        {"attn_mask": torch.zeros(3, 3)},
        r"attn_mask must be \(5, 5\)",
    ),
    "padding shape": (
        lambda x: (x,) * 3,
        {"key_padding_mask": torch.zeros(LENGTH, BATCH)},
        r"key_padding_mask must be \(2, 5\), that is \(batch, key length\)",
    ),
    "padding without a batch": (
        lambda x: (x[0],) * 3,
        {"key_padding_mask": torch.zeros(1, LENGTH)},
        r"must be \(5,\), that is \(key length\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_reason(case):
    make, call, reason = BAD[case]
    with pytest.raises(ValueError, match=reason):
        build()(*make(data()), **call)


def test_refused_types():
    module, x = build(), data()
    for mask in (padding(1, 2).int(), [[1]]):
        with pytest.raises(TypeError, match=r"True = ignore.*1 = attend key_padding_mask == 0"):
            module(x, x, x, key_padding_mask=mask)
    with pytest.raises(TypeError, match=r"True = attend, is for regard\.attention"):
        module(x, x, x, attn_mask=Mask.causal())
    with pytest.raises(TypeError, match=r"key is torch.float64 but .* torch.float32"):
        module(x, x.double(), x)
    with pytest.raises(TypeError, match="query must be a tensor"):
        module(None, x, x)


def test_refused_devices():
    module, x = build(), data()
    with pytest.raises(ValueError, match=r"key is on meta but .* on cpu; use key\.to\('cpu'\)"):
        module(x, x.to("meta"), x)
    with pytest.raises(ValueError, match="key_padding_mask is on meta but query is on cpu"):
        module(x, x, x, key_padding_mask=padding(1, 2).to("meta"))
    with pytest.raises(ValueError, match="attn_mask is on meta but query is on cpu"):
        module(x, x, x, attn_mask=torch.zeros(LENGTH, LENGTH, device="meta"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_heads": 3}, "num_heads=3 does not divide embed_dim=8"),
        ({"num_heads": 0}, "num_heads must be an integer of 1 or more"),
        ({"dropout": 1.5}, "dropout must be a probability"),
        ({"key_heads": 3, "num_heads": 4}, "key_heads=3 does not divide num_heads=4"),
        ({"kdim": -1}, "kdim must be"),
    ],
)
def test_refused_at_construction(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        MultiheadAttention(**{"embed_dim": 8, "num_heads": 2} | arguments)
