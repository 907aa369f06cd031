"""FlexAttention in compiled graphs: the same numbers, nothing compiled twice, Hugging Face's too."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from regard.doctor.capture.capture import FLEX_C50, FLEX_ROWS
from regard.doctor.vitals import INDEX
from regard.doctor.watch import watch

from ..compile.tools import HAS_COMPILER, OLD_DYNAMO
from .flexing import (
    BATCH,
    BIAS,
    DIM,
    FLEX,
    HEADS,
    RAMP,
    TABLE,
    assert_same_gradients,
    block_mask,
    like_sdpa,
    ramp,
    same_by_sdpa,
    score_mod,
    sick,
    stack,
    through,
    tokens,
    values,
)
from .watching import assert_same_bits, column, pass_through

NEW_DYNAMO = pytest.mark.skipif(OLD_DYNAMO, reason="torch 2.6 shows no FlexAttention in a graph")
pytestmark = FLEX


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
    for hidden in ("c50", "applied_scale"):  # by a function of the user
        meant[..., INDEX[hidden]] = torch.nan
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
