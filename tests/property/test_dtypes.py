"""Lower precision: no further from fp64 than the dtype explains, on calls made up by hypothesis."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import regard

from .strategies import INNER, PAIRWISE, Call, Numbers, calls

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SLOW = settings(suppress_health_check=[HealthCheck.too_slow])


@SLOW
@example(Call(keys=1), "fp16", "sdpa")
@example(Call("gaussian", dim=7, keys=17), "bf16", "sdpa")
@example(Call("additive", dim=7, keys=17), "fp16", "cpu")
@given(
    calls(INNER + PAIRWISE, options=("softcap", "temperature")),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(["reference", "cpu", "sdpa"]),
)
def test_error_is_that_of_the_dtype(call, dtype, engine):
    """Logits of a few units: a rounding of eps in each moves an output by a few eps at most."""
    served = engine != "sdpa" or (call.score in INNER and "softcap" not in call.options)
    assume(served and call.queries and call.keys)
    numbers = Numbers(call)
    tensors, score, mask = numbers.inputs(), numbers.score(), numbers.mask()
    # What the narrow dtype can hold, so that inputs are the same numbers on both sides.
    narrow = [x.detach().to(DTYPES[dtype]) for x in tensors]
    score = score.to(DTYPES[dtype])
    options = numbers.options()
    output = regard.attention(*narrow, score, mask=mask, engine=engine, **options)
    assert output.dtype == DTYPES[dtype]
    wide = [x.double() for x in narrow]
    exact = regard.attention(*wide, score.double(), mask=mask, engine="reference", **options)
    eps = torch.finfo(DTYPES[dtype]).eps
    logits = regard.score(*wide[:2], score).detach().abs()
    # Features are rounded to the dtype before the product: the error grows with the logits.
    size = 1 + float(logits.max()) / options.get("temperature", 1.0)
    reach = float(wide[2].abs().max())
    error = float((output.detach().double() - exact.detach()).abs().max())
    assert error <= 16 * eps * size * reach
