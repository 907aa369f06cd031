"""`MultiheadAttention` with other scores: what they get, what they save, how they start."""

from __future__ import annotations

import copy

import pytest
import safetensors.torch
import torch
from torch import nn

import regard
from regard import stabilize
from regard.nn.multihead import MultiheadAttention, from_torch

BATCH, QUERIES, KEYS, DIM, HEADS = 2, 4, 6, 12, 4
HEAD = DIM // HEADS
SCORES = {
    "scaled_dot": lambda: None,
    "dot": lambda: "dot",
    "cosine name": lambda: "cosine",
    "cosine": lambda: regard.Cosine(HEADS),
    "gaussian": lambda: regard.Gaussian(heads=HEADS),
    "bilinear": lambda: regard.Bilinear(5, 3, HEADS),
    "low_rank": lambda: regard.LowRank(3, 5, 2, HEADS),
    "additive": lambda: regard.Additive(7, HEADS, bias=True, weight_norm=True),
    "gatv2": lambda: regard.GATv2(2, HEADS),
    "gat": lambda: regard.scores.GAT(4, HEADS),
    "additive name": lambda: "additive",
    "tempered": lambda: stabilize.Tempered(regard.Additive(5, HEADS), 0.7, HEADS),
    "normalized": lambda: stabilize.Normalized(regard.ScaledDot(), HEAD),
    "capped": lambda: stabilize.SoftCapped(stabilize.UnitKeys(regard.Bilinear(5, 5, HEADS)), 2.0),
}


class Halved(regard.InnerScore):
    """A score of a user's own, for two heads, without checks."""

    name = "halved"

    def query(self, q):
        return super().query(q * torch.tensor([0.5, 0.5]).view(2, 1, 1))


def build(score: str, **options) -> MultiheadAttention:
    module = MultiheadAttention(DIM, HEADS, batch_first=True, score=SCORES[score](), **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double()


def by_hand(module: MultiheadAttention, query, key, value, seen=None):
    """The textbook: project, score all pairs, softmax, weigh, project."""
    weights = module.projection_weights()
    biases = module.in_proj_bias.split(module.projected)
    heads = (module.num_heads, module.key_heads, module.key_heads)
    q, k, v = (
        (x @ w.T + b).unflatten(-1, (h, -1)).transpose(1, 2)
        for x, w, b, h in zip((query, key, value), weights, biases, heads, strict=True)
    )
    logits = regard.score(q, k, module.score)
    if module.score.softcap is not None:
        logits = module.score.softcap * torch.tanh(logits / module.score.softcap)
    if seen is not None:
        logits = logits.masked_fill(~seen, -torch.inf)
    p = logits.softmax(-1)
    v = v.repeat_interleave(module.num_heads // module.key_heads, 1)
    return module.out_proj((p @ v).transpose(1, 2).flatten(-2)), p


@pytest.mark.parametrize("score", SCORES)
def test_the_score_gets_the_projected_heads(score):
    module = build(score)
    query, key = (torch.randn(BATCH, n, DIM, dtype=torch.float64) for n in (QUERIES, KEYS))
    ignore = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    ignore[1, 4:] = True
    wanted, p = by_hand(module, query, key, key, ~ignore[:, None, None])
    output, weights = module(query, key, key, key_padding_mask=ignore, average_attn_weights=False)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(weights, p)
    fused, nothing = module(query, key, key, key_padding_mask=ignore, need_weights=False)
    torch.testing.assert_close(fused, wanted)
    assert nothing is None
    found = torch.autograd.grad(fused.square().sum(), list(module.parameters()))
    expected = torch.autograd.grad(wanted.square().sum(), list(module.parameters()))
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_the_projections_are_those_of_a_projected_additive_score():
    """W_q and W_k of additive attention, and no second pair of matrices."""
    module = MultiheadAttention(
        DIM, HEADS, batch_first=True, bias=False, score=regard.Additive(7, 4)
    )
    weights = module.projection_weights()
    assert weights.query.shape == weights.key.shape == (HEADS * 7, DIM)
    assert weights.value.shape == (DIM, DIM)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "in_proj_weight": (2 * HEADS * 7 + DIM, DIM),
        "out_proj.weight": (DIM, DIM),
        "score.v": (HEADS, 7),
    }
    score = regard.Projected(module.score, DIM, DIM)
    with torch.no_grad():
        score.query_weight.copy_(weights.query)
        score.key_weight.copy_(weights.key)
    x = torch.randn(BATCH, KEYS, DIM)
    v = (x @ weights.value.T).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    wanted = regard.attention(x[:, None], x[:, None], v, score).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(module(x, x, x)[0], module.out_proj(wanted))


@pytest.mark.parametrize("score", [None, "cosine"])
def test_free_dims_grouped_heads_and_width(score):
    options = {"qdim": 5, "kdim": 7, "vdim": 9, "key_heads": 2, "width": 6}
    module = MultiheadAttention(DIM, HEADS, batch_first=True, score=score, **options)
    nn.init.normal_(module.in_proj_bias)
    query, key, value = (torch.randn(BATCH, n, d) for n, d in ((QUERIES, 5), (KEYS, 7), (KEYS, 9)))
    output, weights = module(query, key, value, average_attn_weights=False)
    torch.testing.assert_close((output, weights), by_hand(module, query, key, value))
    assert weights.shape == (BATCH, HEADS, QUERIES, KEYS)
    assert module.k_proj_weight.shape == (2 * 6, 7)


def test_grouped_heads_drop_weights_in_training():
    module = MultiheadAttention(DIM, HEADS, dropout=0.5, score=regard.Additive(3, 4), key_heads=2)
    x = torch.randn(KEYS, BATCH, DIM)
    output, weights = module(x, x, x, average_attn_weights=False)
    v = (x @ module.projection_weights().value.T).unflatten(-1, (2, -1)).permute(1, 2, 0, 3)
    wanted = weights @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(output, module.out_proj(wanted.permute(2, 0, 1, 3).flatten(-2)))


def test_added_keys_are_of_the_scores_width():
    module = build("additive", add_bias_kv=True, add_zero_attn=True)
    assert module.bias_k.shape == (1, 1, HEADS * 7) and module.bias_v.shape == (1, 1, DIM)
    x = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    assert module(x, x, x)[1].shape == (BATCH, KEYS, KEYS + 2)


@pytest.mark.parametrize(
    ("score", "error", "reason"),
    [
        (
            lambda: regard.Additive(3, 2),
            ValueError,
            r"score does not fit 4 query heads of width 3.*build Additive\(hidden=3, heads=4\)$",
        ),
        (lambda: regard.Cosine(3), ValueError, "built for 3 heads"),
        (
            lambda: stabilize.Normalized(regard.ScaledDot(), 5),
            ValueError,
            r"does not fit.*width 3.*build Normalized\(ScaledDot\(\), dim=3\)",
        ),
        (
            lambda: regard.Projected(regard.Additive(3, 4), 12, 12),
            ValueError,
            "project twice.*Additive",
        ),
        (lambda: regard.Gaussian(heads=3), ValueError, r"build Gaussian\(heads=4\)"),
        (
            lambda: stabilize.Tempered(regard.LowRank(3, 3, 2, 2), heads=2),
            ValueError,
            r"build Tempered\(LowRank\(query_dim=3, key_dim=3, rank=2, heads=4, key_heads=4\), heads=4\)",
        ),
        (Halved, ValueError, "score does not fit 4 query heads of width 3.*must match the size"),
        (lambda: "cosin", ValueError, "did you mean 'cosine'"),
        (lambda: regard.Additive, TypeError, "the class Additive itself"),
        (lambda: nn.Linear(3, 3), TypeError, "score must be a Score"),
    ],
)
def test_scores_that_do_not_fit(score, error, reason):
    with pytest.raises(error, match=reason):
        MultiheadAttention(DIM, HEADS, score=score())


def test_a_score_of_more_heads_than_the_module():
    with pytest.raises(ValueError, match=r"it makes 4 heads; build Additive\(hidden=3\)"):
        MultiheadAttention(DIM, 1, score=regard.Additive(3, 4))


def test_width_against_the_scores_own():
    with pytest.raises(ValueError, match="width=5, but Additive takes queries of width 3"):
        MultiheadAttention(DIM, HEADS, score=regard.Additive(3, HEADS), width=5)


def test_device_and_dtype_reach_the_score():
    module = MultiheadAttention(
        DIM, HEADS, score=regard.Additive(3, HEADS), dtype=torch.float64, device="meta"
    )
    assert {(p.dtype, p.device.type) for p in module.parameters()} == {(torch.float64, "meta")}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("way", ["torch", "safetensors"])
def test_saved_and_loaded(score, way, tmp_path):
    module, again = build(score), build(score)
    if way == "torch":
        torch.save(module.state_dict(), tmp_path / "file")
        state = torch.load(tmp_path / "file", weights_only=True)
    else:
        safetensors.torch.save_file(module.state_dict(), tmp_path / "file")
        state = safetensors.torch.load_file(tmp_path / "file")
    again.load_state_dict(state)
    x = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    assert torch.equal(again(x, x, x)[0], module(x, x, x)[0])


def wrapped(score: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), build(score))


def differ(source: str, target: str) -> bool:
    """By the name of the score, or by what is learned in and around it."""
    one, two = build(source), build(target)
    return one.score.name != two.score.name or set(one.state_dict()) != set(two.state_dict())


@pytest.mark.parametrize(
    ("source", "target"), [(one, two) for one in SCORES for two in SCORES if differ(one, two)]
)
def test_the_state_of_another_score_is_refused_by_name(source, target):
    state, model = wrapped(source).state_dict(), wrapped(target)
    one, two = wrapped(source)[1].score.name, model[1].score.name
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(state)
    message = str(caught.value)
    assert f"at '1' are of score '{one}'" in message and f"has score '{two}'" in message
    assert sum("to go from a torch module" in line.lower() for line in message.splitlines()) == 1


TOLD = {
    "scaled_dot": "'scaled_dot', or another without parameters",
    "cosine": "'cosine', told by",
    "gaussian": "'gaussian'",
    "bilinear": "'bilinear'",
    "low_rank": "'low_rank'",
    "additive": "'additive' or 'gatv2'",
    "gat": "'gat', told by",
    "tempered": "'additive' or 'gatv2'",
    "capped": "'bilinear'",
    "normalized": "not known, with parameters score.key_norm.weight, score.query_norm.weight",
}


@pytest.mark.parametrize("source", TOLD)
def test_without_metadata_the_score_is_told_by_its_parameters(source):
    """As in a safetensors file."""
    target = "additive" if source == "scaled_dot" else "scaled_dot"
    with pytest.raises(RuntimeError) as caught:
        wrapped(target).load_state_dict(dict(wrapped(source).state_dict()))
    message = str(caught.value)
    assert TOLD[source] in message and f"has score {target!r}" in message


@pytest.mark.parametrize("score", ["cosine name", "additive"])
def test_the_state_of_torch_is_scaled_dot(score):
    with pytest.raises(RuntimeError, match=r"of score 'scaled_dot'.*regard\.nn.replace_attention"):
        build(score).load_state_dict(nn.MultiheadAttention(DIM, HEADS).state_dict())


def test_a_part_of_a_state_may_be_loaded():
    """As fine-tuned parts are: strict=False, and only what is there."""
    module = build("additive")
    part = {"out_proj.bias": torch.ones(DIM, dtype=torch.float64)}
    found = module.load_state_dict(part, strict=False)
    assert "score.v" in found.missing_keys and module.out_proj.bias.eq(1).all()


@pytest.mark.parametrize("score", ["additive", "gatv2", "cosine", "bilinear", "low_rank"])
@pytest.mark.parametrize("embed_dim", [16, 64, 256])
def test_scores_start_with_variance_1(score, embed_dim):
    heads, head = 8, embed_dim // 8
    scores = {
        "additive": lambda: regard.Additive(2 * head, heads),
        "gatv2": lambda: regard.GATv2(2 * head, heads),
        "cosine": lambda: regard.Cosine(heads),
        "bilinear": lambda: regard.Bilinear(head, head, heads),
        "low_rank": lambda: regard.LowRank(head, head, 3, heads),
    }
    found = []
    for _ in range(12):
        module = MultiheadAttention(embed_dim, heads, score=scores[score]())
        x, y = torch.randn(2, 64, 1, embed_dim)
        weights = module.projection_weights()
        q, k = (
            (z @ w.T).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            for z, w in ((x, weights.query), (y, weights.key))
        )
        found.append(regard.score(q, k, module.score).square().mean())
    assert torch.stack(found).mean().item() == pytest.approx(1, rel=0.3)


def test_reset_draws_projections_and_keeps_the_score():
    module = MultiheadAttention(DIM, HEADS, score=regard.Additive(3, HEADS))
    before = copy.deepcopy(module.state_dict())
    module.reset_parameters()
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"in_proj_weight"}


def test_one_score_object_may_serve_two_modules():
    score = regard.Additive(3, HEADS)
    one, two = (MultiheadAttention(DIM, HEADS, score=score) for _ in range(2))
    assert one.score is two.score
    one, two = (MultiheadAttention(8, 2, score="cosine") for _ in range(2))
    assert one.score is not two.score


@pytest.mark.parametrize("name", regard.scores.SIZED)
def test_every_score_by_name(name):
    module = MultiheadAttention(DIM, HEADS, batch_first=True, score=name, key_heads=2, width=5)
    assert module.score.name == name and module.projected[:2] == (HEADS * 5, 2 * 5)
    x = torch.randn(BATCH, KEYS, DIM)
    torch.testing.assert_close(module(x, x, x)[0], by_hand(module, x, x, x)[0])


def test_other_mismatches_are_heard_beside_another_score():
    """All that is wrong with a file is told at once, as torch does it."""
    state = nn.Sequential(nn.Linear(3, 3), build("additive"), nn.Linear(3, 3)).state_dict()
    model = nn.Sequential(nn.Linear(3, 3), build("scaled_dot"), nn.Linear(3, 4))
    with pytest.raises(RuntimeError, match=r"(?s)of score 'additive'.*size mismatch for 2.weight"):
        model.load_state_dict(state)


def test_from_torch_keeps_what_fits():
    theirs = nn.MultiheadAttention(DIM, HEADS, dropout=0.1, batch_first=True).eval()
    theirs.in_proj_weight.requires_grad_(False)
    for width, same in ((HEAD, True), (7, False)):
        ours = from_torch(theirs, regard.Additive(width, HEADS))
        assert ours.out_proj.weight is theirs.out_proj.weight
        assert not ours.training and ours.dropout == 0.1 and ours.batch_first
        weights, given = ours.projection_weights(), theirs.in_proj_weight.chunk(3)
        assert torch.equal(weights.value, given[2])
        assert not ours.in_proj_weight.requires_grad
        if same:
            assert torch.equal(weights.query, given[0]) and torch.equal(weights.key, given[1])
        else:
            assert weights.query.shape == (HEADS * 7, DIM)
    with pytest.raises(TypeError, match="the class Additive itself"):
        from_torch(theirs, regard.Additive)
    assert from_torch(theirs, "additive").score.hidden == HEAD
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.MultiheadAttention"):
        from_torch(nn.Linear(2, 2))
