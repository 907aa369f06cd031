"""Calls like earlier ones, which go from their tensors to kernels at once (`regard.repeats`)."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import doctor, repeats
from regard.engines import lineup, plan

from .tools import deterministic, draw, forget_bound_calls, inputs, outcome

pytest.importorskip("triton", minversion="3.6")
from regard.engines.triton.repeated import RepeatedCall

pytestmark = pytest.mark.interpreted


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """Which methods of `RepeatedCall` ran, in order: `attend` comes before a backward."""
    forget_bound_calls()
    seen: list[str] = []
    for name in ("__call__", "attend", "backward", "by_operator"):
        whole = getattr(RepeatedCall, name)

        def spy(self, *given, name=name, whole=whole):
            seen.append(name)
            return whole(self, *given)

        monkeypatch.setattr(RepeatedCall, name, spy)
    yield seen
    forget_bound_calls()


@contextmanager
def never_repeated():
    """All calls go the whole way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "find", lambda *given: None)
        yield


def warm(*tensors, score, **options) -> None:
    """Two calls, after which the third is a repetition."""
    for _ in range(2):
        regard.attention(*tensors, score, engine="triton", **options)


def transposed(batch: int, length: int, heads: int, width: int) -> torch.Tensor:
    """(B, H, L, width) as most modules have it, from (B, L, H * width)."""
    return torch.randn(batch, length, heads, width).transpose(1, 2).requires_grad_()


CASES = {
    "one query": lambda: (inputs(1, 20, batch=2), regard.Additive(3, 2)),
    "few queries, keys in parts": lambda: (inputs(3, 300, heads=1), regard.Additive(3, 1)),
    "many queries": lambda: (inputs(20, 33), regard.Additive(3, 2)),
    "LeakyReLU": lambda: (inputs(20, 33), regard.GATv2(3, 2, negative_slope=0.1)),
    "shared keys": lambda: (inputs(5, 9, heads=4, key_heads=2), regard.Additive(3, 4)),
    "half": lambda: (inputs(2, 9, dtype=torch.float16), regard.Additive(3, 2).half()),
    "no head dim": lambda: ([draw(2, n, 3) for n in (4, 7, 7)], regard.Additive(3)),
    "one sequence": lambda: ([draw(n, 3) for n in (4, 7, 7)], regard.Additive(3)),
    "strides": lambda: (
        [transposed(2, n, 2, 3) for n in (4, 7, 7)],
        regard.Additive(3, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_repetition_gives_what_the_whole_way_gives(name, taken):
    tensors, score = CASES[name]()
    grad = torch.randn(*tensors[0].shape[:-1], tensors[2].shape[-1])
    with never_repeated():
        wanted = outcome(tensors, score, "triton", grad)
        with torch.no_grad():
            alone = regard.attention(*tensors, score, engine="triton")
    warm(*tensors, score=score)
    taken.clear()
    for _ in range(2):
        found = outcome(tensors, score, "triton", grad)
        for x, y in zip(found, wanted, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert taken == ["__call__", "attend", "backward"] * 2
    with torch.no_grad():
        found = regard.attention(*tensors, score, engine="triton")
    assert torch.equal(found, alone) and found.dtype == alone.dtype
    assert taken[-1] == "__call__"


def test_it_takes_the_numbers_of_its_own_call():
    """Other tensors, another score: nothing is kept of the first calls but what they agree in."""
    warm(*inputs(4, 9), score=regard.Additive(3, 2))
    for _ in range(2):
        tensors, score = inputs(4, 9), regard.Additive(3, 2)
        found = regard.attention(*tensors, score, engine="triton")
        wanted = regard.attention(*tensors, score, engine="reference")
        torch.testing.assert_close(found, wanted)


def test_keys_that_were_lowered_before(taken):
    """A decoder's: projected once."""
    (query, key, value), score = inputs(1, 9), regard.Additive(3, 2)
    side = score.key(key)
    warm(query, side, value, score=score)
    found = regard.attention(query, side, value, score, engine="triton")
    assert taken == ["__call__", "attend"]
    torch.testing.assert_close(found, regard.attention(query, key, value, score, engine="triton"))


def test_only_wanted_gradients_are_returned(taken):
    (query, key, value), score = inputs(4, 9), regard.Additive(3, 2)
    key.requires_grad_(False)
    score.requires_grad_(False)
    warm(query, key, value, score=score)
    output = regard.attention(query, key, value, score, engine="triton")
    output.sum().backward()
    assert taken[-1] == "backward"
    assert query.grad is not None and value.grad is not None
    assert key.grad is None and score.v.grad is None


OPTIONS = {
    "mask": {"mask": regard.Mask.causal()},
    "bias": {"bias": torch.zeros(4, 9)},
    "sink": {"sink": torch.zeros(2)},
    "temperature": {"temperature": 2.0},
    "temperatures": {"temperature": torch.ones(2)},
    "whole temperature": {"temperature": 1},
    "soft cap": {"softcap": 3.0},
    "dropout": {"dropout": 0.5},
    "error": {"error": 0.1},
    "reference": {"engine": "reference"},
    "no engine": {"engine": None},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_go_the_whole_way(name, taken):
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    for _ in range(3):
        regard.attention(*tensors, score, **{"engine": "triton", **OPTIONS[name]})
    assert taken == []


class Doubled(regard.Additive):
    """A score that a user wrote."""

    def query(self, q):
        return super().query(2 * q)


def patched() -> regard.Additive:
    score = regard.Additive(3, 2)
    score.direction = lambda: 2 * score.v
    return score


@pytest.mark.parametrize(
    "make",
    [
        lambda: regard.Additive(3, 2, bias=True),
        lambda: regard.Additive(3, 2, weight_norm=True),
        lambda: regard.Projected(regard.Additive(3, 2), 3, 3),
        lambda: Doubled(3, 2),
        patched,
        lambda: None,
    ],
    ids=["bias", "weight norm", "projected", "subclass", "patched", "dot"],
)
def test_scores_that_change_queries_or_keys_go_the_whole_way(make, taken):
    warm(*inputs(4, 9), score=regard.Additive(3, 2))
    tensors, score = inputs(4, 9), make()
    for _ in range(3):
        found = regard.attention(*tensors, score, engine="triton")
    assert taken == []
    torch.testing.assert_close(found, regard.attention(*tensors, score, engine="reference"))


def test_a_subclass_that_lowers_as_it_is_written_is_repeated(taken):
    class Named(regard.Additive):
        name = "named"

    tensors, score = inputs(4, 9), Named(3, 2)
    warm(*tensors, score=score)
    regard.attention(*tensors, score, engine="triton")
    assert taken == ["__call__", "attend"]


def test_a_parametrized_v(taken):
    """It is computed anew whenever it is asked for: nothing can be known of its memory."""
    score = regard.Additive(3, 2)

    counted = []

    class Twice(torch.nn.Module):
        def forward(self, v):
            counted.append(v)
            return 2 * v

    torch.nn.utils.parametrize.register_parametrization(score, "v", Twice())
    tensors = inputs(4, 9)
    warm(*tensors, score=score)
    counted.clear()
    found = regard.attention(*tensors, score, engine="triton")
    assert taken == [] and len(counted) == 1
    wanted = regard.attention(*tensors, score, engine="reference")
    torch.testing.assert_close(found, wanted)
    original = score.parametrizations.v.original
    (of_found,) = torch.autograd.grad(found.sum() + found.square().sum(), original)
    (of_wanted,) = torch.autograd.grad(wanted.sum() + wanted.square().sum(), original)
    torch.testing.assert_close(of_found, of_wanted)


@pytest.mark.parametrize(
    "looking",
    [
        lambda: FlopCounterMode(display=False),
        lambda: torch.autograd.forward_ad.dual_level(),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    ],
    ids=["mode", "forward mode", "autocast", "profiler"],
)
def test_nothing_is_repeated_while_a_mode_or_tracer_is_active(looking, taken):
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    with looking():
        regard.attention(*tensors, score, engine="triton")
    assert taken == []


def test_the_doctor_sees_every_call(taken):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.score = regard.Additive(3, 2)

        def forward(self, q, k, v):
            return regard.attention(q, k, v, self.score, engine="triton")

    model, tensors = Model(), inputs(4, 9)
    for _ in range(3):
        model(*tensors)
    taken.clear()
    with doctor.watch(model) as watching:
        model(*tensors)
    assert taken == [] and watching.chart.sites


def test_transforms_and_subclasses_go_the_whole_way(taken):
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)

    def attend(q):
        return regard.attention(q, *tensors[1:], score, engine="triton")

    torch.func.grad(lambda q: attend(q).sum())(tensors[0])

    class Own(torch.Tensor):
        pass

    attend(tensors[0].as_subclass(Own))
    assert taken == []


def test_in_a_fixed_order(taken):
    """Sums over many queries have no fixed order in bound launches: the operator makes one."""
    tensors, score = inputs(20, 33), regard.Additive(3, 2)
    warm(*tensors, score=score)
    with deterministic():
        output = regard.attention(*tensors, score, engine="triton")
        output.sum().backward()
    assert taken == ["__call__", "attend", "backward", "by_operator"]
    few, score = inputs(2, 33), regard.Additive(3, 2)
    warm(*few, score=score)
    taken.clear()
    with deterministic():
        regard.attention(*few, score, engine="triton").sum().backward()
    assert taken == ["__call__", "attend", "backward"]


def test_there_is_no_second_derivative_and_it_says_what_has_one():
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    output = regard.attention(*tensors, score, engine="triton")
    (of_q,) = torch.autograd.grad(output.square().sum(), tensors[0], create_graph=True)
    wanted = regard.attention(*tensors, score, engine="reference")
    (expected,) = torch.autograd.grad(wanted.square().sum(), tensors[0])
    torch.testing.assert_close(of_q.detach(), expected)
    with pytest.raises(RuntimeError, match="no second derivative; use engine='reference'"):
        of_q.sum().backward()


def test_a_batch_of_gradients(taken):
    tensors, score = inputs(2, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    output = regard.attention(*tensors, score, engine="triton")
    grads = torch.randn(3, *output.shape)
    (found,) = torch.autograd.grad(
        output, tensors[0], grads, is_grads_batched=True, retain_graph=True
    )
    wanted = [torch.autograd.grad(output, tensors[0], g, retain_graph=True)[0] for g in grads]
    torch.testing.assert_close(found, torch.stack(wanted))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_checkpoint_runs_the_same_way_again(layers):
    """Whatever came before: it counts what is saved, and a repetition saves less."""
    scores = [regard.Additive(3, 1) for _ in range(layers)]
    start = torch.randn(2, 1, 4, 3, requires_grad=True)

    def run(engine, through):
        x = start
        for score in scores:
            x = through(
                lambda x, score=score: x + regard.attention(x, x, x, score, engine=engine), x
            )
        return torch.autograd.grad(x.square().sum(), [start, *(score.v for score in scores)])

    wanted = run("reference", lambda f, x: f(x))
    for _ in range(3):
        found = run("triton", lambda f, x: checkpoint(f, x, use_reentrant=False))
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_class_that_is_patched_later(taken, monkeypatch):
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    whole = regard.Additive.query
    monkeypatch.setattr(regard.Additive, "query", lambda self, q: whole(self, 2 * q))
    found = regard.attention(*tensors, score, engine="triton")
    assert taken == []
    torch.testing.assert_close(found, regard.attention(*tensors, score, engine="reference"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_checkpointing_and_hooks_on_what_is_saved(reentrant):
    tensors, score = [transposed(2, n, 2, 3) for n in (4, 7, 7)], regard.Additive(3, 2)
    warm(*tensors, score=score)

    def run(*given):
        return regard.attention(*given, score, engine="triton")

    wanted = torch.autograd.grad(run(*tensors).square().sum(), [*tensors, score.v])
    output = checkpoint(run, *tensors, use_reentrant=reentrant)
    output.square().sum().backward()
    found = [x.grad for x in (*tensors, score.v)]
    # Laid out otherwise when they come back.
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.clone().contiguous())
    with hooks:
        output = run(*tensors)
    hooked = torch.autograd.grad(output.square().sum(), [*tensors, score.v])
    for x, y, z in zip(wanted, found, hooked, strict=True):
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(x, z)


def test_mistakes_are_still_met():
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    query, key, value = tensors
    with pytest.raises(TypeError, match="query must be a tensor"):
        regard.attention(None, key, value, score, engine="triton")
    with pytest.raises(ValueError, match="value has length 8"):
        regard.attention(query, key, value[..., :8, :], score, engine="triton")
    with pytest.raises(TypeError, match=r"score parameter 'v' is torch.float64"):
        regard.attention(query, key, value, copy.deepcopy(score).double(), engine="triton")
    with pytest.raises(ValueError, match="unknown engine 'tritom'"):
        regard.attention(query, key, value, score, engine="tritom")


def test_memory_of_a_call_is_not_kept():
    import weakref

    score, gone = regard.Additive(3, 2), []
    for _ in range(4):
        tensors = inputs(4, 9)
        output = regard.attention(*tensors, score, engine="triton")
        gone = [weakref.ref(x) for x in (*tensors, output)]
        del tensors, output
    assert [ref() for ref in gone] == [None] * 4


def test_inference_mode_and_then_training(taken):
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    with torch.inference_mode():
        warm(*tensors, score=score)
        regard.attention(*tensors, score, engine="triton")
    assert taken == ["__call__"]
    regard.attention(*tensors, score, engine="triton").sum().backward()
    assert taken[1:] == ["__call__", "attend", "backward"]


def test_in_place_changes_before_the_backward_are_noticed():
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    warm(*tensors, score=score)
    output = regard.attention(*tensors, score, engine="triton")
    with torch.no_grad():
        score.v.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_on_a_cpu_nothing_is_asked(monkeypatch, taken):
    """Its engines have no such way, and a question would take time."""
    monkeypatch.setattr(plan, "REPEATED_ON", ("cuda",))
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    for _ in range(3):
        regard.attention(*tensors, score)
    assert repeats.entry_of.cache_info().currsize == 0 and taken == []


@pytest.mark.parametrize("first", [True, False])
def test_who_names_no_engine_repeats_where_triton_is_asked_first(first, monkeypatch, taken):
    order = (lineup.TRITON, *plan.ENGINES) if first else plan.ENGINES
    monkeypatch.setattr(plan, "preferred", lambda problem: order)
    tensors, score = inputs(4, 9), regard.Additive(3, 2)
    for _ in range(3):
        regard.attention(*tensors, score)
    assert taken == (["__call__", "attend"] if first else [])
