"""`replace_attention` on a model that was replaced before, with bad scores, and its random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import regard
from regard.nn import MultiheadAttention, from_torch, replace_attention

DIM, HEADS = 12, 4


def model() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def scores_of(encoder: nn.Module) -> list[str]:
    return [m.score.name for m in encoder.modules() if isinstance(m, MultiheadAttention)]


def test_a_second_score_takes_the_place_of_the_first_and_weights_stay() -> None:
    encoder, x = model().eval(), torch.randn(2, 5, DIM)
    expected = encoder(x)
    replace_attention(encoder, "cosine")
    modules = [layer.self_attn for layer in encoder.layers]
    seen: list[nn.Module] = []
    modules[0].register_forward_hook(lambda module, *_: seen.append(module))
    before = {name: p for name, p in encoder.named_parameters() if "score." not in name}
    names = replace_attention(encoder, "additive")
    assert names == ["layers.0.self_attn", "layers.1.self_attn"]
    assert scores_of(encoder) == ["additive"] * 2
    # The same objects, hooks included: an optimizer and a doctor go on working.
    assert [layer.self_attn for layer in encoder.layers] == modules
    after = dict(encoder.named_parameters())
    assert all(after[name] is p for name, p in before.items())
    encoder(x)
    assert seen == modules[:1]
    replace_attention(encoder)
    torch.testing.assert_close(encoder(x), expected, atol=1e-5, rtol=1e-5)


def test_a_score_that_is_there_keeps_what_it_learned() -> None:
    encoder = model()
    replace_attention(encoder, "additive")
    vectors = [p for name, p in encoder.named_parameters() if name.endswith("score.v")]
    replace_attention(encoder, "additive")
    assert all(
        a is b
        for a, b in zip(
            vectors,
            [p for name, p in encoder.named_parameters() if name.endswith("score.v")],
            strict=True,
        )
    )
    # An object says by itself what its parameters are.
    given = regard.Additive(DIM // HEADS, HEADS)
    replace_attention(encoder, given)
    for layer in encoder.layers:
        assert torch.equal(layer.self_attn.score.v, given.v)
        assert layer.self_attn.score.v is not given.v


def test_options_that_torch_does_not_have_survive() -> None:
    ours = MultiheadAttention(DIM, HEADS, qdim=7, key_heads=2, width=5, engine="reference")
    value = ours.projection_weights().value.clone()
    assert replace_attention(ours, "cosine") == [""]
    assert (ours.qdim, ours.key_heads, ours.engine) == (7, 2, "reference")
    assert ours.projected == (HEADS * 5, 2 * 5, 2 * 3)
    assert torch.equal(ours.projection_weights().value, value)
    assert ours(torch.randn(6, 2, 7), *[torch.randn(4, 2, DIM)] * 2)[0].shape == (6, 2, DIM)


def test_widths_that_do_not_fit_are_drawn_and_the_rest_is_kept() -> None:
    ours = MultiheadAttention(DIM, HEADS, add_bias_kv=True, score=regard.Bilinear(5, 6, HEADS))
    value, added = ours.projection_weights().value.clone(), ours.bias_v
    replace_attention(ours, regard.Bilinear(5, 9, HEADS))
    query, key, kept = ours.projection_weights()
    assert query.shape == (20, DIM) and key.shape == (36, DIM)
    assert torch.equal(kept, value) and ours.bias_v is added
    assert ours.bias_k.shape == (1, 1, 36) and (ours.bias_k != 0).all() and (key != 0).all()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_misspelt_score_is_told_before_anything_changes(replaced: bool) -> None:
    encoder = model()
    if replaced:
        replace_attention(encoder, "cosine")
    before = copy.deepcopy(encoder)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="unknown score 'aditive'; did you mean 'additive'"):
        replace_attention(encoder, "aditive")
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        replace_attention(nn.Identity(), "aditive")
    assert repr(encoder) == repr(before) and torch.equal(torch.get_rng_state(), state)


def test_an_error_in_the_last_layer_leaves_the_first_as_it_is() -> None:
    encoder = model()
    replace_attention(encoder, "cosine")
    given = iter(["additive", "no such"])
    with pytest.raises(ValueError, match="unknown score 'no such'"):
        replace_attention(encoder, lambda _: next(given))
    assert scores_of(encoder) == ["cosine"] * 2


@pytest.mark.parametrize("score", [None, "cosine", regard.Additive(DIM // HEADS, HEADS)])
def test_weights_that_are_copied_draw_no_random_numbers(score) -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True)
    state = torch.get_rng_state()
    ours = from_torch(theirs, score)
    assert torch.equal(torch.get_rng_state(), state)
    replace_attention(ours, score)
    assert torch.equal(torch.get_rng_state(), state)


def test_only_what_is_new_is_drawn() -> None:
    """The score's own vector comes from the seed as if nothing else had been built."""
    theirs = nn.MultiheadAttention(DIM, HEADS)
    torch.manual_seed(3)
    wanted = regard.Additive(DIM // HEADS, HEADS).v
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(from_torch(theirs, "additive").score.v, wanted)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize(
    "score",
    [
        regard.Projected(regard.Additive(5, HEADS), DIM, DIM),
        regard.Projected(regard.Cosine(), DIM, DIM, width=5, heads=HEADS),
        regard.Projected(regard.Bilinear(5, 5, HEADS), DIM, DIM, width=5),
    ],
)
def test_of_a_projected_score_the_score_inside_is_taken(score) -> None:
    """So that what `regard.choose` passes to `build_model` can go into `replace_attention`."""
    encoder = model()
    replace_attention(encoder, score)
    assert scores_of(encoder) == [score.score.name] * 2
    assert encoder.layers[0].self_attn.projected[0] == HEADS * 5
    assert encoder(torch.randn(2, 5, DIM)).shape == (2, 5, DIM)


def test_reset_parameters_under_torchs_name() -> None:
    theirs, ours = nn.MultiheadAttention(DIM, HEADS), MultiheadAttention(DIM, HEADS)
    for module in (theirs, ours):
        torch.manual_seed(1)
        module._reset_parameters()
    for name, parameter in theirs.named_parameters():
        if not name.startswith("out_proj.weight"):  # left alone by torch too
            assert torch.equal(parameter, ours.get_parameter(name)), name
