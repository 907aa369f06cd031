"""The sine engine on a GPU: what it serves, and how it passes a problem to its operator.

Shape legend: `*` leading dims, flattened to B; H query heads, K key heads, Q queries, L keys, E hidden
units, D value dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import sine
from regard.engines.base import Attended
from regard.engines.gpu import HAS_CUDNN, HAS_TRITON, generation, is_known, too_large
from regard.engines.sine_features import choice, operators
from regard.engines.sine_features.bounds import FEATURE_ROUNDING, OWN_ERROR
from regard.engines.sine_features.parts import PARTS
from regard.engines.sizes import four_dims, is_too_short_for_series
from regard.engines.tiled.eager import numbers
from regard.forms import Pairwise
from regard.problem import Problem
from regard.sine.lowering import lending_rows, row_for, weighed
from regard.sine.series import load_lending

# cuDNN's fp16 attention needs Ampere; widths beyond 128 need Hopper.
OLDEST_FOR_CUDNN, OLDEST_FOR_WIDE, WIDE_FEATURES = 8, 9, 128
MOST_HEADS_OF_CUDNN = 65_535
SERIES_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def refusals(p: Problem) -> list[str]:
    """Calls that the operator cannot run on this machine, or that exact attention runs faster."""
    reasons = [*machine(p), *options(p), *sizes(p)]
    if len(reasons) > 0:
        return reasons
    call, reasons = choice.on_device(p)
    wide = call is not None and call.widths.features > WIDE_FEATURES
    if wide and generation(p.device.index) < OLDEST_FOR_WIDE:
        return [f"features wider than {WIDE_FEATURES} need compute capability 9.0"]
    return reasons


def machine(p: Problem) -> list[str]:
    """Reasons of this machine: missing packages, hardware or settings."""
    if p.device.type != "cuda":
        return [f"the tensors are on {p.device.type!r}: the series runs on the CPU and on CUDA"]
    reasons = []
    if not HAS_TRITON:
        reasons.append("its kernels need Triton 3.6 or newer: pip install regard[triton]")
    if not HAS_CUDNN:
        reasons.append("PyTorch was built without cuDNN, which runs the features")
    if PARTS.exact is None:
        reasons.append("no exact kernel is set as its fallback outside the range of the series")
    if generation(p.device.index) < OLDEST_FOR_CUDNN:
        reasons.append("cuDNN's attention needs compute capability 8.0")
    if torch.are_deterministic_algorithms_enabled():
        reasons.append(
            "cuDNN's backward is not deterministic, and torch.use_deterministic_algorithms is on"
        )
    return reasons


def options(p: Problem) -> list[str]:
    """Reasons of the options of the call."""
    reasons = []
    if p.dtype not in SERIES_DTYPES:
        reasons.append(f"fp16 features would lose precision for {p.dtype} inputs")
    elif p.error is None and p.dtype not in OWN_ERROR:
        reasons.append("it is an approximation: allow one by error=, or ask for engine='sine'")
    if p.mask is not None and not is_causal_square(p):
        reasons.append("the only mask it has is a causal one with as many keys as queries")
    given = {"bias": p.bias, "sink": p.sink, "softcap": p.softcap}
    reasons += [f"there is no {name} on a GPU" for name, x in given.items() if x is not None]
    if p.dropout:
        reasons.append("there is no dropout on a GPU")
    if len(p.want) > 0:
        reasons.append(f"there are no statistics on a GPU ({', '.join(sorted(p.want))})")
    return reasons


def sizes(p: Problem) -> list[str]:
    """Reasons of the sizes: too large for cuDNN or the fallback, or too small to be worth it."""
    heads = math.prod(p.lead) * p.heads
    reasons = []
    if is_known(p.queries, p.keys):  # kernels of the fallback index with 32 bits
        reasons += too_large(max(p.queries, p.keys), p.form.query.shape[-1])
    if heads > MOST_HEADS_OF_CUDNN:
        reasons.append(f"batch times heads is {heads:,}, more than {MOST_HEADS_OF_CUDNN:,}")
    if p.queries < 2 or p.keys < 2:
        reasons.append("for a single query or key exact attention is faster")
    elif is_too_short_for_series(p):
        reasons.append(f"for {p.queries} queries and {p.keys} keys exact attention is faster")
    return reasons


def is_causal_square(p: Problem) -> bool:
    """Whether the mask is the one passed to cuDNN as a flag: causal, with as many keys as queries."""
    return p.mask is not None and p.queries == p.keys and p.mask.is_only_causal


def run(p: Problem) -> Attended:
    """The result of the operator, whose arguments and output have 4 dims."""
    form = p.form
    assert isinstance(form, Pairwise) and isinstance(p.temperature, float)
    call, _ = choice.on_device(p)
    assert call is not None
    b, value = same_heads(form.b, p.value, p.heads)
    lead = p.lead
    output = operators.run(
        operators.SineInputs(
            four_dims(form.a, lead),
            four_dims(b, lead),
            one_for_each_head(form.v, p.heads),
            four_dims(value, lead),
            numbers(1 / p.temperature, call.allowed),
            p.mask is not None,
            call.kind,
            call.rank,
        )
    )
    return Attended(output if len(lead) == 1 else output.reshape(*lead, *output.shape[1:]))


def one_for_each_head(v: Tensor, heads: int) -> Tensor:
    """The v (H or 1, 1, E) of a form as (H, E)."""
    v = v.squeeze(-2)
    return v if v.shape[0] == heads else v.expand(heads, -1)


def same_heads(b: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values with the same number of heads, which divides `heads`."""
    most = max(b.shape[-3], value.shape[-3])
    # Neither divides the other: both get one head for each query head.
    if most % b.shape[-3] != 0 or most % value.shape[-3] != 0:
        most = heads

    def grown(x: Tensor) -> Tensor:
        return x if x.shape[-3] == most else x.repeat_interleave(most // x.shape[-3], -3)

    return grown(b), grown(value)


def added_error(p: Problem) -> float:
    """The error bound that the device computes for the series; 0 where the exact fallback runs.

    It reads the tensors, which `explain` may do and a call may not.
    """
    form = p.form
    assert isinstance(form, Pairwise) and isinstance(p.temperature, float)
    call, _ = choice.on_device(p)
    assert call is not None
    reach = sine.unit_reach(form)
    if call.widths.lent:
        series = load_lending(call.kind, call.rank, p.device)
        row = lending_rows(form, series, reach)
    else:
        series = sine.load(call.kind, call.rank, p.device)
        row = row_for(series, reach)
    # The same two terms as in the kernel `pick_rows`: error of the series, and rounding of the features.
    bound = choice.output_error(p, weighed(form, series.error[row]))
    powers = series.coefficients.square().sum(-1)[row]
    powers = powers.repeat_interleave(p.heads // powers.shape[-2], -2)
    size = form.v.detach().float().squeeze(-2) / p.temperature
    bound += FEATURE_ROUNDING * float((size.square() * powers).sum(-1).amax().sqrt())
    held = float(reach.max()) <= float(series.reach[-1]) and bound <= call.allowed
    return bound if held else 0.0
