"""What the tests of the `triton` engine share: calls on a device, and errors beside plain PyTorch's.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import regard
from regard import repeats

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float16, torch.bfloat16)}


@contextmanager
def deterministic(on: bool = True) -> Iterator[None]:
    """Sums in a fixed order, and NaN in all fresh memory."""
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def forget_bound_calls() -> None:
    """Forget all bound launches: another test may have changed how they are made."""
    from regard.engines.triton import bound, bound_backward

    for known in (bound.kept_forwards, bound_backward.kept_backwards):
        known.clear()
    repeats.entry_of.cache_clear()


def draw(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Normal numbers that the dtype holds, wanting a gradient."""
    return torch.randn(shape).to(device=device, dtype=dtype).requires_grad_()


def inputs(
    queries: int,
    keys: int,
    *,
    heads: int = 2,
    hidden: int = 3,
    value_dim: int = 4,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    key_heads: int | None = None,
    device: str = "cpu",
) -> list[Tensor]:
    """Query, key and value (B, heads, length, width)."""
    key_heads = key_heads or heads
    shapes = (
        (heads, queries, hidden),
        (key_heads, keys, hidden),
        (key_heads, keys, value_dim),
    )
    return [draw(batch, *shape, dtype=dtype, device=device) for shape in shapes]


def score_of(v: Tensor) -> regard.Additive:
    """An additive score with these v (H, hidden)."""
    score = regard.Additive(v.shape[-1], v.shape[0]).to(v)
    with torch.no_grad():
        score.v.copy_(v)
    return score


def widened(score: regard.Score | None, dtype: torch.dtype) -> regard.Score | None:
    """A copy of the score in another dtype."""
    if score is None:
        return None
    other = type(score)(score.v.shape[-1], score.v.shape[0]).to(score.v.device)
    other.load_state_dict(score.state_dict())
    return other.to(dtype)


def outcome(
    tensors: list[Tensor], score: regard.Score | None, engine: str | None, grad: Tensor, **options
) -> list[Tensor]:
    """The output and the gradients of the tensors and of the score's parameters."""
    output = regard.attention(*tensors, score, engine=engine, **options)
    wanted = [*tensors, *([] if score is None else score.parameters())]
    return [output.detach(), *torch.autograd.grad(output, wanted, grad.to(output))]


def in_dtype(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors in another dtype, as leaves of their own."""
    return [x.detach().to(dtype).requires_grad_() for x in tensors]


def truth(
    tensors: list[Tensor],
    score: regard.Score | None,
    grad: Tensor,
    dtype: torch.dtype = torch.float64,
    **options,
) -> list[Tensor]:
    """`outcome` of the reference, in fp64 unless said otherwise."""
    own = {n: x.to(dtype) if n == "bias" else x for n, x in options.items()}
    return outcome(
        in_dtype(tensors, dtype), widened(score, dtype), "reference", grad.to(dtype), **own
    )


def assert_close_to_truth(
    found: list[Tensor],
    exact: list[Tensor],
    plain: list[Tensor],
    dtype: torch.dtype,
    terms: float = 1.0,
) -> None:
    """At most 3 times the error of plain PyTorch in the dtype, and a few of its eps.

    `plain` is the reference in the same dtype; `terms` is as large as what cancels in a gradient,
    in fp32. NaN and infinities are where the truth has them.
    """
    for i, (x, y, z) in enumerate(zip(found, exact, plain, strict=True)):
        assert x.shape == y.shape
        assert torch.equal(x.isnan(), y.isnan()), f"NaN of result {i}"
        sound = y.isfinite()
        if not sound.any():
            continue
        error, usual = ((t.double() - y)[sound].abs().max() for t in (x, z))
        size = float(y[sound].abs().max())
        allowed = 3 * float(usual.nan_to_num()) + 4 * EPS[dtype] * size
        allowed += 16 * EPS[torch.float32] * terms
        assert float(error) <= allowed, f"result {i}: {float(error):.2e} of {allowed:.2e}"


def check(
    tensors: list[Tensor],
    score: regard.Score | None,
    grad: Tensor | None = None,
    engine: str = "triton",
    **options,
) -> list[Tensor]:
    """Output and gradients are those of fp64, as nearly as the dtype has them."""
    dtype = tensors[0].dtype
    if grad is None:
        shape = (*tensors[0].shape[:-1], tensors[2].shape[-1])
        grad = torch.randn(shape).to(tensors[0])
    found = outcome(tensors, score, engine, grad, **options)
    exact = truth(tensors, score, grad, **options)
    plain = truth(tensors, score, grad, dtype, **options)
    assert_close_to_truth(found, exact, plain, dtype, float(grad.abs().max()))
    return found
