"""Every engine against the reference, on calls that hypothesis makes up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch import Tensor

import regard
from regard.engines.cpu import tiles
from regard.engines.native import absent
from regard.testing.poison import small_tiles

from .strategies import INNER, PAIRWISE, Call, Numbers, calls, lay_out

RTOL = 1e-9
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def outcome(
    call: Call, engine: str, want: tuple[str, ...], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Output, statistics and every gradient, for numbers that the seed decides."""
    numbers = Numbers(call, dtype)
    tensors, score, mask, options = (
        numbers.inputs(),
        numbers.score(),
        numbers.mask(),
        numbers.options(),
    )
    result = regard.attend(*tensors, score, want=want, mask=mask, engine=engine, **options)
    grad = lay_out(numbers.randn(*result.output.shape), call.layouts[3])
    learned = [x for x in options.values() if isinstance(x, Tensor)]
    wanted = [*tensors, *score.parameters(), *learned]
    outputs, incoming = [result.output], [grad]
    for field in ("lse", "entropy", "weights"):
        x = getattr(result, field)
        if x is not None and x.requires_grad:
            # NaN and -inf mark rows whose statistic has no value, and no gradient either.
            outputs.append(torch.where(x.isfinite(), x, 0))
            incoming.append(numbers.randn(*x.shape))
    grads = torch.autograd.grad(
        outputs, wanted, incoming, allow_unused=True, materialize_grads=True
    )
    return [x for x in result if x is not None] + list(grads)


def check(call: Call, engine: str, want: tuple[str, ...] = ()) -> None:
    size = tiles.TILE_ELEMENTS
    tiles.TILE_ELEMENTS = call.tile
    try:
        actual = outcome(call, engine, want)
    finally:
        tiles.TILE_ELEMENTS = size
    for got, wanted in zip(actual, outcome(call, "reference", want), strict=True):
        finite = wanted.detach()[wanted.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=RTOL, atol=RTOL * (1 + scale), equal_nan=True)


def check_compiled(call: Call, want: tuple[str, ...]) -> None:
    """In fp32, with tiles of 16 keys.

    The bound is wide, for a gradient may be what is left of larger terms: the contract suite measures errors,
    and here strides, broadcasting, empty dims and masks are looked for.
    """
    with small_tiles(1):
        actual = outcome(call, "compiled", want, torch.float32)
    for got, wanted in zip(actual, outcome(call, "reference", want), strict=True):
        finite = wanted.detach()[wanted.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        ours, near = got.double(), 1e-3 * (1 + scale)
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=near, equal_nan=True)


# The failure classes of other libraries, each as the smallest call that shows it.
NOTHING_SEEN = Call(masks=frozenset({"keys", "queries", "dense"}), seed=3)
ONE_KEY = Call(keys=1, queries=1)
NO_KEYS = Call(keys=0)
TAIL = Call(queries=17, keys=33, tile=1, masks=frozenset({"causal"}))
STRIDE_0 = Call(layouts=("expanded", "expanded", "expanded", "expanded"), keys=33, tile=100)
GROUPED = Call(heads=(6, 2, 3), lead=(2, 3), shared=(False, True, False))
SHARED = Call(shared=(True, True, False), masks=frozenset({"keys"}), options=frozenset({"bias"}))


@SLOW
@example(NOTHING_SEEN)
@example(ONE_KEY)
@example(TAIL)
@example(STRIDE_0)
@example(GROUPED)
@example(SHARED)
@given(calls(INNER))
def test_cpu_inner(call):
    check(call, "cpu")


@SLOW
@example(Call("additive", masks=frozenset({"keys", "dense"}), seed=3))
@example(Call("additive", keys=0))
@example(Call("gatv2", queries=17, keys=33, tile=1, masks=frozenset({"causal"})))
@example(Call("additive", layouts=("expanded",) * 4, keys=33, tile=100))
@example(Call("gatv2", heads=(6, 2, 3), lead=(2, 3), shared=(False, True, False)))
@given(calls(PAIRWISE))
def test_cpu_pairwise(call):
    check(call, "cpu")


@pytest.mark.skipif(absent() is not None, reason="numba is not installed")
@SLOW
@example(Call("additive", masks=frozenset({"keys", "dense"}), seed=3))
@example(Call("additive", keys=0))
@example(Call("additive", queries=0))
@example(Call("gatv2", queries=37, keys=33, masks=frozenset({"causal"})))
@example(Call("additive", layouts=("expanded",) * 4, keys=33))
@example(Call("gatv2", heads=(6, 2, 3), lead=(2, 3), shared=(False, True, False)))
@example(Call("additive", shared=(True, True, False), options=frozenset({"hiding bias"})))
@given(calls(PAIRWISE))
def test_compiled(call):
    check_compiled(call, ())


@pytest.mark.skipif(absent() is not None, reason="numba is not installed")
@SLOW
@example(Call("gatv2", options=frozenset({"temperatures", "sink", "softcap", "bias"}), keys=17))
@given(calls(PAIRWISE))
def test_compiled_statistics(call):
    check_compiled(call, ("lse", "entropy", "max_weight", "weights"))


@SLOW
@example(NOTHING_SEEN)
@example(NO_KEYS)
@example(Call(options=frozenset({"some hard", "sink", "hiding bias"}), keys=17, tile=1))
@example(Call("additive", shared=(True, True, False)))
@given(calls(INNER + PAIRWISE))
def test_cpu_statistics(call):
    check(call, "cpu", STATISTICS)


@SLOW
@example(NOTHING_SEEN)
@example(ONE_KEY)
@example(STRIDE_0)
@example(GROUPED)
@example(Call(shared=(True, True, False), masks=frozenset({"keys"})))
@example(Call("gaussian", heads=(4, 2, 2), masks=frozenset({"keys", "queries", "causal"})))
@given(calls(INNER, options=("temperature",)))
def test_sdpa(call):
    if not call.queries or not call.keys:
        with pytest.raises(regard.EngineRefused, match="empty"):
            outcome(call, "sdpa", ())
        return
    check(call, "sdpa")


@SLOW
@given(calls(INNER + PAIRWISE))
def test_the_engine_that_is_picked(call):
    """`engine=None` serves everything, and `explain` names what ran."""
    numbers = Numbers(call)
    tensors, score, mask, options = (
        numbers.inputs(),
        numbers.score(),
        numbers.mask(),
        numbers.options(),
    )
    picked = regard.explain(*tensors, score, mask=mask, **options).engine
    output = regard.attention(*tensors, score, mask=mask, **options)
    named = regard.attention(*tensors, score, mask=mask, engine=picked, **options)
    assert torch.equal(output, named) or output.isnan().any()
    assert output.shape == (*numbers.lead(), call.heads[0], call.queries, call.value_dim)
