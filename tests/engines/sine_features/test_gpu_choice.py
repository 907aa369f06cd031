"""What the sine engine serves on a GPU, decided from shapes: tested without one."""

import math
import re

import pytest
import torch

import regard
from regard import Additive, Mask
from regard.engines.lineup import SINE
from regard.engines.plan import error_bound, stated_bound
from regard.engines.sine_features import bounds, device
from regard.engines.sine_features.parts import PARTS
from regard.prepare import prepare
from regard.problem import Problem

from .standins import PlainExact, PlainFused, textbook

pytest.importorskip("triton")
NOTHING = frozenset()
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A machine that has all that is needed, though the tensors are on the CPU."""
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    monkeypatch.setattr(PARTS, "exact", PlainExact())
    monkeypatch.setattr(Problem, "on_cpu", False)  # a GPU that is not here
    monkeypatch.setattr(device, "machine", lambda p: [])
    monkeypatch.setattr(device, "generation", lambda index: 9)


def problem(
    heads=2, queries=4096, keys=4096, hidden=16, value_dim=64, dtype=BF16, error=None, lead=(8,),
    score=None, **options,
):  # fmt: skip
    q = torch.empty(1, dtype=dtype).expand(*lead, heads, queries, hidden)
    k = torch.empty(1, dtype=dtype).expand(*lead, heads, keys, hidden)
    v = torch.empty(1, dtype=dtype).expand(*lead, heads, keys, value_dim)
    score = (score or Additive(hidden, heads)).to(dtype)
    usual = {
        "mask": None, "bias": None, "sink": None, "temperature": 1.0, "softcap": None,
        "dropout": 0.0, "want": NOTHING,
    }  # fmt: skip
    given = {**usual, **options}
    p, _ = prepare(
        q, k, v, score, given["mask"], given["bias"], given["sink"], given["temperature"],
        given["softcap"], given["dropout"], None if error == math.inf else error,
        "sine" if error == math.inf else None, given["want"],
    )  # fmt: skip
    return p


def test_bf16_is_taken_where_its_own_error_is_met_and_nothing_else_unasked():
    assert SINE.refusals(problem()) == []
    call, _ = device.choice.on_device(problem())
    assert call is not None and call[:3] == ("uniform", 8, bounds.OWN_ERROR[BF16])
    assert "expected to stay within" in SINE.refusals(problem(dtype=torch.float16))[0]
    assert "allow one by error=" in SINE.refusals(problem(dtype=torch.float32))[0]


@pytest.mark.parametrize(
    ("series", "wanted"),
    [
        ("fast", (4, 128, 64, True)),
        ("matched", (7, 256, 128, False)),
        ("uniform", (6, 192, 64, True)),
    ],
)
def test_asked_for_by_name_the_score_says_which_series(series, wanted):
    p = problem(error=math.inf, score=Additive(16, 2, series=series))
    call, reasons = device.choice.on_device(p)
    assert reasons == [] and call is not None and call.kind == series
    assert (call.rank, *call.widths) == wanted
    notes = SINE.missing_promises(p)
    assert f"{series!r} of rank {wanted[0]}" in notes[0]
    assert f"features {wanted[1]} wide and values {wanted[2]} wide" in notes[1]


def test_an_error_is_planned_with_the_shortest_rank():
    ranks = []
    for error in (0.1, 0.02, 0.008, 0.003):
        call, _ = device.choice.on_device(problem(error=error))
        assert call is not None and call.allowed == error and call.kind == "uniform"
        ranks.append(call.rank)
    assert ranks == sorted(ranks) and len(set(ranks)) > 2
    assert "expected to stay within 1.0e-04" in SINE.refusals(problem(error=1e-4))[0]
    # fp32 inputs are rounded to fp16 as well, which counts.
    call, _ = device.choice.on_device(problem(error=0.02, dtype=torch.float32))
    assert call is not None and call.allowed == 0.02 - bounds.FULL_PRECISION


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mask": Mask.dense(torch.ones(4096, 4096, dtype=torch.bool))}, "no dense ones"),
        (
            {
                "mask": Mask.segments(torch.zeros(4096, dtype=torch.int64))
                & Mask.segments(torch.ones(4096, dtype=torch.int64))
            },
            "one set of segments",
        ),
        ({"softcap": 3.0}, "no softcap"),
        ({"sink": torch.zeros(2, dtype=BF16)}, "no sink"),
        ({"bias": torch.zeros(1, 1, 1, 4096, dtype=BF16)}, "no bias"),
        ({"want": frozenset({"lse"})}, r"no statistics on a GPU \(lse\)"),
        ({"temperature": 0.0}, "hard look-up"),
        ({"dtype": torch.float64}, "would lose precision"),
        ({"queries": 1}, "single query"),
        ({"queries": 8}, "for 8 queries"),
        ({"queries": 256, "keys": 256, "lead": (1,)}, "for 256 queries"),
        ({"value_dim": 300}, "values 300 wide"),
        ({"hidden": 600}, "features 12000 wide"),
        ({"lead": (40_000,), "queries": 64, "keys": 64}, "more than 65,535"),
        ({"lead": (0,)}, "empty tensors"),
    ],
)
def test_refusals(options, reason):
    found = " ".join(SINE.refusals(problem(**options)))
    assert re.search(reason, found), found


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"hidden": 32}, ("uniform", 9, 576)),
        ({"hidden": 64}, ("uniform", 9, 1152)),
        ({"hidden": 64, "queries": 16384, "keys": 16384}, ("uniform", 10, 1280)),
        ({"hidden": 128}, ("uniform", 9, 2304)),
        ({"hidden": 16, "value_dim": 200}, ("uniform", 8, 256)),
        ({"mask": Mask.window(left=3)}, ("uniform", 8, 256)),
        ({"mask": Mask.lengths(keys=[9] * 8)}, ("uniform", 8, 256)),
        ({"mask": Mask.causal(), "keys": 5000}, ("uniform", 8, 256)),
        ({"mask": Mask.segments(torch.zeros(4096, dtype=torch.int64))}, ("uniform", 8, 256)),
        ({"dropout": 0.1}, ("uniform", 8, 256)),
        ({"hidden": 64, "mask": Mask.causal()}, ("uniform", 9, 1152)),
    ],
)
def test_the_wide_kernels_run_what_cudnn_does_not_take(options, wanted):
    p = problem(**options)
    call, reasons = device.choice.on_device(p)
    assert reasons == [] and call is not None and call.wide
    assert (call.kind, call.rank, call.widths.features) == wanted
    assert SINE.refusals(p) == []


def test_short_calls_of_the_wide_kernels_are_left_to_exact_attention():
    for options in ({"hidden": 32}, {"dropout": 0.1, "hidden": 16}):
        for error, runs in ((None, False), (math.inf, True)):
            p = problem(**options, queries=2048, keys=2048, error=error)
            assert (SINE.refusals(p) == []) is runs


def test_the_limit_of_heads_is_cudnns():
    assert SINE.refusals(problem(hidden=64, lead=(40_000,))) == []


def test_small_calls_run_when_asked_for_by_name():
    assert SINE.refusals(problem(error=math.inf, queries=8, keys=9)) == []
    assert SINE.refusals(problem(error=math.inf, mask=Mask.causal("top_left"))) == []


def test_old_and_missing_machinery(monkeypatch):
    monkeypatch.setattr(device, "generation", lambda index: 8)
    assert "compute capability 9.0" in SINE.refusals(problem())[0]
    assert SINE.refusals(problem(hidden=8)) == []
    monkeypatch.undo()
    a = torch.empty(1, 2, 8, 16, device="meta")
    reasons = regard.explain(a, a, a, Additive(16, 2).to("meta"), error=0.1).refused["sine"]
    assert "on the CPU and on CUDA" in reasons[0]


@pytest.mark.parametrize(
    ("heads", "lead"),
    [((2, 2, 2), (2, 2)), ((4, 2, 1), (2,)), ((4, 1, 2), (1,)), ((6, 3, 2), (1,))],
)
@pytest.mark.interpreted
def test_a_problem_through_the_operator(heads, lead):
    """Leading dims that broadcast, key and value heads that differ."""
    count, key_heads, value_heads = heads
    q, k = torch.randn(*lead, count, 9, 4), torch.randn(key_heads, 11, 4)
    v = torch.randn(*lead, value_heads, 11, 5)
    k = k.expand(*[1] * len(lead), *k.shape)
    score = Additive(4, count)
    p, _ = prepare(q, k, v, score, None, None, None, 2.0, None, 0.0, None, "sine", NOTHING)
    assert SINE.refusals(p) == []
    out = SINE.run(p).output
    full = [
        x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:]).repeat_interleave(n, 1).double()
        for x, n in ((q, 1), (k, count // key_heads), (v, count // value_heads))
    ]
    wanted = textbook(*full[:2], score.v.double(), full[2], 0.5, False).reshape(out.shape)
    assert float((out - wanted).detach().abs().max()) < 2e-2 * float(v.abs().max())


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_refusals_choice_and_run_compile_whole():
    score = Additive(4, 2)

    def call(q, k, v):
        p, _ = prepare(
            q, k, v, score, Mask.causal(), None, None, 2.0, None, 0.0, None, "sine", NOTHING
        )
        assert SINE.refusals(p) == []
        return SINE.run(p).output

    q, k, v = (torch.randn(1, 2, 7, 4, requires_grad=True) for _ in range(3))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    ours, plain = compiled(q, k, v), call(q, k, v)
    assert torch.equal(ours, plain)
    leaves = [q, k, v, score.v]
    got = torch.autograd.grad(ours.sum(), leaves)
    for x, y in zip(got, torch.autograd.grad(plain.sum(), leaves), strict=True):
        assert torch.equal(x, y)


def test_the_stated_error_is_the_bound_of_the_device():
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    p, _ = prepare(q, k, v, Additive(8, 2), None, None, None, 1.0, None, 0.0, None, "sine", NOTHING)
    assert 0 < SINE.added_error(p) < 0.3
    p.form.a = 100 * p.form.a
    assert SINE.added_error(p) == 0.0  # the exact kernel answers


def test_the_stated_error_of_a_series_is_that_of_its_roundings_too():
    """Not that of exact attention in bf16: a caller who asks for 5e-3 reads a number near it."""
    q, k, v = (torch.randn(1, 2, 40, n, dtype=BF16) for n in (8, 8, 16))
    score = Additive(8, 2).to(BF16)
    for dropout in (0.0, 0.5):
        p, _ = prepare(q, k, v, score, None, None, None, 1.0, None, dropout, None, "sine", NOTHING)
        bound = SINE.added_error(p) + 3 * 2**-11 + 2**-8
        assert stated_bound(p, SINE) == pytest.approx(bound / (1 - dropout))
    p.form.a = 100 * p.form.a
    assert SINE.error_bound(p) is None and stated_bound(p, SINE) == error_bound(p)


def test_the_plan_states_the_workspace(monkeypatch):
    monkeypatch.setattr(device.choice, "is_causal_square", lambda p: False)
    for options, most in (
        ({"hidden": 64, "heads": 16, "lead": (4,)}, 2**30),
        ({"hidden": 128, "heads": 16, "lead": (4,)}, 2**30),
        ({"hidden": 64, "heads": 1, "lead": (1,), "queries": 131_072, "keys": 131_072}, 3 * 2**30),
    ):
        p = problem(**options)
        call, _ = device.choice.on_device(p)
        assert call is not None and call.wide
        found = device.workspace(p, call)
        assert 2**28 < found <= most
        assert f"at most {found // 2**20} MiB" in SINE.missing_promises(p)[1]


def test_a_series_that_is_named_is_the_one_that_runs():
    fast = Additive(16, 2, series="fast")
    p = problem(score=fast, queries=64, keys=64)
    assert p.error == math.inf and SINE.refusals(p) == []
    call, _ = device.choice.on_device(p)
    assert call is not None and (call.kind, call.rank) == ("fast", 4)
    # Where an error is to be kept, it decides.
    call, _ = device.choice.on_device(problem(score=fast, error=0.01))
    assert call is not None and (call.kind, call.allowed) == ("uniform", 0.01)
    # A single query too, which cuDNN is not given.
    call, _ = device.choice.on_device(problem(score=fast, queries=1))
    assert call is not None and call.wide and SINE.refusals(problem(score=fast, queries=1)) == []
