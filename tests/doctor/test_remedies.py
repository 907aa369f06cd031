"""Every remedy against its formula in fp64; what each keeps of the function; undone bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.doctor.remedies import REMEDIES
from regard.doctor.remedies.qk_clip import clip_factors
from regard.doctor.watch import watch

from .treating import (
    LARGE,
    LOUD,
    MODELS,
    SITE,
    build,
    expected,
    finding,
    sides,
    tokens64,
    treat,
)
from .watching import DIM, HEADS, Stack

CLOSE = {"atol": 1e-10, "rtol": 1e-10}
WIDTH = DIM // HEADS


def state(model) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def assert_undone(treatment, model, x, before: dict, output: Tensor) -> None:
    treatment.undo()
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[n], before[n]) for n in before)
    assert torch.equal(model(x), output)


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def unit_rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def by_head(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)


def gains(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt().transpose(0, 1).flatten(1).median(-1).values


def median_norm(x: Tensor) -> Tensor:
    return x.norm(dim=-1).transpose(0, 1).flatten(1).median(-1).values


def temperature(query, key):
    return lambda q, k: (q / torch.tensor([2.0, 2.0]).view(-1, 1, 1), k)


def qk_norm(query, key):
    on_query, on_key = by_head(gains(query)), by_head(gains(key))
    return lambda q, k: (unit_rms(q) * on_query, unit_rms(k) * on_key)


def qk_layer_norm(query, key):
    def centred(x):
        return x - x.mean(-1, keepdim=True)

    on_query, on_key = by_head(gains(centred(query))), by_head(gains(centred(key)))
    return lambda q, k: (unit_rms(centred(q)) * on_query, unit_rms(centred(k)) * on_key)


def cosine(query, key):
    gain = by_head(median_norm(query) * median_norm(key))
    return lambda q, k: (
        q / q.norm(dim=-1, keepdim=True) * gain,
        k / k.norm(dim=-1, keepdim=True),
    )


def key_clip(query, key):
    limit = by_head(1.1 * median_norm(key))

    def change(q, k):
        norm = k.norm(dim=-1, keepdim=True)
        return q, k * torch.minimum(torch.ones_like(norm), limit / norm)

    return change


def scale(query, key):
    return lambda q, k: (q * 0.1 * WIDTH**0.5, k)


def qk_clip(query, key):
    def change(q, k):
        logits = q @ k.mT / WIDTH**0.5
        factor = (0.5 / logits.amax((0, 2, 3)).clamp(min=1e-30)).clamp(max=1.0)
        return q * by_head(factor), k

    return change


# Remedy, options, formula, the signals of the finding.
FORMULAS = {
    "temperature": ({"start": 2.0}, temperature, LARGE),
    "qk-norm": ({"keep": True}, qk_norm, LARGE),
    "qk-norm layer": ({"norm": "layer", "keep": True}, qk_layer_norm, LARGE),
    "cosine": ({}, cosine, LOUD),
    "key-clip": ({"times": 1.1}, key_clip, LOUD),
    "scale": ({"to": 0.1}, scale, LARGE),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("remedy", FORMULAS)
def test_formula(name, remedy):
    options, formula, signals = FORMULAS[remedy]
    model, x = build(name), tokens64()
    before, output = state(model), model(x)
    wanted = expected(model, x, formula(*sides(model, x)))
    called = remedy.split(" ")[0]
    treatment = treat(model, x, called, finding(*signals, remedies=(called,)), **options)
    torch.testing.assert_close(model(x), wanted, **CLOSE)
    assert largest(model(x) - output) > 1e-3
    assert treatment.moved == pytest.approx(largest(wanted - output), rel=1e-6)
    assert_undone(treatment, model, x, before, output)


@pytest.mark.parametrize("name", ["sdpa", "torch"])
def test_qk_clip_by_formula(name):
    """Not with a causal mask: largest visible logits would be another formula."""
    model, x = build(name), tokens64()
    before, output = state(model), model(x)
    wanted = expected(model, x, qk_clip(None, None))
    treatment = treat(model, x, "qk-clip", tau=0.5)
    torch.testing.assert_close(model(x), wanted, atol=1e-6, rtol=1e-6)  # vitals are fp32
    assert float(treatment.after[:, 16].max()) == pytest.approx(0.5, rel=1e-5)
    assert treatment.applied.parameters == () and list(model.state_dict()) == list(before)
    assert_undone(treatment, model, x, before, output)


@pytest.mark.parametrize("name", MODELS)
def test_soft_cap_by_formula(name):
    model, x = build(name, louder=20.0), tokens64()
    before, output = state(model), model(x)
    wanted = expected(model, x, lambda q, k: (q, k), cap=20.0)
    treatment = treat(model, x, "soft-cap", cap=20.0)
    torch.testing.assert_close(model(x), wanted, **CLOSE)
    assert treatment.effects[0].after <= 20.0 < treatment.effects[0].before
    assert_undone(treatment, model, x, before, output)


@pytest.mark.parametrize("name", MODELS)
def test_temperature_keeps_the_function_bit_by_bit(name):
    model, x = build(name), tokens64()
    output = model(x)
    treatment = treat(model, x, "temperature")
    assert torch.equal(model(x), output)
    assert treatment.moved == 0.0 and treatment.kept and not treatment.better
    assert "nothing is better yet" in treatment.verdict()
    (name,) = treatment.applied.parameters
    assert name == "layers.1.regard_changes.temperature.log_factor"


def test_temperature_of_a_dead_softmax_begins_where_it_can_learn():
    model, x = build("sdpa", louder=40.0), tokens64()
    made = finding(("jacobian", 0.01, False), ("entropy", 0.1, False), heads=(1,))
    treatment = treat(model, x, "temperature", made)
    rate = model.layers[1].regard_changes["temperature"].rate()
    assert rate[0] == 1.0 and rate[1] < 0.1
    assert treatment.better and treatment.after[1, 1] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("remedy", ["qk-norm", "cosine"])
def test_one_length_is_kept_to_rounding(remedy):
    """Where queries and keys have one length already the function stays: what the maths allows."""
    model, x = build("sdpa"), tokens64()
    torch.manual_seed(0)
    # makes it so, in another way: the same remedy is not put twice
    if remedy == "qk-norm":
        treat(model, x, "cosine", finding(*LARGE))
    else:
        treat(model, x, "qk-norm", finding(*LARGE), keep=True)
    output = model(x)
    treatment = treat(model, x, remedy, finding(*LOUD))
    assert treatment.moved < 1e-5 * largest(output)
    assert treatment.kept


@pytest.mark.parametrize("remedy", ["qk-norm", "cosine"])
def test_sharp_heads_begin_at_variance_one(remedy):
    model, x = build("sdpa", louder=30.0), tokens64(4, 32)
    treatment = treat(model, x, remedy, finding(*LARGE, heads=(1,)))
    variance = treatment.after[:, 1]
    assert treatment.before[1, 1] > 100 and 0.2 < variance[1] < 2.0 and variance[0] > 10.0


def test_key_clip_leaves_short_keys_bit_by_bit():
    model, x = build("sdpa"), tokens64()
    output = model(x)
    treatment = treat(model, x, "key-clip", finding(*LOUD), times=1000.0)
    assert torch.equal(model(x), output) and treatment.moved == 0.0


def test_shrink_tanh_shrinks_both_projections_of_a_head_alike():
    torch.manual_seed(0)
    layers = [regard.nn.SelfAttention(DIM, HEADS, "additive") for _ in "12"]
    model, x = Stack(*layers).double(), tokens64()
    with torch.no_grad():
        for name, weight in model.layers[1].named_parameters():
            if "query" in name or "key" in name:
                weight.mul_(20)
    before, output = state(model), model(x)
    made = finding(("tanh_saturated", 0.5, True), ("tanh_slope", 0.2, False))
    treatment = treat(model, x, "shrink-tanh", made)
    assert treatment.healed and treatment.effects[0].before > 0.9 > 0.2 > treatment.effects[0].after
    after = state(model)
    ratio = after["layers.1.score.query_weight"] / before["layers.1.score.query_weight"]
    by_heads = ratio.unflatten(0, (HEADS, -1)).flatten(1)
    torch.testing.assert_close(by_heads.amin(1), by_heads.amax(1), **CLOSE)
    key = after["layers.1.score.key_weight"] / before["layers.1.score.key_weight"]
    torch.testing.assert_close(key, ratio, **CLOSE)
    assert_undone(treatment, model, x, before, output)


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine", "gaussian", "additive"])
def test_temperature_of_any_score_of_regard(score):
    torch.manual_seed(0)
    model = Stack(*(regard.nn.SelfAttention(DIM, HEADS, score) for _ in "12")).double()
    x = tokens64()
    output = model(x)
    treatment = treat(model, x, "temperature", start=2.0)
    warm = model(x)
    treatment.undo()
    assert torch.equal(model(x), output)
    tempered = regard.stabilize.Tempered(model.layers[1].score.score, 2.0)
    model.layers[1].score.score = tempered
    torch.testing.assert_close(warm, model(x), **CLOSE)


@pytest.mark.parametrize("cap", [20.0, 50.0])
def test_soft_cap_in_regard(cap):
    torch.manual_seed(0)
    model = Stack(*(regard.nn.SelfAttention(DIM, HEADS, "dot") for _ in "12")).double()
    with torch.no_grad():
        model.layers[1].score.query_weight.mul_(20)
    x = tokens64()
    treat(model, x, "soft-cap", cap=cap)
    capped = model(x)
    score = model.layers[1].score
    del model.layers[1]._modules["regard_changes"]
    score.score = regard.stabilize.SoftCapped(score.score, cap)
    torch.testing.assert_close(capped, model(x), **CLOSE)


@pytest.mark.parametrize("kind", ["causal", "invert", "fill"])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_by_formula(kind, boolean):
    torch.manual_seed(0)
    seen = torch.rand(6, 6) > 0.5
    seen[2] = False
    mask = seen if boolean else torch.where(seen, 0.0, -torch.inf).double()
    model, x = build("sdpa"), tokens64()
    plain = torch.nn.functional.scaled_dot_product_attention
    used = {"mask": mask}
    for layer in model.layers:
        layer.attend = lambda q, k, v: plain(q, k, v, attn_mask=used["mask"]).nan_to_num()
    disease = {"causal": "missing-mask", "invert": "inverted-mask", "fill": "masked-rows"}[kind]
    made = finding(("masked_rows", 0.0, True), ("visible_share", 0.9, False), disease=disease)
    treatment = treat(model, x, "mask", made)
    got = model(x)
    treatment.undo()
    wanted = {
        "causal": seen & torch.ones(6, 6, dtype=torch.bool).tril(),
        "invert": ~seen,
        "fill": seen | ~seen.any(-1, keepdim=True),
    }[kind]
    inner = x + model.layers[0](x)
    used["mask"] = wanted
    torch.testing.assert_close(got, inner + model.layers[1](inner), **CLOSE)


@pytest.mark.parametrize("kind", ["invert", "level"])
def test_masks_that_weights_hide_are_an_error_and_not_another_mask(kind):
    from regard.doctor.remedies.masking import masked_logits

    with pytest.raises(RuntimeError, match="pass need_weights=False"):
        masked_logits(kind, torch.zeros(2, 3, 3))


def test_bias_clip_by_formula():
    torch.manual_seed(0)
    bias = torch.randn(6, 6, dtype=torch.float64)
    bias[:, 0], bias[1, 4] = 12.0, -torch.inf
    model, x = build("sdpa"), tokens64()
    plain = torch.nn.functional.scaled_dot_product_attention
    used = {"bias": bias}
    for layer in model.layers:
        layer.attend = lambda q, k, v: plain(q, k, v, attn_mask=used["bias"])
    made = finding(
        ("sink_weight", 0.9, True), ("output_alike", 0.9, True), disease="malignant-sink"
    )
    treatment = treat(model, x, "bias-clip", made)
    got = model(x)
    treatment.undo()
    inner = x + model.layers[0](x)
    used["bias"] = bias.clone()
    for row in used["bias"]:
        row.clamp_(max=row[row.isfinite()].median() + 3)
    torch.testing.assert_close(got, inner + model.layers[1](inner), **CLOSE)
    with pytest.raises(ValueError, match="lifts no key by more than 3"):
        treat(model, x, "bias-clip", made)


def test_causal_counts_from_the_end():
    from regard.doctor.remedies.masking import visible_before

    assert visible_before(1, 4, torch.device("cpu")).tolist() == [[True] * 4]
    assert visible_before(2, 3, torch.device("cpu")).tolist() == [[True, True, False], [True] * 3]


def test_heads_are_drawn_anew_and_put_back():
    model, x = build("sdpa", louder=10.0), tokens64(2, 16)
    with torch.no_grad():
        weight, bias = model.layers[1].qkv.weight, model.layers[1].qkv.bias
        for start in (0, DIM):
            for part in (weight, bias):
                part[start + WIDTH : start + 2 * WIDTH] = part[start : start + WIDTH]
    before, output = state(model), model(x)
    made = finding(("head_similarity", 0.99, True), disease="identical-heads", heads=(0, 1))
    treatment = treat(model, x, "heads", made)
    assert (
        treatment.healed and treatment.effects[0].before > 0.99 > 0.6 > treatment.effects[0].after
    )
    kept = model.layers[1].qkv.weight[:WIDTH]
    assert torch.equal(kept, before["layers.1.qkv.weight"][:WIDTH])
    assert_undone(treatment, model, x, before, output)


def test_clip_factors_of_logits_below_zero():
    """Megatron divided by a largest logit of 0 or less and got NaN: nothing is to be clipped."""
    logits = torch.tensor([-5.0, 0.0, 50.0, 100.0, 400.0])
    assert clip_factors(logits, 100.0).tolist() == [1.0, 1.0, 1.0, 1.0, 0.25]


def test_every_remedy_says_what_it_is():
    assert list(REMEDIES) == [remedy.name for remedy in REMEDIES.values()]
    for remedy in REMEDIES.values():
        assert remedy.does.endswith(".") and remedy.source
        assert remedy.applies == (remedy.name not in TOLD)


TOLD = ("epsilon", "gradient", "numbers", "rate")


@pytest.mark.parametrize("name", TOLD)
def test_told_remedies_are_refused_with_their_text(name):
    model, x = build("sdpa"), tokens64()
    with pytest.raises(ValueError, match="by hand"):
        watch(model).treat(finding(remedies=(name,)), name, x)
    assert SITE in watch(model).examine(x)
