"""torch.export: a program that runs at lengths it was not exported with."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import regard

from .tools import CASES, DYNAMO_WARNS, INTERPRETED, assert_close, some_slow, tensors

pytestmark = [
    DYNAMO_WARNS,
    # torch 2.6 warns of how it traces a constant itself.
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
    pytest.mark.filterwarnings("ignore:Node lifted_tensor"),
]


class Attention(torch.nn.Module):
    """One case as a module of tensors alone."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.case = (CASES | INTERPRETED)[name]
        self.score = self.case.build()

    def forward(self, q, k, v):
        options = self.case.options(q.shape[-2], k.shape[-2])
        if not self.case.want:
            return (regard.attention(q, k, v, self.score, **options),)
        result = regard.attend(q, k, v, self.score, want=self.case.want, **options)
        return tuple(x for x in result if x is not None)


# Options that turn lengths into tensors (`torch.tensor([k, 2])`) cannot be traced by any program.
NAMES = [
    "inner",
    "inner causal",
    "inner window",
    "inner on cpu",
    "inner reference",
    "sink",
    "temperatures",
    "hard",
    "cosine",
    "low rank",
    "additive",
    "additive causal",
    "gatv2",
    "projected",
    "statistics",
]
QUICK = ["inner causal", "inner on cpu", "sink", "temperatures", "low rank", "gatv2", "statistics"]


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some_slow(NAMES, quick=QUICK))
def test_an_exported_program_runs_at_another_length(name, strict):
    check(name, strict)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["inner on triton"])
def test_an_exported_program_on_triton(name):
    """Not the one with lengths as tensors, which no program can trace."""
    check(name, strict=False)


@pytest.mark.interpreted
@pytest.mark.parametrize("pairwise", [True, False], ids=["additive", "dot"])
@pytest.mark.parametrize("queries", [1, 20])
def test_lengths_without_bounds_on_triton(queries, pairwise):
    """That 32 bits do not count everything is asked when the program runs, not when it is traced."""

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = regard.Additive(8, 2) if pairwise else regard.Dot()

        def forward(self, q, k, v):
            return regard.attention(q, k, v, self.score, engine="triton")

    def some(queries: int, keys: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(1, 2, n, 8) for n in (queries, keys, keys))

    module, keys = Plain(), Dim("keys")
    shapes = {"q": {2: Dim("queries")} if queries > 1 else None, "k": {2: keys}, "v": {2: keys}}
    with torch.no_grad():
        program = torch.export.export(
            module, some(queries, 30), dynamic_shapes=shapes, strict=False
        )
        for lengths in ((queries, 7), (3 if queries > 1 else 1, 40)):
            given = some(*lengths)
            torch.testing.assert_close(program.module()(*given), module(*given))


def check(name: str, strict: bool) -> None:
    module = Attention(name)
    queries, keys = Dim("queries", min=2, max=512), Dim("keys", min=2, max=512)
    shapes = {"q": {2: queries}, "k": {2: keys}, "v": {2: keys}}
    example = tuple(x.detach() for x in tensors(5, 6))
    with torch.no_grad():
        program = torch.export.export(module, example, dynamic_shapes=shapes, strict=strict)
        for lengths in ((5, 6), (9, 17), (40, 33)):
            given = [x.detach() for x in tensors(*lengths)]
            assert_close(list(program.module()(*given)), list(module(*given)))


@pytest.mark.parametrize("name", ["inner causal", "additive causal"])
def test_an_exported_program_survives_being_saved(name, tmp_path):
    module = Attention(name)
    example = tuple(x.detach() for x in tensors(5, 6))
    with torch.no_grad():
        torch.export.save(torch.export.export(module, example), tmp_path / "program.pt2")
        loaded = torch.export.load(tmp_path / "program.pt2")
        assert_close(list(loaded.module()(*example)), list(module(*example)))


@pytest.mark.parametrize("name", ["inner causal", "additive causal"])
def test_an_exported_program_has_the_score_as_parameters(name):
    module = Attention(name)
    example = tuple(x.detach() for x in tensors(5, 6))
    program = torch.export.export(module, example)
    assert set(program.state_dict) == set(module.state_dict())
