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
from regard.engines.sine_features import choice, operators, wide
from regard.engines.sine_features.bounds import FEATURE_ROUNDING, FULL_PRECISION, OWN_ERROR
from regard.engines.sine_features.parts import PARTS
from regard.engines.sizes import (
    WIDE_SERIES_TANH,
    four_dims,
    is_too_short_for_series,
    tanh_count,
)
from regard.engines.tiled.eager import numbers
from regard.forms import Pairwise
from regard.mask import Mask
from regard.problem import Problem
from regard.sine.lowering import lending_rows, row_for, weighed
from regard.sine.series import load_lending

# cuDNN's fp16 attention needs Ampere; widths beyond 128 need Hopper. So do the wide kernels: they compile
# for Ampere, where nobody has measured whether they are faster than exact attention.
OLDEST_FOR_CUDNN, OLDEST_FOR_WIDE, WIDE_FEATURES = 8, 9, 128
MOST_HEADS_OF_CUDNN = 65_535
SERIES_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def refusals(p: Problem) -> list[str]:
    """Calls that the operator cannot run on this machine, or that exact attention runs faster."""
    reasons = [*machine(p), *options(p), *sizes(p)]
    if len(reasons) > 0:
        return reasons
    call, reasons = choice.on_device(p)
    if call is None:
        return reasons
    wide = call.wide or call.widths.features > WIDE_FEATURES
    if wide and generation(p.device.index) < OLDEST_FOR_WIDE:
        what = f"features wider than {WIDE_FEATURES}, masks that are not causal and dropout"
        return [f"{what} need compute capability 9.0"]
    if not call.wide:
        return cudnn_sizes(p)
    if p.error != math.inf and tanh_count(p) < WIDE_SERIES_TANH:
        return [f"for {p.queries} queries and {p.keys} keys exact attention is faster"]
    return []


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
    if p.mask is not None:
        reasons += masks(p.mask)
    given = {"bias": p.bias, "sink": p.sink, "softcap": p.softcap}
    reasons += [f"there is no {name} on a GPU" for name, x in given.items() if x is not None]
    if len(p.want) > 0:
        reasons.append(f"there are no statistics on a GPU ({', '.join(sorted(p.want))})")
    return reasons


def masks(mask: Mask) -> list[str]:
    """Reasons of the mask: the kernels have spans of keys (lengths, windows, causal) and one set of segments."""
    reasons = []
    if len(mask.allowed) > 0:
        reasons.append("it has masks by lengths, windows and segments on a GPU, and no dense ones")
    if len(mask.packed) > 1:
        reasons.append("it has one set of segments on a GPU, not several")
    return reasons


def cudnn_sizes(p: Problem) -> list[str]:
    """Reasons of sizes that are too large for cuDNN."""
    heads = math.prod(p.lead) * p.heads
    if heads > MOST_HEADS_OF_CUDNN:
        return [f"batch times heads is {heads:,}, more than {MOST_HEADS_OF_CUDNN:,}"]
    return []


def sizes(p: Problem) -> list[str]:
    """Reasons of the sizes: too large for the fallback, or too small to be worth it."""
    reasons = []
    if is_known(p.queries, p.keys):  # kernels of the fallback index with 32 bits
        reasons += too_large(max(p.queries, p.keys), p.form.query.shape[-1])
    if (p.queries < 2 or p.keys < 2) and p.error != math.inf:
        reasons.append("for a single query or key exact attention is faster")
    elif is_too_short_for_series(p):
        reasons.append(f"for {p.queries} queries and {p.keys} keys exact attention is faster")
    return reasons


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
            numbers(1 / p.temperature, call.allowed, p.dropout),
            choice.is_causal_square(p) or hides_what_follows(p),
            call.kind,
            call.rank,
            *(hidden_pairs(p) if call.wide else ()),
        )
    )
    return Attended(output if len(lead) == 1 else output.reshape(*lead, *output.shape[1:]))


def hides_what_follows(p: Problem) -> bool:
    """Whether query i is known on the host to see no key after i, in a square call.

    With lengths a causal mask ends at the last real query and key. They are at one place where keys and
    queries are given the same tensor of lengths.
    """
    mask = p.mask
    if mask is None or p.queries != p.keys:
        return False
    same = mask.key_lengths is mask.query_lengths
    return any(band.right == 0 and (same or band.alignment == "top_left") for band in mask.bands)


def hidden_pairs(p: Problem) -> tuple[Tensor | None, ...]:
    """The fields of `SineInputs` from `start` on: spans, segments and the seed of the dropout."""
    # Drawn on the device of the tensors, so that the host does not wait for a GPU.
    seed = torch.randint(2**62, (), device=p.device) if p.dropout else None
    if p.mask is None or choice.is_causal_square(p):
        return None, None, None, None, seed
    spans = p.mask.spans(p.queries, p.keys, p.device)
    segments = spans.segments[0] if len(spans.segments) > 0 else (None, None)
    ends = [x for x in (spans.start, spans.stop) if x is not None]
    shared = all(math.prod(x.shape[:-1]) == 1 for x in ends)
    start, stop = (ends_by_head(x, p, shared) for x in (spans.start, spans.stop))
    return start, stop, *(ids_by_head(x, p) for x in segments), seed


def ends_by_head(x: Tensor | None, p: Problem, shared: bool) -> Tensor | None:
    """Ends of spans (*, 1, Q or 1) or (Q,) as (1, Q) where all heads share them, else (Z, Q), in int32."""
    if x is None:
        return None
    # They may lie far outside of the keys, where they all mean the same.
    x = x.clamp(-1, p.keys + 1).to(torch.int32)
    lead = (1,) if shared else (*p.lead, p.heads)
    x = x.reshape(x.shape[-1]) if shared else x
    return x.expand(*lead, p.queries).reshape(-1, p.queries).contiguous()


def ids_by_head(x: Tensor | None, p: Problem) -> Tensor | None:
    """Segment ids (*, 1, length) as (Z, length)."""
    if x is None:
        return None
    return x.expand(*p.lead, p.heads, x.shape[-1]).reshape(-1, x.shape[-1]).contiguous()


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


def stated_error(p: Problem) -> float | None:
    """The bound on the error of the output with all roundings, or None where the exact fallback answers."""
    series = added_error(p)
    if series == 0:
        return None
    # Weights, values and the sums over them are rounded to fp16, the output to its dtype.
    rounding = FULL_PRECISION + torch.finfo(p.dtype).eps / 2
    return (series + rounding) / (1 - p.dropout)


def workspace(p: Problem, call: choice.Chosen) -> int:
    """Bytes that the wide kernels take at most for features and chunks, besides what a call returns.

    With them come the sums of the exact fallback, which is behind every call.
    """
    heads, batch = p.heads, math.prod(p.lead)
    key_heads = max(p.form.key.shape[-3], p.value.shape[-3])
    shape = wide.PartShape(batch, heads, key_heads, p.queries, p.keys, call.widths)
    return wide.workspace(shape)
