"""What is never built: the matrix of a low rank, the square of the length, pairs times hidden."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import Additive, GATv2, LowRank
from regard.engines import sizes
from regard.engines.cpu import calls, tiles
from regard.engines.tiled import COUNT, Arguments


class Largest(TorchDispatchMode):
    """Remembers the largest storage behind any tensor an operator returned, in elements.

    A dispatch mode does not look inside a registered operator, so that those of the cpu engine are
    called as the plain functions they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.shapes = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "regard":
            with self:
                name = func.__name__.partition(".")[0].removeprefix("cpu_")
                result = getattr(calls, name)(Arguments(*args[:COUNT]), *args[COUNT:])
        else:
            result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
                self.shapes.add(tuple(x.shape))
        return result


def test_low_rank_never_builds_the_matrix():
    """d_q x d_k is 512 x 384; no tensor is as large, forward or backward."""
    score = LowRank(512, 384, 2)
    q, k = torch.randn(4, 512, requires_grad=True), torch.randn(5, 384, requires_grad=True)
    for engine in ("reference", "cpu", "sdpa"):
        with Largest() as seen:
            regard.attention(q, k, k, score, engine=engine).sum().backward()
        assert 0 < seen.elements < 512 * 384 // 10, engine
        assert (512, 384) not in seen.shapes


@pytest.mark.parametrize("build", [Additive, GATv2])
@pytest.mark.parametrize(
    "statistics", [(), ("lse", "entropy", "max_logit", "max_weight", "jacobian")]
)
def test_pairwise_on_the_cpu_never_builds_pairs_times_hidden(build, statistics, monkeypatch):
    """[Q, L, hidden] here is 16 tiles; forward and backward stay at one tile and a few rows."""
    length, hidden = 256, 128
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", length * length * hidden // 16)
    tensors = [torch.randn(length, hidden, requires_grad=True) for _ in range(3)]
    score = build(hidden)
    with Largest() as seen:
        result = regard.attend(*tensors, score, want=statistics, engine="cpu")
        result.output.sum().backward()
    assert 0 < seen.elements <= 1.1 * tiles.TILE_ELEMENTS


@pytest.mark.parametrize("build", [Additive, GATv2])
def test_raw_pairwise_scores_never_build_pairs_times_hidden(build, monkeypatch):
    length, hidden = 256, 128
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", length * length * hidden // 16)
    tensors = [torch.randn(length, hidden, requires_grad=True) for _ in range(2)]
    monkeypatch.setattr(sizes, "COMPILED_TANH", math.inf)  # the tiles of `cpu` are what is measured
    with Largest() as seen:
        regard.score(*tensors, build(hidden)).sum().backward()
    assert 0 < seen.elements <= 1.1 * tiles.TILE_ELEMENTS


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian"])
def test_the_cpu_engine_never_builds_the_square_of_the_length(score, monkeypatch):
    """Inner scores too: 1024 x 1024 is 8 tiles."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 1024 * 1024 // 8)
    tensors = [torch.randn(1024, 4, requires_grad=True) for _ in range(3)]
    with Largest() as seen:
        regard.attention(*tensors, score, engine="cpu").sum().backward()
    assert 0 < seen.elements <= 1.1 * tiles.TILE_ELEMENTS


def test_the_mode_sees_what_an_operator_builds():
    """The check of the checks above: the textbook is caught."""
    tensors = [torch.randn(64, 32, requires_grad=True) for _ in range(3)]
    for engine in ("reference", "cpu"):  # all of it fits into one tile
        with Largest() as seen:
            regard.attention(*tensors, Additive(32), engine=engine).sum().backward()
        assert seen.elements == 64 * 64 * 32


@pytest.mark.parametrize("how", ["lengths", "bias", "dense"])
@pytest.mark.parametrize("engine", ["cpu", "sdpa"])
def test_keys_shared_by_the_batch_are_not_copied_for_each_sequence(engine, how):
    """One memory for 64 queries: what a mask hides from some sequences others may still read."""
    batch, length, width = 64, 512, 16
    query, memory = torch.randn(batch, 1, 2, width), torch.randn(1, 1, length, width)
    seen = torch.arange(length) < torch.randint(1, length, (batch, 1))
    options = {
        "lengths": {"mask": regard.Mask.lengths(keys=seen.sum(-1))},
        "bias": {
            "bias": torch.zeros(batch, 1, 1, length).masked_fill(~seen[:, None, None], -torch.inf)
        },
        "dense": {"mask": seen[:, None, None]},
    }[how]
    with Largest() as built:
        regard.attention(query, memory, memory, engine=engine, **options)
    assert built.elements < batch * length * width // 4
