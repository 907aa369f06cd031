"""Operands in any layout, empty ones, saturated rows, fixed order, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask
from regard.engines import lineup
from regard.problem import Problem
from regard.testing import poisoned

from .tools import deterministic, draw, inputs, outcome, widened

pytestmark = pytest.mark.interpreted
WANT = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


class SumOfTanh(regard.PairwiseScore):
    name, activation = "sum of tanh", "tanh"

    def query(self, q):
        return regard.forms.PairwiseQuery(q, q.new_ones(1, q.shape[-1]))

    def key(self, k):
        return regard.forms.PairwiseKey(k)


class Odd(SumOfTanh):
    name, activation = "odd", "relu of these tests"


regard.Activation(
    "relu of these tests", value=lambda x, _: x.relu(), slope=lambda x, y, _: (x > 0).to(x)
)


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def heads_last(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(x: Tensor) -> Tensor:
    """Every second column of NaN."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan)
    wide[..., 1::2] = x
    return wide[..., 1::2]


def expanded(x: Tensor) -> Tensor:
    return x[:1, :1].expand(x.shape)


def expanded_length(x: Tensor) -> Tensor:
    return x[:, :, :1].expand(x.shape)


def expanded_width(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape)


LAYOUTS = [transposed, heads_last, sliced, expanded, expanded_length, expanded_width]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "dtype"), [("additive", torch.float16), ("dot", torch.float32)])
def test_operands_and_gradients_in_every_layout(name, dtype, layout):
    """Mask and bias too, and what comes in for the backward."""
    queries, keys = 17, 5
    score = regard.Additive(3, 2).to(dtype) if name == "additive" else None
    plain = [x.detach() for x in inputs(queries, keys, dtype=dtype)]
    extra = {"mask": torch.rand(1, 2, queries, keys) > 0.2, "bias": torch.randn(queries, keys)}
    grad = torch.randn(1, 2, queries, 4)
    found = []
    for change in (layout, lambda x: layout(x).contiguous()):
        tensors = [change(x).requires_grad_() for x in plain]
        mask = change(extra["mask"].float()) > 0.5
        bias = change(extra["bias"][None, None])[0, 0].to(dtype)
        found.append(
            outcome(tensors, score, "triton", change(grad.to(dtype)), mask=mask, bias=bias)
        )
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("which", ["batch", "queries", "keys", "value width"])
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_empty_inputs(name, which):
    """The right shapes, 0 where nothing is seen, and no memory that was not written."""
    size = {"batch": 2, "queries": 17, "keys": 5, "value width": 4} | {which: 0}
    score = regard.Additive(3, 2) if name == "additive" else None
    tensors = inputs(
        size["queries"], size["keys"], batch=size["batch"], value_dim=size["value width"]
    )
    want = [*tensors, *([] if score is None else score.parameters())]
    for mask in (None, Mask.causal()):
        with poisoned():
            result = regard.attend(*tensors, score, mask=mask, want=WANT, engine="triton")
            ends = [result.output.sum(), result.weights.sum()]
            grads = torch.autograd.grad(ends, want, allow_unused=True, materialize_grads=True)
        rows = (size["batch"], 2, size["queries"])
        assert result.output.shape == (*rows, size["value width"])
        assert result.weights.shape == (*rows, size["keys"])
        assert all(getattr(result, field).shape == rows for field in WANT[:-1])
        assert all(
            x.isfinite().all() and x.shape == y.shape for x, y in zip(grads, want, strict=True)
        )
        if which == "keys":
            assert (result.output == 0).all() and (result.entropy == 0).all()
            assert (result.lse == -torch.inf).all()


@pytest.mark.parametrize("hidden", [1, 4])
def test_one_v_for_all_heads(hidden):
    """Scores of other people may have one v, (1, hidden), and no parameter at all."""
    tensors = inputs(17, 9, heads=4, key_heads=2, hidden=hidden, batch=2)
    grad = torch.randn(2, 4, 17, 4)
    found, expected = (outcome(tensors, SumOfTanh(), x, grad) for x in ("triton", "reference"))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gap", [10.0, 40.0])
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_statistics_of_saturated_rows_keep_their_digits(name, gap):
    """One key leads by `gap`: entropy and Jacobian are near exp(-gap), which 1 - 1 does not see."""
    tensors = inputs(4, 70, heads=1, value_dim=2)
    score = regard.Additive(3, 1) if name == "additive" else None
    bias = torch.zeros(4, 70)
    bias[range(4), [0, 33, 64, 69]] = gap  # in the first tile, in its middle, in the last
    found = regard.attend(*tensors, score, bias=bias, want=WANT, engine="triton")
    wide = [x.detach().double() for x in tensors]
    other = None if score is None else score.double()
    exact = regard.attend(*wide, other, bias=bias.double(), want=WANT, engine="reference")
    for field in ("entropy", "jacobian", "lse", "max_logit", "max_weight"):
        x, y = getattr(found, field).double(), getattr(exact, field)
        torch.testing.assert_close(x, y, rtol=1e-4, atol=0, msg=field)


@pytest.mark.parametrize("cap", [0.5, 50.0, 1e3, 1e6])
@pytest.mark.parametrize("queries", [3, 20])
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["fp32", "fp64"]
)
def test_a_soft_cap_far_above_the_scores_costs_no_digits(cap, queries, dtype, most):
    """It multiplies a tanh that is next to 0."""
    tensors, score = [x.detach().to(dtype) for x in inputs(queries, 20)], regard.Additive(3, 2)
    exact = [x.double() for x in tensors]
    truth = regard.attention(*exact, score.double(), softcap=cap, engine="reference")
    found = regard.attention(*tensors, score.to(dtype), softcap=cap, engine="triton")
    assert float((found - truth).detach().abs().max()) < most


def test_hard_rows_among_soft_ones():
    tensors, score = inputs(18, 40, heads=2), regard.Additive(3, 2)
    temperature = torch.rand(1, 2, 18, 1) + 0.5
    temperature[:, :, ::3] = 0
    output = regard.attention(*tensors, score, temperature=temperature, engine="triton")
    expected = regard.attention(*tensors, score, temperature=temperature, engine="reference")
    torch.testing.assert_close(output, expected)
    best = regard.score(*tensors[:2], score).argmax(-1)[:, :, ::3]
    chosen = tensors[2].gather(2, best.unsqueeze(-1).expand(1, 2, 6, 4))
    assert torch.equal(output[:, :, ::3], chosen)


@pytest.mark.parametrize("name", ["additive", "dot"])
def test_a_fixed_order_gives_the_same_gradients_and_bits(name):
    """All gradients of `everything` at once, several tiles each way; NaN in fresh memory."""
    tensors = inputs(34, 40, heads=2, key_heads=1, dtype=torch.float16)
    score = regard.Additive(3, 2).half() if name == "additive" else None
    temperature = (torch.rand(1, 2, 34, 1) + 0.5).half().requires_grad_()
    bias = draw(34, 40, dtype=torch.float16)
    want = [*tensors, temperature, bias, *([] if score is None else score.parameters())]

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        output = regard.attention(
            *tensors, score, temperature=temperature, bias=bias, softcap=3.0, dropout=0.1,
            mask=Mask.causal(), engine="triton",
        )  # fmt: skip
        return [output.detach(), *torch.autograd.grad(output.float().square().sum(), want)]

    loose = run()
    with deterministic():
        first, second = run(), run()
    for x, y, z in zip(first, second, loose, strict=True):
        assert torch.equal(x, y)
        scale = float(z.abs().max())
        torch.testing.assert_close(x, z, rtol=2e-3, atol=2e-3 * scale)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e4])
@pytest.mark.parametrize("name", ["additive", "gatv2", "dot"])
def test_a_fixed_order_keeps_digits_at_any_size(name, size):
    """Sums in integers have a unit: gradients of any size, and rows a millionth of the largest."""
    tensors = inputs(18, 34, heads=1)
    score = {"additive": regard.Additive, "gatv2": regard.GATv2}.get(name, lambda *_: None)(3, 1)
    grad = size * torch.randn(1, 1, 18, 4)
    grad[:, :, 3] *= 1e6
    with deterministic():
        found = outcome(tensors, score, "triton", grad)
    expected = outcome(tensors, score, "triton", grad)
    # Row by row: none of them may vanish beside the largest.
    rows = [(x, y) for x, y in zip(found[1:4], expected[1:4], strict=True)]
    for x, y in rows:
        scale = y.abs().amax(-1, keepdim=True)
        assert ((x - y).abs() <= 1e-5 * scale + 1e-30).all()


def test_what_is_refused_and_what_is_not_promised():
    wide = [*inputs(3, 4)[:2], torch.zeros(1, 2, 4, 1025)]
    with pytest.raises(regard.EngineRefused, match="1024"):
        regard.attention(*wide, engine="triton")
    with pytest.raises(regard.EngineRefused, match="activation 'relu"):
        regard.attention(*inputs(3, 4), Odd(), engine="triton")
    notes = regard.explain(*inputs(3, 4), engine="triton").notes
    assert any("second derivative" in note for note in notes)
    assert any("no fixed order" in note for note in notes)
    with deterministic():
        notes = regard.explain(*inputs(3, 4), engine="triton").notes
    assert not any("no fixed order" in note for note in notes)


def refusals(queries: int, keys: int, pairwise: bool = True, **options) -> list[str]:
    """What the engine says to calls of 3 features that have no memory: one number is all of them."""
    one, score = torch.zeros(1), regard.Additive(3, 1) if pairwise else regard.Dot()
    q, k = (one.expand(1, 1, length, 3) for length in (queries, keys))
    return lineup.TRITON.refusals(Problem(score.lower(q, k), k, **options))


def test_heads_that_32_bits_cannot_count_are_refused():
    for lengths in ((16, 2**29), (2**29, 16)):
        (reason,) = refusals(*lengths)
        assert "536,870,912 rows of 3 hidden units are too many" in reason
    # Few queries count places in 64 bits, and so do inner products.
    for want in ((), ("lse", "max_weight")):
        assert not refusals(1, 2**29, want=frozenset(want))
    assert not refusals(16, 2**29, pairwise=False)
    # But what other kernels compute is refused, and more keys than 32 bits number.
    for name in ("jacobian", "weights", "entropy"):
        assert refusals(1, 2**29, want=frozenset({name}))
    for options in ({"temperature": 0.0}, {"temperature": torch.ones(1)}, {"dropout": 0.5}):
        assert refusals(1, 2**29, **options)
    for pairwise in (True, False):
        assert "too many for its kernels" in refusals(1, 2**31, pairwise)[-1]


def test_there_is_no_second_derivative_and_the_error_says_so():
    (q, *rest), score = inputs(3, 4), regard.Additive(3, 2)
    output = regard.attention(q, *rest, score, engine="triton")
    (grad,) = torch.autograd.grad(output.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("size", [1e-36, 1e-12, 1.0, 1e30])
def test_a_fixed_result_keeps_small_gradients(size):
    """Each row counts in units of its own, so that neither size nor neighbours cost digits."""
    q, k, v = inputs(13, 13, heads=2, hidden=3, value_dim=5, key_heads=1)
    score = regard.Additive(3, 2)
    v.data[:, :, -1] = 1e20  # the last query alone sees it
    grad = torch.randn(*q.shape[:3], 5) * size
    grad[:, :, -1] = 0
    grad[:, :, 3] *= 1e-15 if size == 1.0 else 1.0
    with deterministic():
        out = regard.attention(q, k, v, score, mask=Mask.causal(), engine="triton")
        found = torch.autograd.grad(out, q, grad)[0]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = widened(score, torch.float64)
    out = regard.attention(*wide, exact, mask=Mask.causal(), engine="reference")
    truth = torch.autograd.grad(out, wide[0], grad.double())[0]
    for row in (2, 3, 7):
        off = (found[:, :, row] - truth[:, :, row]).abs().max() / truth[:, :, row].abs().max()
        assert float(off) < 1e-4
