"""Escapes from the range of the series are counted: once for each call, and never by `explain`."""

import pytest
import torch

import regard
from regard import Additive, EngineRefused, sine
from regard.sine import Escapes, escapes


@pytest.fixture(autouse=True)
def from_zero():
    escapes.reset()
    yield
    escapes.reset()


def tensors(spread=1.0):
    a, b, v = (torch.randn(2, 4, 10, 8) for _ in range(3))
    return spread * a, spread * b, v


@pytest.mark.parametrize("options", [{"error": 0.1}, {"engine": "sine"}])
def test_a_call_that_the_series_serves_is_no_escape(options):
    regard.attention(*tensors(), Additive(8, 4), **options)
    assert escapes.count() == Escapes(calls=1, escapes=0)


@pytest.mark.parametrize("spread", [30.0, 1.0], ids=["reach", "bound"])
def test_leaving_the_range_or_the_bound_is_an_escape_and_the_answer_stays_exact(spread):
    a, b, v = tensors(spread)
    score = Additive(8, 4)
    out = regard.attention(a, b, v, score, error=0.1 if spread > 1 else 1e-6)
    assert torch.equal(out, regard.attention(a, b, v, score, engine="cpu"))
    assert escapes.count() == Escapes(calls=1, escapes=1)


def test_by_name_the_error_is_raised_and_counted():
    with pytest.raises(EngineRefused, match="may reach"):
        regard.attention(*tensors(30.0), Additive(8, 4), engine="sine")
    assert escapes.count() == Escapes(1, 1)


def test_attend_counts_and_backward_does_not():
    a, b, v = (x.requires_grad_() for x in tensors())
    seen = regard.attend(a, b, v, Additive(8, 4), error=0.1, want={"lse", "entropy"})
    seen.output.sum().backward()
    assert escapes.count() == Escapes(1, 0)


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("options", [{"error": 0.1}, {"engine": "sine"}])
def test_explain_counts_nothing(spread, options):
    regard.explain(*tensors(spread), Additive(8, 4), **options)
    assert escapes.count() == Escapes(0, 0)


@pytest.mark.parametrize(
    ("score", "options"),
    [
        (Additive(8, 4), {}),  # nothing approximate was allowed
        (Additive(8, 4), {"engine": "cpu", "error": 0.1}),
        (Additive(8, 4), {"error": 0.1, "temperature": 0.0}),  # not about the range
        (Additive(8, 4, activation="sine"), {"error": 0.1}),  # the series itself has no range
        (regard.GATv2(8, 4), {"error": 0.1}),
        (regard.ScaledDot(), {"error": 0.1}),
    ],
)
def test_calls_that_the_range_does_not_decide_are_not_counted(score, options):
    regard.attention(*tensors(30.0), score, **options)
    assert escapes.count() == Escapes(0, 0)


def test_a_compiled_call_is_not_counted():
    score = Additive(8, 4).requires_grad_(False)
    compiled = torch.compile(
        lambda a, b, v: regard.attention(a, b, v, score, error=0.1),
        fullgraph=True,
        backend="aot_eager",
    )
    compiled(*tensors())
    assert escapes.count() == Escapes(0, 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_flag_tensor_is_counted(dtype, shape):
    for flag in (1, 0, 0):
        escapes.note(torch.full(shape, flag, dtype=dtype))
    assert escapes.count() == escapes.count("cpu") == Escapes(3, 2)
    assert escapes.count("cuda") == Escapes(0, 0)


def test_a_flag_larger_than_one_counts_once():
    escapes.note(torch.tensor(7))
    assert escapes.count() == Escapes(1, 0)


def test_several_flags_are_refused():
    with pytest.raises(ValueError, match=r"has 3 elements; pass held\.all\(\)"):
        escapes.note(torch.ones(3, dtype=torch.bool))
    assert escapes.count() == Escapes(0, 0)


def test_inference_mode_and_default_devices_do_not_matter(monkeypatch):
    monkeypatch.setattr(escapes, "_counts", {})
    with torch.inference_mode(), torch.device("meta"):
        escapes.note(True)
    escapes.note(False)
    escapes.reset()
    escapes.note(False)
    assert escapes.count() == Escapes(1, 1)


def test_they_are_at_hand_where_the_series_is():
    assert sine.escapes is escapes and sine.Escapes is Escapes


@pytest.mark.gpu
def test_on_the_gpu_nothing_waits():
    held = torch.tensor(False, device="cuda")
    escapes.note(held)  # makes the counter
    torch.cuda.set_sync_debug_mode("error")
    try:
        escapes.note(held)
        escapes.note(~held)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert escapes.count("cuda") == escapes.count(held.device) == Escapes(3, 2)
    assert escapes.count("cpu") == Escapes(0, 0)


@pytest.mark.gpu
def test_a_captured_graph_counts_at_every_replay():
    held = torch.tensor(False, device="cuda")
    escapes.note(held)
    escapes.reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        escapes.note(held)
    for _ in range(3):
        graph.replay()
    assert escapes.count("cuda") == Escapes(3, 3)


def test_counting_goes_through_function_transforms():
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    score = Additive(8, 2)
    call = lambda x: regard.attention(x, k, v, score, engine="sine").sum()  # noqa: E731
    escapes.reset()
    first, again = torch.func.grad(call)(q), torch.func.grad(call)(q)
    assert torch.equal(first, again)
    assert escapes.count() == Escapes(2, 0)
