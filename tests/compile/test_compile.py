"""torch.compile(fullgraph=True): no graph break, the eager result, one graph for all lengths."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import (
    CASES,
    DYNAMO_WARNS,
    HAS_COMPILER,
    INTERPRETED,
    OLD_DYNAMO,
    assert_close,
    everything,
    function,
    graphs,
    skip_mask_as_argument,
    some_slow,
    tensors,
)

pytestmark = DYNAMO_WARNS
LENGTHS = [(5, 6), (7, 9), (12, 40)]
# One of each way through the library; the slow run has them all.
QUICK = [
    "inner lengths",
    "inner on cpu",
    "additive ragged",
    "projected",
    "temperatures",
    "statistics",
]


def check(name: str, backend: str) -> None:
    """Forward and backward are the eager ones, and new lengths do not compile again."""
    case = (CASES | INTERPRETED)[name]
    skip_mask_as_argument(case.options(5, 6))
    score = case.build()
    parameters = [] if score is None else list(score.parameters())
    call = function(case, score)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    for queries, keys in LENGTHS:
        given, options = tensors(queries, keys), case.options(queries, keys)
        expected = everything(call, given, options, parameters)
        assert_close(everything(compiled, given, options, parameters), expected)
    assert graphs() == 1 or OLD_DYNAMO


@pytest.mark.parametrize("name", some_slow(CASES, quick=QUICK))
def test_fullgraph_with_dynamic_lengths(name):
    check(name, "aot_eager")


@pytest.mark.interpreted
@pytest.mark.parametrize("name", some_slow(INTERPRETED, quick=["additive on triton"]))
def test_fullgraph_on_triton(name):
    check(name, "aot_eager")


@pytest.mark.skipif(not HAS_COMPILER, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("name", some_slow(CASES, quick=["inner causal", "additive ragged"]))
def test_inductor(name):
    check(name, "inductor")


@pytest.mark.parametrize("name", some_slow(["inner causal", "additive causal"], ["inner causal"]))
def test_automatic_dynamic_shapes_compile_twice_at_most(name):
    """Without `dynamic=True` the first length is taken as fixed and the second makes it dynamic."""
    case = CASES[name]
    skip_mask_as_argument(case.options(5, 6))
    score = case.build()
    call = function(case, score)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for length in (5, 7, 12, 40):
        given, options = tensors(length, length), case.options(length, length)
        assert_close(list(compiled(*given, options)), list(call(*given, options)))
    assert graphs() <= 2


@pytest.mark.parametrize("name", some_slow(["inner", "additive"], quick=["additive"]))
def test_a_changing_batch_does_not_compile_again(name):
    case = CASES[name]
    score = case.build()
    call = function(case, score)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (7, 8, 11):  # no other size here: equal sizes share a symbol
        given = [x.detach()[:1].repeat(batch, 1, 1, 1) for x in tensors(5, 6)]
        assert_close(list(compiled(*given, {})), list(call(*given, {})))
    assert graphs() == 1 or OLD_DYNAMO


@pytest.mark.skipif(OLD_DYNAMO, reason="Dynamo of torch 2.6 cannot trace & of two dataclasses")
def test_a_mask_built_inside_the_compiled_function():
    def call(q, k, v, lengths):
        mask = Mask.causal() & Mask.lengths(keys=lengths, queries=lengths) & Mask.window(left=2)
        return regard.attention(q, k, v, mask=mask)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 7, 12):
        given, lengths = tensors(length, length), torch.tensor([length, length // 2])
        assert_close([compiled(*given, lengths)], [call(*given, lengths)])
    assert graphs() == 1 or OLD_DYNAMO


@pytest.mark.parametrize("value_dim", [3, 6])
@pytest.mark.parametrize("engine", some_slow(["sdpa", "cpu"], quick=["sdpa"]))
def test_values_narrower_and_wider_than_keys(engine, value_dim):
    """The backward of padding has other strides under tracing than it has (torch 2.6 to 2.13)."""
    score = regard.Bilinear(4, 4, 2)

    def call(q, k, v, options):
        return (regard.attention(q, k, v, score, **options),)

    given = [torch.randn(2, 2, n, d).requires_grad_() for n, d in ((5, 4), (7, 4), (7, value_dim))]
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    options = {"engine": engine}
    expected = everything(call, given, options, [score.weight])
    assert_close(everything(compiled, given, options, [score.weight]), expected)


@pytest.mark.parametrize("name", some_slow(["causal", "window", "lengths"], quick=["lengths"]))
@pytest.mark.parametrize(
    "build", [lambda: None, lambda: regard.Additive(4, 2)], ids=["inner", "pairwise"]
)
def test_a_mask_from_outside_the_compiled_function(build, name):
    """A mask that the function closes over, as a module that keeps its mask has it."""
    score = build()
    mask = {
        "causal": Mask.causal(),
        "window": Mask.window(left=2) & Mask.causal(),
        "lengths": Mask.lengths(keys=torch.tensor([3, 5])),
    }[name]

    def call(q, k, v, options):
        return (regard.attention(q, k, v, score, mask=mask),)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in LENGTHS[1:]:
        given = tensors(queries, keys)
        expected = everything(call, given, {}, [])
        assert_close(everything(compiled, given, {}, []), expected)
    assert graphs() == 1 or OLD_DYNAMO


@pytest.mark.parametrize("heads", [pytest.param((4, 2, 2), marks=pytest.mark.slow), (6, 2, 3)])
@pytest.mark.parametrize(
    "build", [lambda h: None, lambda h: regard.Additive(4, h)], ids=["inner", "pairwise"]
)
def test_grouped_heads(build, heads):
    score = build(heads[0])
    shapes = ((heads[0], 5, 4), (heads[1], 6, 4), (heads[2], 6, 3))
    given = [torch.randn(2, *shape).requires_grad_() for shape in shapes]
    call = function(CASES["inner"], score)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_close(everything(compiled, given, {}, []), everything(call, given, {}, []))


@pytest.mark.parametrize("ndim", [2, 5])
def test_other_numbers_of_dims(ndim):
    x = torch.randn(*(2, 3, 2, 5, 4)[-ndim:])
    compiled = torch.compile(regard.attention, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_close([compiled(x, x, x)], [regard.attention(x, x, x)])


@pytest.mark.parametrize(
    "name",
    some_slow(
        ["inner", "bilinear", "additive", "projected", "gaussian"], quick=["bilinear", "projected"]
    ),
)
def test_autocast_under_compile(name):
    """The result in bf16, as eager gives it."""
    case = CASES[name]
    score = case.build()

    def call(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return regard.attention(q, k, v, score)

    given = tensors(5, 6)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    output, expected = compiled(*given), call(*given)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
    grads = [torch.autograd.grad(x.float().sum(), given) for x in (output, expected)]
    for got, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_dropout_under_compile(engine):
    """Runs, drops about as many as asked for, and differs from call to call."""
    value = torch.eye(50).expand(2, 2, 50, 50)
    query, key = torch.zeros(2, 2, 40, 4), torch.zeros(2, 2, 50, 4)

    def call(q, k, v):
        return regard.attention(q, k, v, dropout=0.3, engine=engine)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    outputs = [compiled(query, key, value) for _ in range(2)]
    assert not torch.equal(*outputs)
    assert float((outputs[0] > 0).float().mean()) == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("name", some_slow(["inner", "additive"], quick=["additive"]))
def test_empty_inputs_under_compile(name):
    """pytorch#195812: compiled graphs lost the guard that eager has."""
    case = CASES[name]
    score = case.build()
    call = function(case, score)
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in ((5, 6), (5, 0), (0, 6), (0, 0)):
        given = tensors(queries, keys)
        assert_close(everything(compiled, given, {}, []), everything(call, given, {}, []))


def test_wrong_input_raises_the_same_error():
    compiled = torch.compile(regard.attention, backend="aot_eager")
    with pytest.raises(ValueError, match="query dim 4 and key dim 3"):
        compiled(torch.zeros(2, 5, 4), torch.zeros(2, 5, 3), torch.zeros(2, 5, 3))


def test_a_training_step():
    """A module with a score inside, compiled, learns."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.score = regard.Projected(regard.Additive(8, 2), 4, 4)
            self.out = torch.nn.Linear(8, 1)

        def forward(self, x):
            heads = regard.attention(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), self.score)
            return self.out(heads.transpose(1, 2).flatten(2)).mean((1, 2))

    model = Model()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = torch.randn(16, 5, 4)
    target = x.amax((1, 2))
    losses = []
    for _ in range(30):
        loss = (compiled(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
