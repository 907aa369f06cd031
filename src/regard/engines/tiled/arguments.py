"""`Arguments`: what every tiled operator takes; `operators.py` has the legend of shapes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Arguments(NamedTuple):
    """The arguments of every operator; shapes (B, K, G, rows, columns) as in `operators.py`.

    `q` and `k` are the features phi and psi of the inner form, or a and b of the pairwise one. `v` is
    None for the inner form, (B, K, G, 1, hidden) for the pairwise one; `alpha`, a column, and `beta`,
    a row, are terms of the inner form. `rate` multiplies the score (1 / temperature). `dense` is True
    where a pair is seen. `start`, `stop` and `query_segment` are columns, `key_segment` is a row.
    `seed` is one integer. `numbers` is (scale, soft cap or 0, dropout, parameter of the activation),
    fp64 on the CPU: a tensor, because `torch.compile` makes floats symbols that two operators cannot
    share. `sizes` is (B, K, G, Q, L).
    """

    q: Tensor
    k: Tensor
    value: Tensor
    v: Tensor | None
    alpha: Tensor | None
    beta: Tensor | None
    rate: Tensor | None
    bias: Tensor | None
    dense: Tensor | None
    start: Tensor | None
    stop: Tensor | None
    query_segment: Tensor | None
    key_segment: Tensor | None
    seed: Tensor | None
    numbers: Tensor
    sizes: list[int]
    activation: str

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """The inputs that have gradients: the first 8 fields."""
        return (
            self.q,
            self.k,
            self.value,
            self.v,
            self.alpha,
            self.beta,
            self.rate,
            self.bias,
        )


COUNT = len(Arguments._fields)
TENSOR_ARGUMENTS = Arguments._fields.index("sizes")
