"""The operator of the sine engine in Triton's interpreter, with stand-ins for cuDNN and exact kernels."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from regard.engines.sine_features import device, operators
from regard.engines.sine_features.launch import features_of
from regard.engines.sine_features.operators import SineInputs
from regard.engines.sine_features.parts import PARTS, Cudnn
from regard.sine import escapes

from ...edge.tools import Names, Stop
from .standins import PlainExact, PlainFused, textbook

pytest.importorskip("triton")
# NumPy warns where the interpreter computes what the exact answer then replaces.
pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]

LEAVES = ("a", "b", "v", "value")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    behind = PlainExact()
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    monkeypatch.setattr(PARTS, "exact", behind)
    return behind


def inputs(
    batch=1, heads=2, key_heads=1, queries=23, keys=37, hidden=8, value_dim=9, rank=8, *,
    dtype=torch.float32, size=5.0, spread=1.0, values=1.0, rate=1.0, allowed=float("inf"),
    causal=False, kind="uniform",
):  # fmt: skip
    a = (spread * torch.randn(batch, heads, queries, hidden)).to(dtype)
    b = (spread * torch.randn(batch, key_heads, keys, hidden)).to(dtype)
    v = torch.randn(heads, hidden)
    v = (v * size / v.abs().sum(-1, keepdim=True)).to(dtype)
    value = (values * torch.randn(batch, key_heads, keys, value_dim)).to(dtype)
    leaves = [x.requires_grad_() for x in (a, b, v, value)]
    numbers = torch.tensor([rate, allowed], dtype=torch.float64)
    return SineInputs(*leaves, numbers, causal, kind, rank)


def both(x, size=1.0):
    """Output and gradients of a, b, v and value, ours and those of the textbook in fp64."""
    grad = (size * torch.randn(*x.a.shape[:3], x.value.shape[-1])).to(x.value.dtype)
    out = operators.run(x)
    ours = (out.detach(), *torch.autograd.grad(out, x[:4], grad))
    wide = [y.detach().double().requires_grad_() for y in x[:4]]
    wanted = textbook(*wide, float(x.numbers[0]), x.causal)
    return ours, (wanted.detach(), *torch.autograd.grad(wanted, wide, grad.double()))


def errors(x, size=1.0):
    ours, wanted = both(x, size)
    for got, like in zip(ours, (x.value, *x[:4]), strict=True):
        assert got.dtype == like.dtype and got.is_contiguous()
    return [float((y.double() - z).norm() / z.norm()) for y, z in zip(ours, wanted, strict=True)]


# rank 8 and 8 hidden units make features 128 wide: beta goes into the values; with 7 into columns.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [2, 1])
@pytest.mark.parametrize("hidden", [8, 7])
def test_output_and_gradients(exact, hidden, key_heads, causal):
    keys = 23 if causal else 37
    x = inputs(2, key_heads=key_heads, keys=keys, hidden=hidden, causal=causal, rate=1.5)
    assert x.widths.lent is (hidden == 8)
    assert max(errors(x)) < 3e-3
    assert exact.answers == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(exact, dtype):
    assert max(errors(inputs(dtype=dtype))) < (2e-3 if dtype == torch.float16 else 2e-2)
    assert exact.answers == 0


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize("hidden", [8, 7])
def test_small_gradients_do_not_vanish(exact, hidden, size):
    assert max(errors(inputs(hidden=hidden), size)) < 3e-3
    assert exact.answers == 0


@pytest.mark.parametrize("values", [1e6, 1e30, 1e-6, 1e-30])
@pytest.mark.parametrize("hidden", [8, 7])
def test_values_of_any_size(exact, hidden, values):
    assert max(errors(inputs(hidden=hidden, values=values))) < 3e-3
    assert exact.answers == 0


def test_heads_of_different_sizes_keep_their_digits(exact):
    x = inputs(2, 2, 2)
    with torch.no_grad():
        x.value.mul_(torch.tensor([1e6, 1e-6])[:, None, None])
    ours, wanted = both(x)
    for head in range(2):
        got, y = ours[0][:, head], wanted[0][:, head]
        assert float((got - y).norm()) <= 2e-3 * float(y.norm())
    assert exact.answers == 0


@pytest.mark.parametrize("size", [1.0, 8.0, 32.0])
@pytest.mark.parametrize("spread", [0.5, 3.0, 100.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_adversarial_inputs_are_right_by_series_or_exactly(exact, sign, spread, size):
    """|a| up to 100 of both signs, |v|_1 up to 32: the error allowed is kept in every case."""
    x = inputs(size=size, allowed=0.02, queries=9, keys=17)
    with torch.no_grad():
        x.a.copy_(x.a.abs() * spread / x.a.abs().max())
        x.b.copy_(sign * x.b.abs() * spread / x.b.abs().max())
    out = operators.run(x).detach()
    wanted = textbook(*(y.detach().double() for y in x[:4]), 1.0, False)
    off = float((out - wanted).abs().max() / x.value.detach().abs().max())
    assert off <= 0.02 + 2e-3
    if spread == 100:
        assert exact.answers == 1 and off < 1e-6


def test_what_leaves_the_range_is_answered_exactly_and_counted(exact):
    escapes.reset()
    assert max(errors(inputs())) > 1e-5
    assert escapes.count("cpu") == (1, 0) and exact.answers == 0
    assert max(errors(inputs(spread=20.0))) < 1e-6
    assert escapes.count("cpu") == (2, 1) and exact.answers == 2


def test_gradients_that_overflow_are_answered_exactly(exact, monkeypatch):
    class Overflowing(PlainFused):
        def backward(self, *args):
            by_q, by_k, by_v = super().backward(*args)
            by_k[0, 0, 5, 3] = torch.inf
            return by_q, by_k, by_v

    monkeypatch.setattr(PARTS, "fused", Overflowing())
    found = errors(inputs())
    assert found[0] > 1e-5 and max(found[1:]) < 1e-6
    assert exact.answers == 1


@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_empty(empty):
    x = inputs(**{empty: 0})
    out = operators.run(x)
    assert out.shape == (*x.a.shape[:3], 9) and not out.any()
    for g, y in zip(torch.autograd.grad(out.sum(), x[:4]), x[:4], strict=True):
        assert g.shape == y.shape and not g.any()


def test_strides_of_inputs_and_incoming_gradient():
    x = inputs(heads=3, key_heads=3)
    plain = operators.run(x)
    wanted = torch.autograd.grad(plain.sum(), x[:4])
    spread = [
        y.detach().transpose(0, -2).contiguous().transpose(0, -2) for y in (x.a, x.b, x.value)
    ]
    a, b, value = (y.requires_grad_() for y in spread)
    out = operators.run(x._replace(a=a, b=b, value=value))
    assert torch.equal(out, plain)
    found = torch.autograd.grad(out, [a, b, x.v, value], torch.ones(()).expand(out.shape))
    for got, y in zip(found, wanted, strict=True):
        assert torch.equal(got, y)


def test_the_features_are_not_kept():
    """What waits for the backward is the inputs and what cuDNN gave: nothing as wide as features."""
    x = inputs(hidden=8, value_dim=3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.append(y) or y, lambda y: y):
        operators.run(x)
    assert max(y.shape[-1] for y in kept if y.ndim == 4) <= x.widths.values < x.widths.features


def test_opcheck():
    x = inputs(queries=5, keys=6, hidden=4, rank=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(torch.ops.regard.sine_attend.default, tuple(x))
        flat = [y.detach() if isinstance(y, torch.Tensor) else y for y in x]
        out, *kept = torch.ops.regard.sine_attend(*flat)
        backward = torch.ops.regard.sine_attend_backward.default
        torch.library.opcheck(backward, (*flat, torch.randn_like(out), *kept))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("hidden", [8, 7])
def test_it_compiles_whole(hidden):
    x = inputs(hidden=hidden)
    call = lambda a, b, v, value: operators.run(x._replace(a=a, b=b, v=v, value=value))  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    ours, plain = compiled(*x[:4]), call(*x[:4])
    assert torch.equal(ours, plain)
    for got, y in zip(
        torch.autograd.grad(ours.square().sum(), x[:4]),
        torch.autograd.grad(plain.square().sum(), x[:4]),
        strict=True,
    ):
        assert torch.equal(got, y)


def test_a_second_derivative_is_refused_in_words():
    x = inputs(queries=3, keys=4)
    out = operators.run(x)
    (grad,) = torch.autograd.grad(out.sum(), x.a, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()


def test_nothing_behind_is_an_error(monkeypatch):
    monkeypatch.setattr(PARTS, "exact", None)
    with pytest.raises(RuntimeError, match="no exact attention is set"):
        operators.run(inputs())
    with pytest.raises(ValueError, match="do not fit into cuDNN"):
        operators.run(inputs(hidden=600))


def test_cudnn_is_called_as_torch_declares_it():
    """Arguments in their places, on tensors without numbers; the shapes that the operator counts on."""
    q, k, v = (
        torch.empty(2, 3, *shape, dtype=torch.float16, device="meta")
        for shape in ((8, 128), (9, 128), (9, 80))
    )
    out, lse = Cudnn().forward(q, k, v, False)
    assert out.shape == (2, 3, 8, 80) and lse.shape == (2, 3, 8) and lse.dtype == torch.float32
    grads = Cudnn().backward(torch.empty_like(out), q, k, v, out, lse, False)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


def test_kernels_are_not_imported_with_the_package():
    """Only the two files of kernels import Triton, and nothing imports those at its top."""
    spec = importlib.util.find_spec("regard.engines.sine_features")
    assert spec is not None and spec.origin is not None
    for path in Path(spec.origin).parent.glob("*.py"):
        if path.name not in ("feature_kernels.py", "feature_gradient_kernels.py"):
            tops = [y for y in path.read_text().splitlines() if y.startswith(("import", "from"))]
            assert not any(re.search(r"triton|feature_(gradient_)?kernels", y) for y in tops)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rank", [8, 6])  # on their own, or of two tables in one
def test_another_default_dtype_changes_nothing(exact, default, rank, monkeypatch):
    x = inputs(rank=rank, hidden=16 if rank == 8 else 8)
    expected = operators.run(x).detach()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    monkeypatch.setattr("regard.sine.series._loaded", {})  # tables are loaded anew
    features_of.cache_clear()
    try:
        found = operators.run(x).detach()
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected) and exact.answers == 0


def test_where_no_gradient_comes_in_none_goes_out():
    x = inputs()
    found = torch.autograd.grad(Stop.apply(operators.run(x)).sum(), x[:4], allow_unused=True)
    assert found == (None,) * 4


def test_who_looks_for_the_operator_finds_it():
    """Plain calls go past the dispatcher, and give the same."""
    x = inputs()
    assert not operators.needs_dispatcher(x[:5])
    plain = operators.run(x)
    with Names() as mode:
        assert torch.equal(operators.run(x), plain)
    assert "regard.sine_attend.default" in mode.names
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert torch.equal(operators.run(x), plain)
    assert "regard::sine_attend" in {event.key for event in profiler.key_averages()}


class Sub(torch.Tensor):
    """A tensor subclass, which may override any operation."""


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_subclass_of_tensor_goes_through_the_dispatcher(leaf):
    x = inputs()
    assert operators.needs_dispatcher((x.a, getattr(x, leaf).as_subclass(Sub)))
    assert not operators.needs_dispatcher((x.a, torch.nn.Parameter(x.v)))


def lazily_negated(x):
    """The same numbers, in memory that holds them with the other sign."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg() and torch.equal(view, x)
    return view


def test_memory_with_the_other_sign_is_read_with_it():
    """Of an input and of an incoming gradient: the dispatcher knows, the address does not."""
    x = inputs()
    grad = torch.randn(*x.a.shape[:3], x.value.shape[-1])
    plain = operators.run(x)
    expected = torch.autograd.grad(plain, x[:4], grad, retain_graph=True)
    turned = lazily_negated(x.value.detach())
    torch.testing.assert_close(operators.run(x._replace(value=turned)), plain)
    found = torch.autograd.grad(plain, x[:4], lazily_negated(grad))
    torch.testing.assert_close(found, expected)
    assert operators.needs_dispatcher((torch._efficientzerotensor(3),))


@pytest.mark.filterwarnings("ignore")
def test_a_tracer_finds_the_operator():
    x = SineInputs(*(y.detach() if torch.is_tensor(y) else y for y in inputs()))
    traced = torch.jit.trace(lambda a: operators.run(x._replace(a=a)), x.a, check_trace=False)
    assert "regard::sine_attend" in str(traced.graph)


def test_numbers_are_made_once_and_anew_under_a_mode():
    first = device.numbers(0.5, 1.0)
    assert device.numbers(0.5, 1.0) is first and first.tolist() == [0.5, 1.0]
    with FakeTensorMode():
        fake = device.numbers(0.25, 1.0)
    assert isinstance(fake, FakeTensor)
    with torch.inference_mode():
        later = device.numbers(0.25, 1.0)
    assert later.tolist() == [0.25, 1.0] and not later.is_inference()
