"""Softmax in the dtype of the logits, with the mean over heads: the host side of the kernel, and its gradient.

Shape legend: N batch, H heads, Q queries, L keys.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from regard.engines.gpu import HAS_TRITON, device_current
from regard.engines.launching import Launch, addresses, current_stream
from regard.engines.sizes import power_of_two
from regard.engines.tiled.eager import apply, differentiated
from regard.precision import working_dtype

# Devices with the kernel, and the largest number of keys that a program of it holds in registers.
KERNEL_ON: tuple[str, ...] = ("cuda",) if HAS_TRITON else ()
MOST_KEYS = 8192
# Keys that lane and load take at once, if the rows are a multiple of them; and keys for one warp.
EVEN, KEYS_OF_WARP = 8, 256


def mean_weights(logits: Tensor, keep: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (N, H, Q, L), in the memory of the logits, and their mean over heads (N, Q, L).

    `keep` is True where a pair is seen, `bias` is added; both broadcast to 4 dims. A query that sees
    nothing has weights of 0.
    """
    if differentiated((logits, bias)):
        return apply(MeanWeights, logits, keep, bias)
    return weighed(logits, keep, bias)


def weighed(logits: Tensor, keep: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`mean_weights` by the kernel where it fits, else in plain operations."""
    if logits.device.type in KERNEL_ON and 0 < logits.shape[-1] <= MOST_KEYS:
        # In the memory of the logits, which nothing reads again: no product keeps its result.
        return by_kernel(logits.detach(), keep, bias)
    return plain(logits, keep, bias)


class MeanWeights(torch.autograd.Function):
    """`mean_weights` with its gradient, which is that of softmax."""

    @staticmethod
    def forward(ctx, logits, keep, bias) -> tuple[Tensor, Tensor]:
        """Compute both, and save the weights."""
        weights, mean = weighed(logits, keep, bias)
        ctx.save_for_backward(weights)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.set_materialize_grads(False)
        return weights, mean

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, of_mean):  # type: ignore[override] # fixed arity
        """The gradient of the logits, and of the bias."""
        (weights,) = ctx.saved_tensors
        if of_mean is not None:
            of_mean = (of_mean / weights.shape[1]).unsqueeze(1)
            grad = of_mean.expand_as(weights) if grad is None else grad + of_mean
        if grad is None:
            return None, None, None
        found = torch._softmax_backward_data(grad.contiguous(), weights, -1, weights.dtype)
        of_bias = None
        if ctx.bias is not None and ctx.needs_input_grad[2]:
            of_bias = found.sum_to_size(ctx.bias[0]).to(ctx.bias[1])
        return found, None, of_bias


def plain(logits: Tensor, keep: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`mean_weights` in plain operations."""
    dtype, logits = logits.dtype, logits.to(working_dtype(logits.dtype))
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    hidden = logits == -torch.inf
    weights = torch.softmax(logits, -1).masked_fill(hidden, 0)
    return weights.to(dtype), weights.mean(1).to(dtype)


def by_kernel(logits: Tensor, keep: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`mean_weights` in one launch; the weights take the place of the logits, which are contiguous."""
    batch, heads, queries, keys = logits.shape
    mean = torch.empty((batch, queries, keys), dtype=logits.dtype, device=logits.device)
    seen = None if keep is None else keep.view(torch.uint8)
    given = [x for x in (logits, mean, seen, bias) if x is not None]
    even = EVEN if keys % EVEN == 0 else 1
    launch = launch_for(
        logits.dtype,
        seen is not None,
        None if bias is None else bias.dtype,
        power_of_two(keys),
        even,
    )
    numbers = (heads, queries, keys, *strides(keep), *strides(bias))
    with device_current(logits.device):
        stream = current_stream(logits.device)
        launch(stream, addresses(*given), *numbers, programs=batch * queries)
    return logits, mean


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Strides of 4 dims, 0 where a size of 1 broadcasts."""
    if x is None:
        return (0, 0, 0, 0)
    return tuple(0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True))


@functools.lru_cache(maxsize=64)
def launch_for(
    dtype: torch.dtype, hides: bool, bias: torch.dtype | None, block: int, even: int
) -> Launch:
    """The launch for logits of this dtype, with a mask and a bias if they are there."""
    # Imported here: `import regard` needs no Triton.
    from regard.engines.weights.kernels import mean_weights_kernel

    dtypes = [dtype, dtype]
    dtypes += [torch.uint8] if hides else []
    dtypes += [] if bias is None else [bias]

    def arguments(*given: object) -> tuple:
        rest, operands = list(given[len(dtypes) :]), list(given[2 : len(dtypes)])
        keep = operands.pop(0) if hides else None
        return (*given[:2], keep, operands[0] if operands else None, *rest)

    warps = min(max(block // KEYS_OF_WARP, 1), 16)
    return Launch(mean_weights_kernel, 1, dtypes, arguments, (block, even), num_warps=warps)
