"""Our candidates: `regard.attention` by engine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

import regard
from regard.bench.candidate import Candidate, Prepared, Stated
from regard.bench.tensors import Tensors, additive_score
from regard.engines.native import absent


class Ours(Candidate):
    """`regard.attention` with an engine requested by name, which runs or refuses."""

    family = "ours"
    engine: ClassVar[str] = "sine"
    series: ClassVar[str | None] = None

    def engine_on(self, device: torch.device) -> str | None:
        """The name of the engine to request on this device."""
        return self.engine

    def available(self, tensors: Tensors) -> str | None:
        """The reasons that the library gives for refusing; None if the engine runs."""
        t, score = tensors, additive_score(tensors, self.series)
        engine = self.engine_on(t.device)
        try:
            plan = regard.explain(t.a, t.b, t.value, score, engine=engine)
        except ValueError as error:
            return str(error).partition("\n")[0]
        assert engine is not None
        return None if plan.engine else "; ".join(plan.refused.get(engine, ["it refuses"]))

    def prepare(self, tensors: Tensors) -> Prepared:
        """A call with its own score, whose parameter is v."""
        score = additive_score(tensors, self.series)
        engine = self.engine_on(tensors.device)

        def step(a: Tensor, b: Tensor, value: Tensor) -> Tensor:
            return regard.attention(a, b, value, score, engine=engine)

        return Prepared(step, [score.v])


class AsChosen(Ours):
    """The engine that the plan picks if the caller names none."""

    name = "as chosen"
    what = "regard.attention as it is called without naming an engine: the plan's choice"

    def engine_on(self, device: torch.device) -> str | None:
        """None, so that the plan picks."""
        return None

    def available(self, tensors: Tensors) -> str | None:
        """None: the plan always finds an engine."""
        return None


class SineFast(Ours):
    """The engine `sine` with the shorter series."""

    name, series = "sine fast", "fast"
    what = "additive attention as a matrix product, the series of rank 4 for values"
    stated = Stated(output=4.5e-3, gradient=5e-2)


class SineMatched(Ours):
    """The engine `sine` with the longer series."""

    name, series = "sine matched", "matched"
    what = (
        "additive attention as a matrix product, the series for values and gradients: rank 7, on the "
        "CPU 6"
    )
    stated = Stated(output=3e-3, gradient=5e-3)


class Exact(Ours):
    """The device's kernel that evaluates tanh itself."""

    name = "exact"
    what = "additive attention with tanh itself, in tiles, never the [Q, L, hidden] tensor"

    def engine_on(self, device: torch.device) -> str:
        """The fastest exact engine of the device."""
        if device.type != "cpu":
            return "triton"
        return "compiled" if absent() is None else "cpu"


class ExactDeterministic(Exact):
    """The exact kernel with a deterministic backward pass: no atomic additions."""

    name = "exact determ."
    what = "the same under torch.use_deterministic_algorithms: bit-identical from run to run"

    def available(self, tensors: Tensors) -> str | None:
        """The CPU engine is always deterministic, so there is nothing more to measure there."""
        if tensors.device.type == "cpu":
            return "the engine for the CPU is deterministic as it is"
        return super().available(tensors)

    @contextmanager
    def context(self) -> Iterator[None]:  # type: ignore[override] # the decorator returns the context
        """Enable deterministic algorithms, and restore the caller's setting afterwards."""
        before = torch.are_deterministic_algorithms_enabled()
        only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
        # Operators of torch without a deterministic version warn on every call.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                yield
            finally:
                torch.use_deterministic_algorithms(before, warn_only=only_warn)


OURS: tuple[Candidate, ...] = (
    AsChosen(), SineFast(), SineMatched(), Exact(), ExactDeterministic(),
)  # fmt: skip
