"""Bahdanau and Luong attention against four lines of textbook each, and what decoders rely on."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.forms import InnerKey
from regard.nn.seq2seq import (
    AttentionalVector,
    BahdanauAttention,
    DecoderAttention,
    LuongAttention,
)

B, T, L, Q, K, V, E = 3, 4, 6, 5, 7, 2, 8
LENGTHS = torch.tensor([6, 4, 1])


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = ((B, T, Q), (B, L, K), (B, L, V))
    return tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)


def luong(mode: str, **options) -> LuongAttention:
    return LuongAttention(K if mode == "dot" else Q, K, mode, **options).double()


def textbook_softmax(logits, value):
    hidden = torch.arange(L) >= LENGTHS[:, None]
    weights = logits.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return weights @ value, weights


def assert_same(attention, textbook, query, keys, values) -> None:
    """Context, weights and every gradient, of several queries at once and of one after the other."""
    memory = attention.prepare(keys, lengths=LENGTHS, values=values)
    expected = textbook(query, keys, values)
    wanted = [query, keys, values, *attention.parameters()]
    probe = [torch.randn_like(x) for x in expected]

    def everything(context, weights):
        loss = (context * probe[0]).sum() + (weights * probe[1]).sum()
        return [context, weights, *torch.autograd.grad(loss, wanted, retain_graph=True)]

    context, weights, _ = attention(query, memory)
    oracle = everything(*expected)
    torch.testing.assert_close(everything(context, weights.squeeze(1)), oracle)
    state, steps = None, []
    for t in range(T):
        context, weights, state = attention(query[:, t], memory, state)
        steps.append((context, weights.squeeze(1)))
    stepped = everything(*(torch.stack(x, 1) for x in zip(*steps, strict=True)))
    torch.testing.assert_close(stepped, oracle)


@pytest.mark.parametrize("bias", [False, True])
def test_bahdanau_is_the_textbook_with_all_gradients(bias):
    attention = BahdanauAttention(Q, K, E, bias=bias).double()
    score = attention.score
    if bias:
        torch.nn.init.normal_(score.score.bias)

    def textbook(query, keys, values):
        a, b = query @ score.query_weight.T, keys @ score.key_weight.T
        hidden = torch.tanh(a[:, :, None] + b[:, None] + (score.score.bias if bias else 0))
        return textbook_softmax(hidden @ score.score.v[0], values)

    assert_same(attention, textbook, *tensors())


def test_weight_norm_is_gain_times_direction():
    attention = BahdanauAttention(Q, K, E, weight_norm=True).double()
    score, (query, keys, values) = attention.score, tensors()
    with torch.no_grad():
        score.score.gain.mul_(3)

    def textbook(query, keys, values):
        a, b = query @ score.query_weight.T, keys @ score.key_weight.T
        v = score.score.gain * score.score.v[0] / score.score.v[0].norm()
        return textbook_softmax(torch.tanh(a[:, :, None] + b[:, None]) @ v, values)

    assert_same(attention, textbook, query, keys, values)


@pytest.mark.parametrize("mode", ["dot", "scaled dot", "general", "concat"])
def test_luong_is_the_textbook_with_all_gradients(mode):
    attention = luong(mode.split()[-1], scaled=mode.startswith("scaled"))
    score, (query, keys, values) = attention.score, tensors()
    if mode.endswith("dot"):
        query = torch.randn(B, T, K, dtype=torch.float64, requires_grad=True)

    def textbook(query, keys, values):
        if mode == "concat":
            joined = torch.cat(
                [query[:, :, None].expand(-1, -1, L, -1), keys[:, None].expand(-1, T, -1, -1)], -1
            )
            weight = torch.cat([score.query_weight, score.key_weight], 1)
            logits = torch.tanh(joined @ weight.T) @ score.score.v[0]
        elif mode == "general":
            logits = query @ score.weight[0] @ keys.mT
        else:
            logits = query @ keys.mT / (K**0.5 if mode.startswith("scaled") else 1)
        return textbook_softmax(logits, values)

    assert_same(attention, textbook, query, keys, values)


def test_each_head_is_an_attention_of_its_own():
    attention, (query, keys, values) = BahdanauAttention(Q, K, E, heads=2).double(), tensors()
    context, weights, _ = attention(query, attention.prepare(keys, values=values))
    assert context.shape == (B, T, 2 * V) and weights.shape == (B, 2, T, L)
    for head in range(2):
        single = BahdanauAttention(Q, K, E).double()
        rows = slice(head * E, (head + 1) * E)
        with torch.no_grad():
            single.score.query_weight.copy_(attention.score.query_weight[rows])
            single.score.key_weight.copy_(attention.score.key_weight[rows])
            single.score.score.v.copy_(attention.score.score.v[head : head + 1])
        one = single(query, single.prepare(keys, values=values))
        torch.testing.assert_close(one.context, context[..., head * V : (head + 1) * V])
        torch.testing.assert_close(one.weights[:, 0], weights[:, head])


def test_keras_additive_attention():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("keras was imported with another backend")
    layer = keras.layers.AdditiveAttention()
    query, keys, values = torch.randn(B, T, K), torch.randn(B, L, K), torch.randn(B, L, V)
    mask = torch.arange(L) < LENGTHS[:, None]
    theirs, weights = layer([query, values, keys], mask=[None, mask], return_attention_scores=True)
    attention = DecoderAttention(regard.Additive(K))  # no projections, as there
    with torch.no_grad():
        attention.score.v.copy_(layer.scale.value[None])
    ours = attention(query, attention.prepare(keys, visible=mask, values=values))
    torch.testing.assert_close(ours.context, theirs.detach())
    torch.testing.assert_close(ours.weights[:, 0], weights.detach())


def test_shapes_of_one_query_and_of_several():
    """Additive attention that only takes one query (sooftware/attentions#2) is of no use in training."""
    attention, (query, keys, values) = BahdanauAttention(Q, K, E, heads=2).double(), tensors()
    memory = attention.prepare(keys, values=values)
    one, several = attention(query[:, 0], memory), attention(query, memory)
    assert one.context.shape == (B, 2 * V) and one.weights.shape == (B, 2, L)
    torch.testing.assert_close(one.context, several.context[:, 0])
    torch.testing.assert_close(several.state.total, several.weights.sum(2))
    nothing = attention(query[:, :0], memory, several.state)
    assert nothing.context.shape == (B, 0, 2 * V) and nothing.weights.shape == (B, 2, 0, L)
    assert torch.equal(nothing.state.weights, several.state.weights)


def test_values_default_to_the_keys():
    attention, (query, keys, _) = luong("general"), tensors()
    context, weights, _ = attention(query, attention.prepare(keys))
    torch.testing.assert_close(context, weights[:, 0] @ keys)


def test_the_key_side_is_projected_once(monkeypatch):
    """OpenNMT projects the source again at each step."""
    attention, (query, keys, _) = BahdanauAttention(Q, K, E).double(), tensors()
    calls, project = [], attention.score.project_key
    monkeypatch.setattr(attention.score, "project_key", lambda k: calls.append(k) or project(k))
    memory, state = attention.prepare(keys), None
    for t in range(T):
        state = attention(query[:, t], memory, state).state
    assert len(calls) == 1


class LargeOperations(TorchDispatchMode):
    """The names of operations whose result is as large as the keys or larger."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.names = size, []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        views = ("view", "expand", "unsqueeze", "squeeze", "transpose", "alias", "slice", "select")
        name = operator.overloadpacket.__name__.strip("_")
        if isinstance(result, torch.Tensor) and result.numel() >= self.size and name not in views:
            self.names.append(name)
        return result


@pytest.mark.parametrize(
    "build",
    [lambda: BahdanauAttention(8, 8, 8), lambda: LuongAttention(8, 8, "general")],
    ids=["bahdanau", "luong"],
)
def test_a_step_copies_neither_keys_nor_values(build):
    """They are projected and zeroed once: all that a step does with as many numbers is the score."""
    attention = build()
    keys, query = torch.randn(3, 50, 8), torch.randn(3, 8)
    memory = attention.prepare(keys, lengths=[50, 20, 1])
    state = attention.initial_state(memory)
    with torch.no_grad(), LargeOperations(keys.numel()) as seen:
        attention(query, memory, state)
    assert set(seen.names) <= {"add", "tanh"} and len(seen.names) <= 2


def finite_everywhere(attention, query, memory, *leaves) -> bool:
    """Context and gradients of one step."""
    context = attention(query, memory).context
    grads = torch.autograd.grad(context.sum(), leaves, allow_unused=True)
    return all(x is None or bool(x.isfinite().all()) for x in (context, *grads))


@pytest.mark.parametrize("build", [lambda: BahdanauAttention(Q, K, E), lambda: luong("general")])
@pytest.mark.parametrize("engine", [None, "reference", "cpu"])
def test_nan_outside_of_a_window_is_not_read(build, engine):
    """A real key that a window hides was not zeroed with the padding."""
    attention, (query, keys, values) = build().double().eval(), tensors()
    attention.window, attention.engine = (0, 1), engine
    with torch.no_grad():
        keys[:, 4], values[:, 4] = torch.nan, torch.inf
    memory = attention.prepare(keys.detach(), values=values.detach(), lengths=[6, 5, 6])
    assert finite_everywhere(attention, query[:, 0], memory, query)


def test_a_memory_that_is_made_by_hand_may_hold_anything_where_it_is_hidden():
    attention, (query, keys, _) = BahdanauAttention(Q, K, E).double(), tensors()
    with torch.no_grad():
        keys[:, 4:] = torch.nan
    real = (torch.arange(L) < 4).expand(B, L)
    memory = attention.prepare(keys.detach())._replace(visible=real)
    assert finite_everywhere(attention, query[:, 0], memory, query)
    wanted = attention(query[:, 0], attention.prepare(keys[:, :4].detach())).context
    torch.testing.assert_close(attention(query[:, 0], memory).context, wanted)
    again = memory.reorder(torch.tensor([2, 0]))
    assert finite_everywhere(attention, query[:2, 0], again, query)


class UnitKeys(regard.scores.InnerScore):
    """A score that makes NaN of a key of zeros."""

    name = "unit keys"

    def key(self, k):
        return InnerKey(k / k.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("engine", [None, "reference", "cpu"])
def test_a_score_that_makes_nan_of_zeros(engine):
    attention, keys = DecoderAttention(UnitKeys(), engine=engine), torch.randn(B, L, K)
    memory = attention.prepare(keys, lengths=LENGTHS)
    assert attention(torch.randn(B, K), memory).context.isfinite().all()


def test_weights_and_state_have_memory_of_their_own():
    attention, (query, keys, _) = BahdanauAttention(Q, K, E).double(), tensors()
    _, weights, state = attention(query[:, 0], attention.prepare(keys))
    before = state.weights.clone()
    with torch.no_grad():
        weights.zero_()
    assert torch.equal(state.weights, before)


def test_no_state_lives_in_the_module():
    """Two sources decoded in turns by one module; elsewhere this needs `reset()` in between."""
    attention = BahdanauAttention(Q, K, E, coverage=True).double()
    (q1, k1, _), (q2, k2, _) = tensors(), tensors()
    m1, m2 = attention.prepare(k1), attention.prepare(k2)
    saved = [x.clone() for x in (*m1.side, m1.value)]
    s1 = s2 = None
    for t in range(T):
        s1 = attention(q1[:, t], m1, s1).state
        s2 = attention(q2[:, t], m2, s2).state
    torch.testing.assert_close(s1, attention(q1, m1).state)
    torch.testing.assert_close(s2, attention(q2, m2).state)
    # OpenNMT's coverage adds to the encoder output in place.
    assert all(torch.equal(x, y) for x, y in zip(saved, (*m1.side, m1.value), strict=True))


@pytest.mark.parametrize("mode", ["general", "concat"])
def test_reorder_repeats_and_permutes_memory_and_state(mode):
    attention, (query, keys, values) = luong(mode, coverage=True), tensors()
    memory = attention.prepare(keys, lengths=LENGTHS, values=values)
    state = attention(query[:, 0], memory).state
    index = torch.tensor([2, 0, 0, 1])
    expected = attention(query[:, 1], memory, state).context[index]
    moved = attention(query[index, 1], memory.reorder(index), state.reorder(index))
    torch.testing.assert_close(moved.context, expected)


@pytest.mark.parametrize("build", [lambda: BahdanauAttention(Q, K, E), lambda: luong("general")])
def test_padding_does_not_matter_even_nan(build):
    """Padded frames were not masked at all in espnet before PR#397."""
    attention, (query, keys, values) = build().double(), tensors()
    outcomes = []
    for fill in (0.0, 1e3, torch.nan):
        hidden = torch.arange(L)[None, :, None] >= LENGTHS[:, None, None]
        k, v = (x.detach().masked_fill(hidden, fill).requires_grad_() for x in (keys, values))
        memory = attention.prepare(k, lengths=LENGTHS, values=v)
        context, weights, _ = attention(query, memory)
        assert (weights.masked_fill(~hidden.mT.unsqueeze(1), 0) == 0).all()
        grads = torch.autograd.grad(context.square().sum(), [query, k, v, *attention.parameters()])
        outcomes.append([context, weights, *grads])
    for other in outcomes[1:]:
        torch.testing.assert_close(other, outcomes[0])


def test_lengths_and_visible_both_hide():
    attention, (query, keys, _) = BahdanauAttention(Q, K, E).double(), tensors()
    mask = torch.ones(B, L, dtype=torch.bool)
    mask[:, 0] = False
    weights = attention(query, attention.prepare(keys, lengths=LENGTHS, visible=mask)).weights
    seen = mask & (torch.arange(L) < LENGTHS[:, None])
    assert torch.equal(weights[:, 0, 0] > 0, seen)


@pytest.mark.parametrize("build", [lambda: BahdanauAttention(Q, K, E), lambda: luong("general")])
def test_a_source_of_length_zero_has_context_zero(build):
    """NaN in OpenNMT, espnet and Joey NMT; refused by TensorFlow Addons."""
    attention, (query, keys, _) = build().double(), tensors()
    context, weights, state = attention(query, attention.prepare(keys, lengths=[6, 0, 2]))
    assert (context[1] == 0).all() and (weights[1] == 0).all() and (state.total[1] == 0).all()
    context.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.parameters())
    empty = attention(query, attention.prepare(keys[:, :0]))
    assert (empty.context == 0).all() and empty.weights.shape == (B, 1, T, 0)


def test_an_empty_batch():
    attention = BahdanauAttention(Q, K, E, coverage=True)
    memory = attention.prepare(torch.zeros(0, L, K), lengths=torch.zeros(0, dtype=torch.long))
    assert attention(torch.zeros(0, T, Q), memory).context.shape == (0, T, K)


@pytest.mark.parametrize("width", [8, 32, 256])
def test_scores_start_with_variance_one_at_every_width(width):
    """Over the heads, each of which is a draw of its own."""
    query, keys = torch.randn(1, 1, 16, width), torch.randn(1, 1, 32, 2 * width)
    attentions = [
        BahdanauAttention(width, 2 * width, width, heads=64),
        BahdanauAttention(width, 2 * width, width, heads=64, weight_norm=True, bias=True),
        LuongAttention(width, 2 * width, "general", heads=64),
        LuongAttention(width, 2 * width, "concat", heads=64),
    ]
    scores = [regard.score(query, keys, a.score) for a in attentions]
    query, keys = torch.randn(32, 16, width), torch.randn(32, 32, width)
    scores.append(regard.score(query, keys, LuongAttention(width, width, "dot", scaled=True).score))
    for score in scores:
        assert 0.75 < score.var() < 1.33


def test_attentional_vector_keeps_variance_and_its_start():
    """The state of a layer that was reset is the one it documents, not that of torch's layers."""
    vector = AttentionalVector(context_dim=96, query_dim=32, width=64)
    context, query = torch.randn(500, 96), torch.randn(500, 32)
    for _ in range(2):
        inside = vector(context, query).double().atanh()
        assert 0.85 < inside.var() < 1.15
        before = vector.linear.weight.clone()
        vector.reset_parameters()
        assert not torch.equal(vector.linear.weight, before)


def test_scores_by_name():
    query, keys, _ = tensors()
    query = torch.randn(B, T, K, dtype=torch.float64)
    for name, score in (("dot", regard.Dot()), ("scaled_dot", regard.ScaledDot())):
        named, built = DecoderAttention(name), DecoderAttention(score)
        expected = built(query, built.prepare(keys)).context
        torch.testing.assert_close(named(query, named.prepare(keys)).context, expected)
    for name in ("cosine", "gaussian", "bilinear", "low_rank", "additive", "gat", "gatv2"):
        attention = DecoderAttention(name, width=K, coverage=True).double()
        assert attention.score.name == name
        attention(query, attention.prepare(keys)).context.square().sum().backward()
        assert all(p.grad is not None for p in attention.parameters())


def test_values_print_their_sizes():
    """Not hundreds of lines of numbers."""
    attention = BahdanauAttention(Q, K, E)
    memory = attention.prepare(torch.zeros(B, L, K), lengths=LENGTHS)
    assert repr(memory) == (
        "Memory(side=PairwiseKey(b=(3, 1, 6, 8)), value=(3, 1, 6, 7), visible=(3, 6), "
        "zeroed=(3, 6), hidden=Hidden(by=(3, 6), keys=(3, 1, 6), whole=(3, 1), logit=(3, 1, 1)))"
    )
    found = attention(torch.zeros(B, Q), memory)
    state = "AttentionState(weights=(3, 1, 6), total=(3, 1, 6))"
    assert repr(found) == f"AttentionResult(context=(3, 7), weights=(3, 1, 6), state={state})"


def test_dropout_is_off_in_eval_and_weights_are_before_it():
    attention = BahdanauAttention(Q, K, E, dropout=0.5)
    query, keys = torch.randn(B, Q), torch.randn(B, L, K)
    memory = attention.prepare(keys)
    trained = attention(query, memory)
    attention.eval()
    evaluated = attention(query, memory)
    torch.testing.assert_close(trained.weights, evaluated.weights)
    assert not torch.allclose(trained.context, evaluated.context)
    torch.testing.assert_close(attention(query, memory).context, evaluated.context)


def test_parameters_of_another_mode_are_refused_by_name():
    saved = LuongAttention(Q, K, "concat").state_dict()
    with pytest.raises(RuntimeError, match=r"score 'additive'.*score 'bilinear'"):
        LuongAttention(Q, K, "general").load_state_dict(saved)
