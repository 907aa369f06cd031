"""`NodeFeatures`: the features of nodes, sparse where that is cheaper.

On the CPU, dropout and projection of Cora's dense features take 58 ms a step on one core; of the same features in
compressed rows they take 3 ms, more than ten times less than all the rest of the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# A CPU multiplies compressed rows faster than dense ones up to about this share of entries that are not 0.
SPARSE_UP_TO = 0.1
# A GPU is faster with dense rows as long as they fit: entries, 1 GiB in float32.
DENSE_UP_TO = 2**28


@dataclass(frozen=True)
class NodeFeatures:
    """Rows of features: `values` (nodes, width), or the entries that are not 0 in compressed rows.

    Attributes:
        shape: nodes and width.
        values: all entries (nodes, width), or those that are not 0.
        starts: (nodes + 1,) where each row starts among the values; None for dense features.
        columns: of each value; None for dense features.
    """

    shape: tuple[int, int]
    values: Tensor
    starts: Tensor | None = None
    columns: Tensor | None = None

    @staticmethod
    def of(x: Tensor, device: torch.device) -> NodeFeatures:
        """The features of a graph on a device, in the form that is faster there."""
        nodes, width = x.shape
        full = nodes * width
        count = int(x.count_nonzero()) if x.layout == torch.strided else x._nnz()
        small = device.type != "cpu" and full <= DENSE_UP_TO
        if small or count > SPARSE_UP_TO * full:
            dense = x if x.layout == torch.strided else x.to_dense()
            return NodeFeatures((nodes, width), dense.to(device, torch.float32))
        with quiet():
            rows = x.float().to_sparse_csr()
        parts = [one.to(device) for one in (rows.values(), rows.crow_indices(), rows.col_indices())]
        return NodeFeatures((nodes, width), *parts)

    def take(self, index: Tensor) -> NodeFeatures:
        """The features of some nodes, in their order."""
        shape = (len(index), self.shape[1])
        if self.starts is None or self.columns is None:
            return NodeFeatures(shape, self.values[index])
        begin, count = self.starts[index], self.starts.diff()[index]
        starts = F.pad(count.cumsum(0), (1, 0))
        # Places of the values: for each row its begin, then one further each.
        place = torch.arange(int(starts[-1]), device=index.device)
        place = place + (begin - starts[:-1]).repeat_interleave(count)
        return NodeFeatures(shape, self.values[place], starts, self.columns[place])

    def dropped(self, probability: float, training: bool) -> Tensor:
        """The features as a tensor that a linear layer takes, after dropout.

        Dropping an entry that is 0 changes nothing, so dropout of the other entries is dropout of all.
        """
        values = F.dropout(self.values, probability, training)
        if self.starts is None or self.columns is None:
            return values
        return compressed(self.starts, self.columns, values, self.shape)

    def multiplied(self, rows: Tensor) -> AbstractContextManager[Any]:
        """Within it, linear layers of `rows`, which `dropped` returned, have the gradient of `SparseLinear`."""
        if self.starts is None or not torch.is_grad_enabled():
            return nullcontext()
        starts, nodes, order = self.turned
        turned = compressed(starts, nodes, rows.values()[order], self.shape[::-1])
        return SparseLinearMode(rows, turned)

    @cached_property
    def turned(self) -> tuple[Tensor, Tensor, Tensor]:
        """The pattern of the features with rows and columns exchanged.

        Where each column starts, the node of each value, and where that value is among `values`.
        """
        assert self.starts is not None and self.columns is not None
        order = self.columns.argsort(stable=True)
        counts = torch.bincount(self.columns, minlength=self.shape[1])
        nodes = torch.arange(self.shape[0], device=order.device)
        nodes = nodes.repeat_interleave(self.starts.diff())[order]
        return F.pad(counts.cumsum(0), (1, 0)), nodes, order


class SparseLinear(torch.autograd.Function):
    """`rows @ weight.T` with the gradient of the weight alone.

    Torch's own gradient sorts all entries in every step: 2.6 ms for the training part of Cora and 64 outputs, where
    the product takes .2 ms. Here the entries are sorted once, in `NodeFeatures.turned`.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, turned: Tensor) -> Tensor:
        """The product (nodes, outputs)."""
        ctx.turned = turned
        return rows @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the weight."""
        return (ctx.turned @ grads[0]).T, None, None


class SparseLinearMode(TorchFunctionMode):
    """Computes `linear` of some rows by `SparseLinear`, whichever library's layer calls it."""

    def __init__(self, rows: Tensor, turned: Tensor) -> None:
        super().__init__()
        self.rows, self.turned = rows, turned

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """What torch calls in place of `func`."""
        if func is not F.linear or args[0] is not self.rows:
            return func(*args, **(kwargs or {}))
        weight, bias = (*args[1:], None)[:2]
        product = SparseLinear.apply(weight, self.rows, self.turned)
        return product if bias is None else product + bias


def compressed(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse tensor of compressed rows."""
    with quiet():
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's note that compressed rows are in beta: what we use of them is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support")
        yield
