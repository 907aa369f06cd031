"""FlexAttention: measured as SDPA with the same logits, however it is called, and nothing changes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from regard.doctor import probe
from regard.doctor.capture.capture import FLEX_C50, FLEX_ROWS
from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.seen import Flex, Seen
from regard.doctor.vitals import INDEX, VITALS, Level, measure
from regard.doctor.watch import watch

from ..compile.tools import HAS_COMPILER, OLD_DYNAMO
from .watching import Stack, assert_same_bits, column, pass_through

BATCH, HEADS, LENGTH, DIM = 2, 4, 24, 8
PLACE = torch.arange(LENGTH)
PADDED = torch.ones(BATCH, LENGTH, dtype=torch.bool)
PADDED[1, 17:] = False
SLOPES = torch.linspace(0.1, 0.8, HEADS)
TABLE = torch.randn(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3))
CAUSAL = PLACE[:, None] >= PLACE
VISIBLE = CAUSAL & PADDED[:, None, None]
RAMP = -SLOPES[:, None, None] * (PLACE[:, None] - PLACE)
BIAS = TABLE + RAMP
NEW_DYNAMO = pytest.mark.skipif(OLD_DYNAMO, reason="torch 2.6 shows no FlexAttention in a graph")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:(?s)flex_attention called without torch.compile"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def with_backward(monkeypatch):
    """What torch has a backward for on a GPU alone runs on a CPU too, uncompiled."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)


def ramp(score, batch, head, query, key):
    return score - SLOPES[head] * (query - key)


def score_mod(score, batch, head, query, key):
    return ramp(score, batch, head, query, key) + TABLE[batch][0][query][key]


def mask_mod(batch, head, query, key):
    return (query >= key) & PADDED[batch, key]


def block_mask():
    return create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device="cpu")


class Attention(nn.Module):
    """Grouped heads through any function of query, key and value."""

    def __init__(self, attend, gain: float = 2.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 2 * HEADS * DIM)
        self.out = nn.Linear(HEADS * DIM, 16)
        self.attend, self.gain = attend, gain

    def forward(self, x: Tensor) -> Tensor:
        sides = self.qkv(self.gain * x).unflatten(-1, (-1, DIM)).transpose(1, 2)
        query, key, value = sides.split([HEADS, HEADS // 2, HEADS // 2], 1)
        return self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))


def stack(attend) -> Stack:
    torch.manual_seed(0)
    return Stack(Attention(attend), Attention(attend))


def through(function=flex_attention, score=score_mod, blocks=None, **options):
    blocks = block_mask() if blocks is None else blocks
    given = {"score_mod": score, "block_mask": blocks, "enable_gqa": True, **options}
    return lambda query, key, value: function(query, key, value, **given)


def same_by_sdpa(query, key, value, bias=BIAS):
    mask = bias.masked_fill(~VISIBLE, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


def sick(score=None) -> Attention:
    """Products of tens of thousands."""
    torch.manual_seed(0)
    return Attention(through(score=score, scale=300.0), gain=30.0)


def tokens() -> Tensor:
    return torch.randn(BATCH, LENGTH, 16, generator=torch.Generator().manual_seed(1))


def values(d, site: str = "layers.1") -> Tensor:
    return d.history(site).values


def like_sdpa(level: str, steps: int = 1, bias=BIAS, **options):
    """What SDPA with the same logits gives."""
    model = stack(partial(same_by_sdpa, bias=bias))
    with watch(model, level, **options) as d, torch.no_grad():
        for _ in range(steps):
            model(tokens())
    return d


def assert_same_gradients(d, plain) -> None:
    """Those that reach the three sides, beside those that SDPA gets."""
    for side in ("query", "key", "value"):
        found, meant = (column(w, "layers.0", f"{side}_grad") for w in (d, plain))
        assert found.isfinite().all() and (found > 0).all()
        torch.testing.assert_close(found, meant, rtol=1e-3, atol=0)


# The functions themselves, without a model.

CALLS = {
    "bias": (lambda s, b, h, q, k: score_mod(s, b, h, q, k), {"bias": BIAS}),
    "soft cap": (lambda s, b, h, q, k: 2 * torch.tanh(s / 2), {"softcap": 2.0}),
    "hides by score": (lambda s, b, h, q, k: torch.where(q >= k, s, -torch.inf), {"causal": True}),
    "nothing": (None, {}),
}


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "open"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("level", ["sampled", "exact"])
def test_vitals_are_those_of_the_same_logits(name, masked, level, monkeypatch):
    monkeypatch.setattr("regard.doctor.vitals.parts.CACHED", 1)  # in parts of two heads
    score, known = CALLS[name]
    made = torch.Generator().manual_seed(0)
    query = 2 * torch.randn(BATCH, HEADS, LENGTH, DIM, generator=made)
    key, value = torch.randn(2, BATCH, 2, LENGTH, DIM, generator=made)
    visible = VISIBLE if masked else None
    rows = torch.arange(1, LENGTH, 3)
    plain = measure(Seen(query, key, value, 0.4, visible=visible, **known), level, rows)
    flex = Flex(score is not None, score, mask_mod if masked else None)
    found = measure(Seen(query, key, value, 0.4, flex=flex), level, rows)
    changed = {"c50", "logit_bound", "first_share", "own_share", "previous_share", "next_share"}
    for vital in VITALS:
        if vital.name in changed:
            continue
        same = found[:, INDEX[vital.name]], plain[:, INDEX[vital.name]]
        torch.testing.assert_close(*same, rtol=1e-4, atol=1e-5, equal_nan=True, msg=vital.name)
    near = 1e-3 if name != "soft cap" else 0.05  # a line between points of a grid is none of tanh
    both = found[:, INDEX["c50"]], plain[:, INDEX["c50"]]
    torch.testing.assert_close(*both, rtol=near, atol=0, equal_nan=True)


def test_some_sequences_of_a_large_batch(monkeypatch):
    made = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 6, HEADS, LENGTH, DIM, generator=made)
    hidden = torch.randn(6, LENGTH, generator=made) < 1

    def visible(b, h, q, k):
        return hidden[b, k]

    monkeypatch.setattr("regard.doctor.vitals.parts.MOST_LOGITS", 1)  # two sequences at a time
    for turn in range(3):
        known = Seen(query, key, value, 0.4, visible=hidden[:, None, None])
        rule = Seen(query, key, value, 0.4, flex=Flex(False, None, visible))
        rows = torch.arange(LENGTH)
        found, plain = (measure(x, Level.SAMPLED, rows, turn) for x in (rule, known))
        torch.testing.assert_close(found, plain, equal_nan=True)


# Called without a compiler, as far as that goes: torch makes a graph of it anyway.


@pytest.mark.parametrize("level", ["sampled", pytest.param("exact", marks=pytest.mark.slow)])
def test_uncompiled(level):
    model, x = stack(through()), tokens()
    plain = like_sdpa(level, rows=7)
    with torch.no_grad():
        before = model(x)
        with watch(model, level, rows=7) as d:
            assert torch.equal(model(x), before)
        examined = d.examine(x)
    assert d.sites == ["layers.0", "layers.1"] and d.notes == []
    assert [site.route for site in d.chart.order] == ["flex", "flex"]
    torch.testing.assert_close(values(d), values(plain), rtol=1e-3, atol=1e-4, equal_nan=True)
    exact = plain.examine(x)
    for site in d.sites:
        torch.testing.assert_close(
            examined[site], exact[site], rtol=1e-3, atol=1e-4, equal_nan=True
        )


def test_gradients_uncompiled(with_backward):
    model, known, x = stack(through()), stack(same_by_sdpa), tokens()
    with torch.compiler.set_stance("force_eager"):
        before = pass_through(model, x)
        with watch(model) as d, watch(known) as plain:
            assert_same_bits(pass_through(model, x), before)
            pass_through(known, x)
    assert_same_gradients(d, plain)


def test_what_a_score_mod_does_to_the_findings():
    """Products of any size behind a soft cap are no alarm; without a score_mod they are."""

    def capped(score, batch, head, query, key):
        return 5 * torch.tanh(score / 500)

    def found(score, level):
        model = sick(score)
        with watch(model, level) as d, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(tokens())
        assert d.chart.order[0].facts.rescored == (score is capped)
        return [x.disease for x in d.findings()]

    for score in (None, lambda score, *places: score):
        assert found(score, "cheap") == found(score, "sampled") == ["large-logits"]
    assert found(capped, "cheap") == found(capped, "sampled") == []


# Compiled.


def compiled(kind: str, backend, score=score_mod) -> tuple[nn.Module, object]:
    """The model, and what to call: with the function compiled, or all of it."""
    if kind == "function":
        function = torch.compile(flex_attention, backend=backend, fullgraph=True)
        model = stack(through(function, score))
        return model, model
    model = stack(through(score=score))
    return model, torch.compile(model, backend=backend, fullgraph=True)


BACKENDS = [
    "aot_eager",
    pytest.param("eager", marks=pytest.mark.slow),
    pytest.param(
        "inductor",
        marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_COMPILER, reason="needs C++")],
    ),
]


@NEW_DYNAMO
@pytest.mark.parametrize("kind", ["function", pytest.param("model", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(kind, backend):
    counter = CompileCounterWithBackend(backend)
    # torch's own kernel for a CPU crashes where a score_mod reads a table like ours.
    score, bias = (ramp, RAMP) if backend == "inductor" else (score_mod, BIAS)
    model, run = compiled(kind, counter, score)
    x, plain = tokens(), like_sdpa("sampled", 4, bias, every=3)
    with torch.no_grad():
        before = run(x)
        frames = counter.frame_count
        with watch(model, "sampled", every=3) as d:  # fewer queries than it reads: all
            for _ in range(4):
                assert torch.equal(run(x), before)
    assert counter.frame_count == 2 * frames == 2
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 4
    assert d.notes == [f"layers.0, layers.1: {FLEX_C50}"]
    meant = values(plain).clone()
    meant[..., INDEX["c50"]] = torch.nan
    torch.testing.assert_close(values(d), meant, rtol=1e-3, atol=1e-4, equal_nan=True)


@NEW_DYNAMO
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "model"])
def test_gradients_compiled(kind, with_backward):
    model, run = compiled(kind, "aot_eager")
    x, known = tokens(), stack(same_by_sdpa)
    before = pass_through(run, x)
    with watch(model) as d, watch(known) as plain:
        assert_same_bits(pass_through(run, x), before)
        pass_through(known, x)
    assert_same_gradients(d, plain)


@NEW_DYNAMO
@pytest.mark.slow
def test_one_compile_in_a_hundred_steps():
    """With functions that are made anew in each step, as Hugging Face makes them."""
    counter, x = CompileCounterWithBackend("aot_eager"), tokens()
    function, blocks = torch.compile(flex_attention, backend=counter), block_mask()

    def attend(query, key, value):
        table = TABLE.clone()

        def score(score, batch, head, query, key):
            return score + table[batch][0][query][key]

        return through(function, score, blocks)(query, key, value)

    model = stack(attend)
    with watch(model, "sampled", every=7, rows=5, window=20) as d, torch.no_grad():
        for _ in range(100):
            model(x)
    assert counter.frame_count == 1 and d.steps == 100
    assert d.history("layers.0").steps == list(range(81, 101))


@NEW_DYNAMO
@pytest.mark.slow
def test_the_exact_level_in_a_graph_says_that_it_is_sampled():
    model, run = compiled("function", "aot_eager")
    with watch(model, "exact", rows=5) as d, torch.no_grad():
        run(tokens())
    assert d.notes == [f"layers.0, layers.1: {note}" for note in (FLEX_ROWS, FLEX_C50)]
    assert column(d, "layers.0", "entropy").isfinite().all()


@NEW_DYNAMO
@pytest.mark.slow
def test_lengths_that_change():
    """One graph for all of them, where the compiler was asked for that."""
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(flex_attention, backend=counter, dynamic=True)
    model = stack(lambda q, k, v: function(q, k, v, enable_gqa=True))
    with watch(model, "sampled", every=1, rows=5) as d, torch.no_grad():
        for length in (25, 20, 30):
            model(torch.randn(BATCH, length, 16))
    assert counter.frame_count == 1
    assert column(d, "layers.0", "entropy").isfinite().all()


# Hugging Face, which compiles the function, and makes both functions and the mask anew in each call.
# GPT-2 does not take it, and T5's bias breaks the kernel of torch for a CPU.
FAMILIES = {
    "llama": ("LlamaForCausalLM", {}, "model.layers.{}.self_attn"),
    "bert": ("BertModel", {"attention_probs_dropout_prob": 0.0}, "encoder.layer.{}.attention.self"),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"head_dim": DIM, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        "model.layers.{}.self_attn",
    ),
}


@NEW_DYNAMO
@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="needs C++")
@pytest.mark.parametrize("whole", [False, True], ids=["function compiled", "model compiled"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_hugging_face(family, whole):
    transformers = pytest.importorskip("transformers")
    kind, options, path = FAMILIES[family]
    sizes = {
        "vocab_size": 40, "hidden_size": HEADS * DIM, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": HEADS, "pad_token_id": 0,
    }  # fmt: skip
    built = getattr(transformers, kind)

    def made(implementation):
        torch.manual_seed(0)
        config = built.config_class(**sizes, **options)
        return built._from_config(config, attn_implementation=implementation).eval()

    model, known = made("flex_attention"), made("eager")
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": (ids * 0 + 1).index_fill(1, torch.tensor(8), 0)}
    run = torch.compile(model, backend="aot_eager") if whole else model
    with torch.no_grad():
        before = run(**batch)[0]
        with watch(model, "sampled", every=1) as d, watch(known, "sampled", every=1) as plain:
            assert torch.equal(run(**batch)[0], before)
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            for _ in range(3):
                run(**batch)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
            for _ in range(4):
                known(**batch)
    assert d.sites == plain.sites == [path.format(0), path.format(1)]
    assert d.chart.order[0].route == "flex" and d.findings() == plain.findings() == []
    assert d.chart.order[0].facts.rescored == (family == "gemma2")
    assert (d.notes == []) == (family != "gemma2")  # c50 behind a score_mod
    for name in ("logit_max", "entropy", "max_weight", "visible_share", "sink_output"):
        found, meant = (column(w, d.sites[0], name) for w in (d, plain))
        torch.testing.assert_close(found, meant, rtol=1e-4, atol=1e-5, msg=name)


# What follows from it.


def test_remedies_act_or_say_why_not():
    model, x = sick(), tokens()
    uncompiled = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), uncompiled, watch(model, "exact") as d:
        before = model(x)
        (finding,) = d.findings()
        treatment = d.treat(finding, "qk-norm", batch=x)
        assert treatment.better and treatment.moved > 0
        assert not torch.equal(model(x), before)
        treatment.undo()
        assert torch.equal(model(x), before)
        with pytest.raises(TreatmentRefused, match=r"is FlexAttention.*into its score_mod"):
            d.treat(finding, "soft-cap", batch=x)


@NEW_DYNAMO
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "model"])
def test_a_treated_model_is_the_same_in_a_graph(kind):
    x, counter = tokens(), CompileCounterWithBackend("aot_eager")
    model = sick()
    with torch.no_grad():
        with watch(model, "exact") as d:
            model(x)
        d.treat(d.findings()[0], "qk-norm", batch=x)
        meant, run = model(x), model
        if kind == "function":
            function = torch.compile(flex_attention, backend=counter, fullgraph=True)
            model.attend = through(function, score=None, scale=300.0)
        else:
            run = torch.compile(model, backend=counter, fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(run(x), meant)
    assert counter.frame_count == 1


@pytest.mark.slow
def test_a_longer_key_is_planted():
    model, x = sick(score_mod), tokens()
    found = probe(model, x)
    assert [attack.site for attack in found.keys] == ["Attention"]
    assert max(found.keys[0].moved) > 0
