"""Attention layers, blocks and stacks against torch's and transformers' own, and at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard import Mask
from regard.nn.position import Alibi, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.stacks import Decoder, Encoder
from regard.stabilize import Normalized, SoftCapped

DIM, HEADS = 8, 2
F64 = torch.float64
SCORES = {
    "scaled_dot": lambda dim, heads: None,
    "dot": lambda dim, heads: "dot",
    "cosine": lambda dim, heads: regard.Cosine(heads),
    "gaussian": lambda dim, heads: regard.Gaussian(),
    "additive": lambda dim, heads: regard.Additive(dim // heads, heads),
    "gatv2": lambda dim, heads: regard.GATv2(dim // heads, heads),
    "bilinear": lambda dim, heads: regard.Bilinear(dim, dim, heads),
    "low_rank": lambda dim, heads: regard.LowRank(dim, dim, 4, heads),
    "projected": lambda dim, heads: regard.Projected(regard.Additive(5, heads), dim, dim),
    "normalized": lambda dim, heads: Normalized(regard.ScaledDot(), dim // heads),
}


def tokens(length: int = 5, dim: int = DIM, dtype=F64) -> torch.Tensor:
    return torch.randn(2, length, dim, dtype=dtype)


def copy_attention(layer, theirs: nn.MultiheadAttention) -> None:
    """The weights of torch's module into ours."""
    q, k, v = theirs.in_proj_weight.detach().chunk(3)
    qb, kb, vb = theirs.in_proj_bias.detach().chunk(3)
    score = layer.score
    pairs = [(score.query_weight, q), (score.key_weight, k), (score.query_bias, qb)]
    pairs += [(score.key_bias, kb), (layer.value.weight, v), (layer.value.bias, vb)]
    pairs += [(layer.out.weight, theirs.out_proj.weight), (layer.out.bias, theirs.out_proj.bias)]
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)


@torch.no_grad()
def copy_block(block, theirs) -> None:
    copy_attention(block.attention, theirs.self_attn)
    norms = [block.around_attention.norm, block.around_feedforward.norm]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        copy_attention(block.cross, theirs.multihead_attn)
        norms.insert(1, block.around_cross.norm)
    for i, norm in enumerate(norms):
        getattr(theirs, f"norm{i + 1}").weight.normal_()
        norm.load_state_dict(getattr(theirs, f"norm{i + 1}").state_dict())
    block.feedforward.enter.load_state_dict(theirs.linear1.state_dict())
    block.feedforward.leave.load_state_dict(theirs.linear2.state_dict())


def test_masks_have_true_for_attend_unlike_torchs_own_module():
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=F64)
    layer, x = SelfAttention(DIM, HEADS, bias=True).double(), tokens()
    nn.init.normal_(theirs.in_proj_bias)
    copy_attention(layer, theirs)
    seen = torch.rand(5, 5) > 0.4
    seen.fill_diagonal_(True)
    wanted, weights = theirs(x, x, x, attn_mask=~seen, average_attn_weights=False)
    found = layer.attend(x, mask=seen, want={"weights"}).attended
    torch.testing.assert_close(found.output, wanted)
    torch.testing.assert_close(found.weights, weights)
    torch.testing.assert_close(layer(x, mask=Mask.dense(seen)), wanted)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_block_equals_torchs_layer(norm, activation):
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, 12, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=F64
    )
    block = EncoderBlock(DIM, HEADS, feedforward=12, norm=norm, activation=activation, bias=True)
    copy_block(block.double(), theirs)
    x, padding = tokens(), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    wanted = theirs(x, src_key_padding_mask=padding)
    found = block(x, lengths=[5, 3])
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, :3], wanted[1, :3])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_block_equals_torchs_layer(norm):
    theirs = nn.TransformerDecoderLayer(
        DIM, HEADS, 12, 0.0, "gelu", batch_first=True, norm_first=norm == "pre", dtype=F64
    )
    block = DecoderBlock(DIM, HEADS, feedforward=12, norm=norm, memory_dim=DIM, bias=True)
    copy_block(block.double(), theirs)
    x, memory = tokens(), tokens(4)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    causal = torch.ones(5, 5).triu(1).bool()
    wanted = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    torch.testing.assert_close(block(x, memory, memory_lengths=[4, 2]), wanted)
    stored = block.prepare(memory, torch.tensor([4, 2]))
    torch.testing.assert_close(block(x, stored), wanted)


def test_decoder_equals_qwen3_with_grouped_heads_qk_norm_rotary_and_left_padding():
    """Also pins that queries and keys are normalised before they are turned."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rms_norm_eps=1e-6,
        attn_implementation="sdpa",  # theirs in eager gives NaN for padded rows in fp64
    )
    theirs = transformers.Qwen3Model(config).double().eval()
    base = config.rope_parameters["rope_theta"]
    ours = Decoder(
        DecoderBlock(
            16,
            4,
            feedforward=24,
            norm_type="rms",
            activation="swiglu",
            key_heads=2,
            width=6,
            value_dim=6,
            qk_norm="rms",
            position=Rotary(6, base),
        )
        for _ in range(2)
    ).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
        for block, layer in zip(ours.blocks, theirs.layers, strict=True):
            score, attention, feed = block.attention.score, layer.self_attn, layer.mlp
            pairs = [
                (score.query_weight, attention.q_proj.weight),
                (score.key_weight, attention.k_proj.weight),
                (score.score.query_norm.weight, attention.q_norm.weight),
                (score.score.key_norm.weight, attention.k_norm.weight),
                (block.attention.value.weight, attention.v_proj.weight),
                (block.attention.out.weight, attention.o_proj.weight),
                (block.feedforward.gate.weight, feed.gate_proj.weight),
                (block.feedforward.enter.weight, feed.up_proj.weight),
                (block.feedforward.leave.weight, feed.down_proj.weight),
                (block.around_attention.norm.weight, layer.input_layernorm.weight),
                (block.around_feedforward.norm.weight, layer.post_attention_layernorm.weight),
            ]
            for mine, other in pairs:
                mine.copy_(other)
        ours.norm.weight.copy_(theirs.norm.weight)
    ids = torch.randint(11, (2, 6))
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    wanted = theirs(input_ids=ids, attention_mask=mask, position_ids=places).last_hidden_state
    x, start = theirs.embed_tokens(ids), torch.tensor([0, 2])
    # Their tables of angles are in fp32.
    same = {"rtol": 1e-5, "atol": 1e-5}
    found = ours(x, left_padding=start)
    torch.testing.assert_close(found[0], wanted[0], **same)
    torch.testing.assert_close(found[1, 2:], wanted[1, 2:], **same)
    _, cache = ours.step(x[:, :4], ours.begin(left_padding=start))
    torch.testing.assert_close(ours.step(x[:, 4:], cache)[0], wanted[:, 4:], **same)


@pytest.mark.parametrize("name", SCORES)
def test_every_parameter_learns(name):
    """A parameter that is made but never used would stay as it is, silently."""
    model = Decoder(
        [DecoderBlock(DIM, HEADS, SCORES[name](DIM, HEADS), memory_dim=DIM, sink=True, bias=True)],
        position=Sinusoidal(DIM, learned=True),
    ).double()
    weigh = torch.randn(2, 5, DIM, dtype=F64)
    (model(tokens(), tokens(4)) * weigh).sum().backward()
    # A bias on keys, added to all of them, drops out of the softmax of these scores.
    alike = name in ("scaled_dot", "dot", "gaussian")
    for key, p in model.named_parameters():
        assert p.grad is not None and (p.grad.abs().max() > 1e-12 or ("key_bias" in key and alike))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SCORES)
def test_rows_that_see_nothing_are_0_in_training_and_eval_with_and_without_weights(name, training):
    """Torch's own module gives NaN here, with weights or in eval, and NaN gradients."""
    layer = SelfAttention(DIM, HEADS, SCORES[name](DIM, HEADS)).double().train(training)
    x, seen = tokens(), torch.ones(2, 1, 5, 5, dtype=torch.bool)
    seen[1, :, 2] = False
    found = layer.attend(x, mask=seen, want={"weights"}).attended
    torch.testing.assert_close(found.output, layer(x, mask=seen))
    assert (found.output[1, 2] == 0).all() and (found.weights[1, :, 2] == 0).all()
    found.output[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", SCORES)
def test_nan_in_padding_never_leaks(name):
    """Not even into the gradients of projections, where 0 * NaN would be NaN."""
    model = Encoder([EncoderBlock(DIM, HEADS, SCORES[name](DIM, HEADS))] * 2).double()
    x = tokens()
    x[0, :2] = x[1, 4:] = torch.nan
    found = model(x, left_padding=[2, 0], lengths=[5, 4])
    torch.testing.assert_close(found[:1, 2:], model(x[:1, 2:]))
    torch.testing.assert_close(found[1:, :4], model(x[1:, :4]))
    (found[0, 2:].sum() + found[1, :4].sum()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_weights_can_be_had_from_every_layer_of_a_stack():
    model = Decoder([DecoderBlock(DIM, HEADS, memory_dim=6) for _ in range(3)]).double()
    x, memory = tokens(), torch.randn(2, 4, 6, dtype=F64)
    y, cache, passed = model.attend(x, memory, want={"weights", "entropy"})
    torch.testing.assert_close(y, model(x, memory))
    assert len(passed) == 3 and cache.length == 5
    stepped = model.attend(x, cache=model.begin(memory), want={"weights"})
    torch.testing.assert_close(stepped.blocks[2].memory.weights, passed[2].memory.weights)
    for one in passed:
        assert one.own.weights.shape == (2, HEADS, 5, 5) and one.memory.weights.shape[-1] == 4
        torch.testing.assert_close(one.own.weights.sum(-1), torch.ones(2, HEADS, 5, dtype=F64))
        assert (one.own.weights.triu(1) == 0).all() and one.own.entropy is not None
    encoder = Encoder([EncoderBlock(DIM, HEADS) for _ in range(2)]).double()
    assert encoder.attend(x, want={"weights"}).blocks[1].own.weights.shape == (2, HEADS, 5, 5)
    assert encoder.attend(x).blocks[0].own.weights is None


def test_projections_are_as_wide_as_the_score_needs_and_never_stacked():
    shapes = {
        "additive": (regard.Additive(5, HEADS), {"query_weight": (10, DIM), "score.v": (2, 5)}),
        "low_rank": (regard.LowRank(DIM, DIM, 3, HEADS), {"query_factor": (6, DIM)}),
        "bilinear": (regard.Bilinear(DIM, DIM, HEADS), {"weight": (2, DIM, DIM)}),
        "projected": (
            regard.Projected(regard.GATv2(3, HEADS), DIM, DIM, key_heads=1),
            {"query_weight": (6, DIM), "key_weight": (3, DIM)},
        ),
    }
    for score, wanted in shapes.values():
        layer = SelfAttention(DIM, HEADS, score)
        found = {name: tuple(p.shape) for name, p in layer.score.named_parameters()}
        assert wanted.items() <= found.items()
        assert sum(name.endswith(("query_weight", "query_factor")) for name in found) <= 1


def test_grouped_heads_share_keys_and_values():
    layer = SelfAttention(DIM, 4, key_heads=2, width=3, value_dim=5).double()
    x = tokens()
    q = (x @ layer.score.query_weight.T).view(2, 5, 4, 3).transpose(1, 2)
    k, v = (
        (x @ w.T).view(2, 5, 2, -1).transpose(1, 2).repeat_interleave(2, 1)
        for w in (layer.score.key_weight, layer.value.weight)
    )
    heads = nn.functional.scaled_dot_product_attention(q, k, v)
    wanted = heads.transpose(1, 2).flatten(2) @ layer.out.weight.T
    torch.testing.assert_close(layer(x), wanted)


def test_qk_norm_is_the_stabiliser_around_the_score():
    torch.manual_seed(0)
    one = SelfAttention(DIM, HEADS, qk_norm="layer", position=Rotary(4))
    torch.manual_seed(0)
    other = SelfAttention(
        DIM, HEADS, Normalized(regard.ScaledDot(), 4, norm="layer"), position=Rotary(4)
    )
    x = tokens(dtype=torch.float32)
    assert torch.equal(one(x), other(x)) and list(one.state_dict()) == list(other.state_dict())


def test_norms_come_before_the_rotation_with_a_cap_inside():
    capped = Normalized(SoftCapped(regard.ScaledDot(), 1.0), 4)
    layer, x, rotary = SelfAttention(DIM, HEADS, capped, position=Rotary(4)), tokens(), Rotary(4)
    with torch.no_grad():
        capped.query_norm.weight.normal_()
        capped.key_norm.weight.normal_()
    layer.double()
    q, k = (rotary(heads) for heads in (layer.queries(x), layer.keys(x)))
    plain = nn.functional.rms_norm(layer.score.project_query(x.unsqueeze(1)), (4,), eps=1e-6)
    torch.testing.assert_close(layer.queries(x), plain * capped.query_norm.weight)
    logits = (q @ k.mT / 2).tanh()
    found = layer.attend(x, want={"weights"}).attended.weights
    torch.testing.assert_close(found, logits.softmax(-1))


def test_layers_are_printed_with_what_is_set():
    text = repr(SelfAttention(DIM, HEADS, key_heads=1, sink=True, causal=True, dropout=0.1))
    assert "dim=8, heads=2, key_heads=1, sink=True, dropout=0.1, causal=True" in text
    assert "memory_dim=3" in repr(CrossAttention(DIM, HEADS, memory_dim=3))


def test_a_sink_takes_weight_from_the_keys():
    layer, x = SelfAttention(DIM, HEADS, sink=True).double(), tokens()
    found = layer.attend(x, want={"weights"}).attended.weights.sum(-1)
    assert (found < 1).all()
    with torch.no_grad():
        layer.sink.fill_(50.0)
    assert layer(x).abs().max() < 1e-9


def test_a_soft_cap_inside_the_score_is_kept_through_the_layer():
    capped, plain = (SelfAttention(DIM, HEADS, s) for s in (SoftCapped(regard.Dot(), 0.1), "dot"))
    capped.load_state_dict(plain.state_dict(), strict=False)
    x = 10 * tokens(dtype=torch.float32)
    weights = [layer.attend(x, want={"weights"}).attended.weights for layer in (capped, plain)]
    assert weights[0].max() < 0.3 < weights[1].max()


def test_dropout_acts_in_training_alone():
    block, x = EncoderBlock(DIM, HEADS, dropout=0.5).double(), tokens()
    assert (block(x) != block(x)).any()
    block.eval()
    assert torch.equal(block(x), block(x))


def test_memory_has_its_own_width_score_and_parameters():
    score = regard.Additive(5, HEADS)
    block = DecoderBlock(DIM, HEADS, score, memory_dim=3, key_heads=1)
    assert block.cross.score.key_weight.shape == (5, 3)
    assert block.attention.score.score is score
    assert not torch.equal(block.cross.score.score.v, score.v)
    mixed = DecoderBlock(DIM, HEADS, score, memory_dim=3, memory_score="cosine")
    assert mixed.cross.score.name == "cosine" and mixed.attention.score.name == "additive"
    assert mixed(tokens(dtype=torch.float32), torch.randn(2, 4, 3)).shape == (2, 5, DIM)


def test_alibi_and_a_causal_mask_for_every_score():
    x, allowed = tokens(), torch.ones(5, 5).tril().bool()
    for name, build in SCORES.items():
        layer = SelfAttention(DIM, HEADS, build(DIM, HEADS), causal=True, position=Alibi(HEADS))
        layer.double()
        free = SelfAttention(DIM, HEADS, layer.score, position=Alibi(HEADS, causal=True)).double()
        free.value, free.out = layer.value, layer.out
        torch.testing.assert_close(layer(x), free(x), msg=name)
        torch.testing.assert_close(layer(x), layer(x, mask=allowed), msg=name)
