"""The two forms on one tile: scores, and their gradient added to the gradients of the inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.activations import ACTIVATIONS
from regard.engines.cpu.tiles import Tile, add_cut, cut


def select_matmul(weights: Tensor, x: Tensor, seen: Tensor | None) -> Tensor:
    """`weights @ x` that does not read hidden rows of x (weight 0), even if they hold NaN."""
    if seen is None or bool(x.isfinite().all()):
        return weights @ x
    good = x.isfinite()
    # 0 * NaN is NaN: only results that see a number which is not finite take the plain product.
    touched = seen.to(x.dtype) @ (~good).to(x.dtype) > 0
    return torch.where(touched, weights @ x, weights @ torch.where(good, x, 0))


def new_zeros(x: Tensor) -> Tensor:
    """Zeros of the shape of `x`, contiguous whatever its strides."""
    return x.new_zeros(x.shape)


class InnerTiles:
    """`scale * <phi, psi> + alpha + beta` on tiles; all tensors in working precision."""

    def __init__(
        self, q: Tensor, k: Tensor, scale: float, alpha: Tensor | None, beta: Tensor | None
    ) -> None:
        self.q, self.k, self.scale, self.alpha, self.beta = q, k, scale, alpha, beta

    def start_gradients(self) -> None:
        """Set the gradients of `q`, `k`, `alpha` and `beta` to 0."""
        self.grad_q, self.grad_k = new_zeros(self.q), new_zeros(self.k)
        self.grad_alpha = None if self.alpha is None else new_zeros(self.alpha)
        self.grad_beta = None if self.beta is None else new_zeros(self.beta)

    def scores(self, tile: Tile) -> Tensor:
        """Scores (b, k, g, q, l) of the tile."""
        logits = cut(self.q, tile, tile.q) @ cut(self.k, tile, tile.l).mT
        if self.scale != 1:
            logits *= self.scale
        if self.alpha is not None:
            logits += cut(self.alpha, tile, tile.q)
        if self.beta is not None:
            logits += cut(self.beta, tile, tile.q, tile.l)
        return logits

    def add_gradients(self, tile: Tile, grad: Tensor, seen: Tensor | None) -> None:
        """Give the tile's logit gradient to the inputs; call after `scores` of the same tile."""
        if self.grad_alpha is not None:
            add_cut(self.grad_alpha, grad, tile, tile.q)
        if self.grad_beta is not None:
            add_cut(self.grad_beta, grad, tile, tile.q, tile.l)
        # Not in place: the caller still holds `grad`.
        grad = grad if self.scale == 1 else grad * self.scale
        q, k = cut(self.q, tile, tile.q), cut(self.k, tile, tile.l)
        flipped = None if seen is None else seen.mT
        add_cut(self.grad_q, select_matmul(grad, k, seen), tile, tile.q)
        add_cut(self.grad_k, select_matmul(grad.mT, q, flipped), tile, tile.l)


class PairwiseTiles:
    """`sum_h v_h f(a_h + b_h)` on tiles, with (pairs, hidden) of one tile in memory at a time.

    tanh is not called where both sides are moderate: with r = 1 / (1 + e^2a e^2b) - 1/2,
    tanh(a + b) = -2r and its slope is 1 - 4r^2. The exponentials are taken once for each query and
    key, and each pair costs a product and a reciprocal, 3 to 4 times less than tanh. Products that
    overflow or vanish give r = -1/2 or 1/2, the correct limits. Beyond `limit` one exponential could
    overflow where the other vanishes; such tiles call tanh.
    """

    def __init__(self, a: Tensor, b: Tensor, v: Tensor, activation: str, parameter: float) -> None:
        self.a, self.b, self.v = a, b, v
        self.activation, self.parameter = ACTIVATIONS[activation], parameter
        # The slope in place is computed from the result alone. A LeakyReLU of negative slope has the same
        # result on both sides of 0, where its slopes differ.
        self.in_place = self.activation.in_place if parameter >= 0 else None
        # exp(2x) overflows at half the logarithm of the largest number; 0.45 leaves a margin.
        self.limit = 0.45 * math.log(torch.finfo(a.dtype).max)
        self.buffer = a.new_empty(0)
        self.exponentials = activation == "tanh"
        if self.exponentials:
            self.exp_a, self.exp_b = torch.exp(2 * a), torch.exp(2 * b)

    def start_gradients(self) -> None:
        """Set the gradients of `a`, `b` and `v` to 0."""
        self.grad_q, self.grad_k = new_zeros(self.a), new_zeros(self.b)
        self.grad_v = new_zeros(self.v)

    def scores(self, tile: Tile) -> Tensor:
        """Scores (b, k, g, q, l) of the tile; its hidden units stay in the buffer for `add_gradients`."""
        a, b = cut(self.a, tile, tile.q), cut(self.b, tile, tile.l)
        v = cut(self.v, tile, tile.q)
        moderate = self.exponentials and (a.abs().amax() < self.limit) & (
            b.abs().amax() < self.limit
        )
        self.fast = bool(moderate)
        shape = torch.broadcast_shapes(a.unsqueeze(-2).shape, b.unsqueeze(-3).shape)
        if self.fast:
            exp_a = cut(self.exp_a, tile, tile.q).unsqueeze(-2)
            exp_b = cut(self.exp_b, tile, tile.l).unsqueeze(-3)
            self.hidden = torch.mul(exp_a, exp_b, out=self.room(shape))
            # r itself: the factor -2 is applied to the sums, which are smaller.
            self.hidden.add_(1).reciprocal_().sub_(0.5)
            return contract(self.hidden, v).mul_(-2)
        total = torch.add(a.unsqueeze(-2), b.unsqueeze(-3), out=self.room(shape))
        if self.in_place is not None:
            self.hidden = self.in_place[0](total, self.parameter)
        else:
            self.total = total  # the slope of such an activation needs its argument
            self.hidden = self.activation.value(total, self.parameter)
        return contract(self.hidden, v)

    def room(self, shape: torch.Size) -> Tensor:
        """A view of a buffer that all tiles share: a new allocation for each would fault in its pages."""
        if self.buffer.numel() < math.prod(shape):
            self.buffer = self.a.new_empty(math.prod(shape))
        return self.buffer[: math.prod(shape)].view(shape)

    def slope(self, hidden: Tensor) -> Tensor:
        """f'(a + b) of the tile; overwrites its hidden units where the slope follows from them."""
        if self.fast:
            return hidden.square_().mul_(-4).add_(1)
        if self.in_place is not None:
            return self.in_place[1](hidden, self.parameter)
        slope = self.activation.slope(self.total, hidden, self.parameter)
        return slope.to(hidden.dtype).expand(hidden.shape).clone()

    def add_gradients(self, tile: Tile, grad: Tensor, seen: Tensor | None) -> None:
        """Give the tile's logit gradient to the inputs; call after `scores` of the same tile."""
        v, hidden = cut(self.v, tile, tile.q), self.hidden
        if seen is not None and not bool(hidden.isfinite().all()):
            hidden = torch.where(seen.unsqueeze(-1), hidden, 0)  # 0 * NaN would be NaN
        # Before `slope`, which overwrites the hidden units.
        by_unit = contract_pairs(grad, hidden) * (-2 if self.fast else 1)
        add_cut(self.grad_v, by_unit.unsqueeze(-2), tile, tile.q)
        slope = self.slope(hidden).mul_(grad.unsqueeze(-1))
        if seen is not None and not bool(slope.isfinite().all()):
            slope = torch.where(seen.unsqueeze(-1), slope, 0)
        add_cut(self.grad_q, slope.sum(-2) * v, tile, tile.q)
        add_cut(self.grad_k, slope.sum(-3) * v, tile, tile.l)


def contract(hidden: Tensor, v: Tensor) -> Tensor:
    """The sum of hidden (..., q, l, E) times v (..., 1, E) over E, (..., q, l)."""
    flat = hidden.flatten(-3, -2)
    # One v for all heads: a single matrix-vector product instead of a batched one.
    if v.numel() == v.shape[-1]:
        return torch.mv(flat.reshape(-1, v.shape[-1]), v.reshape(-1)).view(hidden.shape[:-1])
    return (flat @ v.mT).view(hidden.shape[:-1])


def contract_pairs(grad: Tensor, hidden: Tensor) -> Tensor:
    """The sum of grad (..., q, l) times hidden (..., q, l, E) over the pairs, (..., E).

    Each row is summed on its own, then the rows: one long sum over all pairs would lose digits in fp32.
    """
    return (grad.unsqueeze(-2) @ hidden).squeeze(-2).sum(-2)
