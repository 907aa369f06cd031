"""The inner form through `torch.nn.functional.scaled_dot_product_attention`.

SDPA is fast only for some arguments: on the CPU its fused kernel needs 4 dims and equal widths, and
SDPA builds the Q x L matrix otherwise. This engine brings every call it accepts into that shape, and
refuses what SDPA would do slowly or wrongly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.engines.base import Attended, Engine
from regard.engines.gpu import is_known
from regard.engines.sizes import four_dims
from regard.forms import Inner
from regard.mask import Mask
from regard.observed import is_transformed
from regard.precision import working_dtype
from regard.problem import Problem

# SDPA takes a mask that differs by query only as a dense tensor, which it copies to floats on the CPU.
# Above 2**24 entries (64 MiB of floats, 4096 x 4096) that costs more than it saves.
LARGEST_DENSE_MASK = 2**24

# With fewer keys than fit a vector register, SDPA's CPU kernel treats a row whose scores are all NaN as
# masked and returns 0. `lost_nan` makes it NaN again.
VECTOR = 16

# cuDNN's backward gives NaN for some masked lengths (pytorch #196678), so it is excluded where there is
# a mask. It builds a plan for every new number of keys, 40 ms at each step of a decoder, so it is excluded
# for few queries too.
FEW_QUERIES = 16
BACKENDS_BUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
Result = TypeVar("Result")


class Sdpa(Engine):
    """PyTorch's own scaled dot product attention."""

    name = "sdpa"

    def refusals(self, problem: Problem) -> list[str]:
        """Calls that SDPA cannot serve, or only by building the Q x L matrix."""
        p, on_cpu, reasons = problem, problem.on_cpu, []
        if not isinstance(p.form, Inner):
            reasons.append("SDPA computes inner products; this score is pairwise")
        if p.softcap is not None:
            reasons.append("SDPA has no soft cap")
        if p.sink is not None:
            reasons.append("SDPA has no sink")
        if isinstance(p.temperature, Tensor):
            reasons.append("a temperature tensor may hold 0, a hard look-up, which SDPA cannot do")
        elif p.temperature == 0:
            reasons.append("temperature 0 is a hard look-up, which SDPA cannot do")
        if p.want:
            reasons.append(f"SDPA returns no statistics ({', '.join(sorted(p.want))})")
        if p.queries == 0 or p.keys == 0 or 0 in p.lead or p.form.query.shape[-1] == 0:
            reasons.append("SDPA's kernels are not reliable on empty tensors")
        if on_cpu and p.dropout:
            reasons.append("SDPA builds the Q x L matrix for dropout on the CPU")
        if on_cpu and p.bias is not None and p.bias.requires_grad:
            reasons.append("SDPA builds the Q x L matrix for the gradient of a bias on the CPU")
        if not on_cpu and p.bias is not None and p.bias.dtype != p.dtype:
            reasons.append(f"SDPA would round the {p.bias.dtype} bias to {p.dtype}")
        if (p.mask is not None or p.bias is not None) and (
            entries := dense_entries(p)
        ) > LARGEST_DENSE_MASK:
            reasons.append(
                f"SDPA would need a dense mask of {entries:,} entries, more than the limit of "
                f"{LARGEST_DENSE_MASK:,}"
            )
        return reasons

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives on a GPU; and that NaN does not reach queries that do not see it."""
        missing = []
        if not problem.on_cpu:
            missing.append(
                "SDPA's fused kernels have no second derivative (engine 'reference' has)"
            )
        if problem.bias is not None or not (problem.mask is None or padding_only(problem.mask)):
            missing.append(
                "NaN or Inf in a key or value that only some queries see reaches the other "
                "queries too (engines 'reference' and 'cpu' keep it out)"
            )
        return missing

    def run(self, problem: Problem) -> Attended:
        """Bring the call into SDPA's shape, call it, and shape the result back."""
        p, on_cpu = problem, problem.on_cpu
        query, key, value, scale = features(p)
        keep, causal, rows = attn_mask(p)
        width, value_width = query.shape[-1], value.shape[-1]
        if on_cpu and width != value_width:
            query, key = widen(query, value_width), widen(key, value_width)
            value = widen(value, width)
        # A literal: the comparison itself would be a symbol under torch.compile.
        grouped = True if key.shape[-3] != query.shape[-3] else False  # noqa: SIM210
        arguments = (query, key, value, keep, p.dropout, causal)
        run = functools.partial(
            scaled_dot_product_attention, *arguments, scale=scale, enable_gqa=grouped
        )
        few = is_known(p.queries) and p.queries < FEW_QUERIES
        out = without_cudnn(run) if not on_cpu and (few or keep is not None) else run()
        if on_cpu and out.requires_grad and not is_transformed():
            differentiate_again(out)
        if on_cpu and width > value_width:
            out = out[..., :value_width]
        # Unconditional in a compiled graph: comparing the number of keys would specialise it.
        if on_cpu and (torch.compiler.is_compiling() or p.keys < VECTOR):
            out = out + lost_nan(query, key, keep, causal).to(out.dtype)
        if rows is not None:
            out = torch.where(rows, out, 0)
        return Attended(out if len(p.lead) == 1 else out.unflatten(0, p.lead) if p.lead else out[0])


def without_cudnn(run: Callable[[], Result]) -> Result:
    """The result of `run`, in which SDPA does not choose cuDNN."""
    if is_transformed():
        with sdpa_kernel(BACKENDS_BUT_CUDNN):
            return run()
    # `sdpa_kernel` takes as long as two launches: it reads and sets the switches of all backends.
    allowed = torch._C._get_cudnn_sdp_enabled()
    torch._C._set_sdp_use_cudnn(False)
    try:
        return run()
    finally:
        torch._C._set_sdp_use_cudnn(allowed)


@torch.no_grad()
def lost_nan(query: Tensor, key: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """NaN for rows with NaN among their visible scores, which the kernel may have given as 0; else 0.

    (B, heads, Q, 1). fp16 products are summed in fp32, as in the kernel: a sum above 65,504 is no infinity.
    """
    if torch.compiler.is_compiling():
        # One graph serves any number of keys, so scores are not computed: NaN that went in is looked for.
        # Which rows see a NaN key is known without a mask alone.
        lost = query.isnan().any(-1, keepdim=True)
        if keep is None and not causal and key.shape[-3] == query.shape[-3]:
            lost = lost | key.isnan().any(-1, keepdim=True).any(-2, keepdim=True)
        return torch.where(lost, torch.nan, 0.0)
    dtype = torch.promote_types(query.dtype, torch.float32)
    if key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query.to(dtype) @ key.to(dtype).mT
    if causal:
        keep = torch.ones_like(scores, dtype=torch.bool).tril()
    if keep is not None:
        keep = keep if keep.dtype == torch.bool else keep != -torch.inf
        scores = scores.masked_fill(~keep, -torch.inf)
    return torch.where(scores.isnan().any(-1, keepdim=True), torch.nan, 0.0)


def features(p: Problem) -> tuple[Tensor, Tensor, Tensor, float]:
    """Query, key and value as (B, heads, length, width), and the scale.

    alpha is the same for all keys of a query, so it cannot change the weights and is left out. beta
    becomes feature columns, or a mask.
    """
    form = p.form
    assert isinstance(form, Inner)
    assert isinstance(p.temperature, float)
    query, key, value = form.phi, form.psi, p.value
    if form.beta is not None and not beta_as_mask(p):
        heads = max(key.shape[-3], form.beta.shape[-2])
        key = key if key.shape[-3] == heads else key.repeat_interleave(heads // key.shape[-3], -3)
        query, key = beta_columns(query, key, form.beta, form.scale)
    if key.shape[-3] != value.shape[-3]:
        key = key.repeat_interleave(p.heads // key.shape[-3], -3)
        value = value.repeat_interleave(p.heads // value.shape[-3], -3)
    return (
        four_dims(query, p.lead),
        four_dims(key, p.lead),
        four_dims(value, p.lead),
        form.scale / p.temperature,
    )


def beta_as_mask(p: Problem) -> bool:
    """Whether beta is passed as a float mask of one row, which saves copying query and key.

    Not where beta needs a gradient, which SDPA's fused CPU kernel does not have for masks. Not in
    compiled graphs, which serve calls with and without a gradient.
    """
    form = p.form
    return (
        isinstance(form, Inner)
        and form.beta is not None
        and p.mask is None
        and p.bias is None
        and p.on_cpu
        and not torch.compiler.is_compiling()
        and not (form.beta.requires_grad and torch.is_grad_enabled())
        and p.keys >= VECTOR
    )


def beta_mask(p: Problem) -> Tensor:
    """Beta over the temperature as (B or 1, heads, 1, L)."""
    form = p.form
    assert isinstance(form, Inner) and form.beta is not None
    beta = form.beta.repeat_interleave(p.heads // form.beta.shape[-2], -2)
    return mask_dims((beta / p.temperature).unsqueeze(-2), p)


def widen(x: Tensor, width: int) -> Tensor:
    """`x` with zero columns appended up to `width`."""
    extra = width - x.shape[-1]
    if extra <= 0:
        return x
    if torch.compiler.is_compiling():
        # The compiler gets the strides of the backward of `pad` wrong.
        return torch.cat([x, x.new_zeros(*x.shape[:-1], extra)], -1)
    return pad(x, (0, extra))


def beta_columns(query: Tensor, key: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Query and key with columns that make `scale * <query, key> + beta` one inner product.

    In half precision one column of 8 to 11 bits would round beta visibly, so that a second column
    carries what the first one rounds away. In fp16 the first column is divided by 2**15, which the
    query side multiplies back: betas up to 1e8, such as squared norms, then fit its range.
    """
    column = (beta / scale).unsqueeze(-1)
    half = query.dtype in (torch.float16, torch.bfloat16)
    lifts = [2.0**15 if query.dtype == torch.float16 else 1.0, 1.0] if half else [1.0]
    columns = []
    for lift in lifts[:-1]:
        # Detached: the gradient times 2**15 would overflow. The last column carries all of it.
        columns.append((column.detach() / lift).to(query.dtype))
        column = column - lift * columns[-1].to(column.dtype)
    columns.append(column.to(query.dtype))
    # On a GPU the fused kernels need a width that is a multiple of 8.
    spare = 0 if query.device.type == "cpu" else -(key.shape[-1] + len(lifts)) % 8
    columns += [torch.zeros_like(columns[0])] * spare
    lifts += [0.0] * spare
    lead = torch.broadcast_shapes(key.shape[:-1], column.shape[:-1])
    wide = torch.cat([key.expand(*lead, -1), *(x.expand(*lead, 1) for x in columns)], -1)
    ones = [query.new_full((*query.shape[:-1], 1), lift) for lift in lifts]
    return torch.cat([query, *ones], -1), wide


def padding_only(mask: Mask) -> bool:
    """Whether each key is visible to all real queries or to none."""
    alike = len(mask.bands) == len(mask.packed) == 0
    return alike and all(x.shape[-2] == 1 for x in mask.allowed)


def served_by_flag(p: Problem) -> bool:
    """Whether SDPA's own `is_causal` flag expresses the mask."""
    # SDPA aligns its triangle with the first query and key; with Q = L that is every alignment.
    if p.mask is None or p.bias is not None or not p.mask.is_only_causal:
        return False
    return p.queries == p.keys or p.mask.bands[0].alignment == "top_left"


def dense_entries(p: Problem) -> int:
    """The number of entries of the mask tensor that SDPA would be given."""
    parts = [] if p.bias is None else [p.bias]
    queries = 1 if p.bias is None else p.queries
    batched = False
    if p.mask is not None:
        if served_by_flag(p):
            return 0
        parts += p.mask.allowed
        batched = p.mask.key_lengths is not None or len(p.mask.packed) > 0
        queries = queries if padding_only(p.mask) else p.queries
    shape = torch.broadcast_shapes(*(x.shape[:-2] for x in parts), (*p.lead, 1) if batched else ())
    return math.prod(shape) * queries * p.keys


def attn_mask(p: Problem) -> tuple[Tensor | None, bool, Tensor | None]:
    """SDPA's mask and causal flag, and the rows (B, h, Q, 1) that see anything, None for all."""
    if beta_as_mask(p):
        return beta_mask(p), False, None
    if p.mask is None and p.bias is None:
        return None, False, None
    if served_by_flag(p):
        return None, True, None
    mask, rows = p.mask, None
    if mask is not None and mask.query_lengths is not None and padding_only(mask):
        # Padded queries are zeroed after SDPA, so that no mask needs a row for each query.
        position = torch.arange(p.queries, device=p.device)
        rows = (position < mask.query_lengths.to(p.device)[..., None, None]).unsqueeze(-1)
        mask = Mask(mask.allowed, mask.key_lengths)
    seen = None if mask is None else mask.visible(p.queries, p.keys, p.device)
    if p.bias is not None:
        given = p.bias != -torch.inf
        seen = given if seen is None else seen & given
    assert seen is not None
    some_key = seen.any(-1, keepdim=True)
    rows = some_key if rows is None else rows & some_key
    keep = seen
    if p.bias is not None:
        # On the CPU SDPA takes a bias in a wider dtype than half precision inputs.
        dtype = torch.promote_types(p.bias.dtype, p.dtype)
        dtype = torch.float32 if dtype == torch.float64 and p.dtype != dtype else dtype
        keep = p.bias.to(dtype).masked_fill(~seen, -torch.inf)
    return mask_dims(keep, p), False, mask_dims(rows, p)


def mask_dims(x: Tensor, p: Problem) -> Tensor:
    """A mask-like tensor with the 4 dims of the flattened call, still broadcasting."""
    lead = x.shape[:-3]
    x = x.view(*[1] * (3 - x.ndim), *x.shape) if x.ndim < 3 else x
    if math.prod(lead) == 1:
        return x.reshape(1, *x.shape[-3:])
    return four_dims(x, p.lead)


# The name of the backward of SDPA's fused kernel on the CPU; its plain one has all derivatives.
FUSED_BACKWARD = "ScaledDotProductFlashAttentionForCpuBackward0"


def differentiate_again(output: Tensor) -> None:
    """Give the fused CPU kernel a second derivative, which PyTorch does not have.

    A hook on its backward replaces the gradients where the backward itself is recorded (create_graph). It
    costs other calls a few microseconds, and reads the tensors that autograd saved, so that it keeps none.
    """
    node = output.grad_fn
    if node is not None and node.name() == FUSED_BACKWARD:
        node.register_hook(recorded_gradients)


def recorded_gradients(
    found: tuple[Tensor | None, ...], incoming: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...] | None:
    """The gradients of query, key and value by plain operations, None to leave `found` as it is."""
    if not torch.is_grad_enabled() or incoming[0] is None:
        return None
    saved: Any = torch._C._current_autograd_node()
    # Views, so that the derivative is with respect to these tensors and not to what they were made from.
    sides = [x.view_as(x) for x in (saved._saved_query, saved._saved_key, saved._saved_value)]
    wanted = [x for x, grad in zip(sides, found, strict=False) if grad is not None]
    query, key, value = sides
    mask, causal, scale = saved._saved_attn_mask, saved._saved_is_causal, saved._saved_scale
    output = plain_sdpa(query, key, value, mask, causal, scale)
    grads = iter(torch.autograd.grad(output, wanted, incoming[0], create_graph=True))
    return tuple(None if grad is None else next(grads) for grad in found)


def plain_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """SDPA in PyTorch's plain operations; 0 for a query that sees nothing."""
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    dtype = working_dtype(query.dtype)
    logits = (
        query.to(dtype) @ key.to(dtype).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    )
    hidden = torch.zeros((), dtype=torch.bool)
    if mask is not None:
        hidden = mask == -torch.inf
        logits = logits + torch.where(hidden, 0, mask)
    if causal:
        hidden = hidden | torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    hidden = hidden.expand(logits.shape)
    empty = hidden.all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(hidden & ~empty, -torch.inf), -1)
    return (weights.masked_fill(hidden, 0) @ value.to(dtype)).to(query.dtype)
