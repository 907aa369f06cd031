"""A fuzzed call of a module: options as plain data, numbers drawn from the seed, judged as calls of the op are."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.scores.lookup import SIZED
from regard.testing.cases import DTYPES
from regard.testing.fuzz.judge import Trial, judge
from regard.testing.fuzz.op import gradients, moved
from regard.testing.fuzz.textbook import Found
from regard.testing.fuzz.view import View

SCORES = tuple(SIZED)
# LeakyReLU has a kink, and rounding may decide on which side of it a pair falls.
KINKED = ("gatv2", "gat")

Options = dict[str, Any]


class PreparedModule(NamedTuple):
    """One call, ready to run.

    Attributes:
        build: makes the module, without numbers of the case; `key` says when one made before serves.
        key: what the module depends on.
        inputs: floating point tensors that gradients are taken of, in fp64.
        call: `call(module, inputs)` by the library.
        textbook: `textbook(view, inputs)` the same by the textbook.
        poison: for each input booleans, True where padding may hold anything.
        kinked: gradients are compared in fp64 alone.
        slack: an absolute error of the output that is documented.
    """

    build: Callable[[], nn.Module]
    key: tuple
    inputs: Found
    call: Callable[[Any, Found], Found]
    textbook: Callable[[View, Found], Found]
    poison: Found | None = None
    kinked: bool = False
    slack: float = 0.0


class Kind(NamedTuple):
    """A module under the fuzzer: how its options are drawn, and how they become a call."""

    draw: Callable[[random.Random], Options]
    prepare: Callable[[Options, torch.Generator], PreparedModule]


KINDS: dict[str, Kind] = {}


@dataclass(frozen=True)
class ModuleCase:
    """One call of a module."""

    seed: int
    module: str
    dtype: str
    grad: bool
    poisoned: bool
    options: tuple[tuple[str, Any], ...]

    def simpler(self) -> Iterator[ModuleCase]:
        """Cases with one option at its plainest, or a size halved."""
        if self.poisoned:
            yield replace(self, poisoned=False)
        if self.grad:
            yield replace(self, grad=False)
        for i, (name, value) in enumerate(self.options):
            for plain in _plainer(name, value):
                options = (*self.options[:i], (name, plain), *self.options[i + 1 :])
                yield replace(self, options=options)
        if self.dtype != "fp32":
            yield replace(self, dtype="fp32")

    def __str__(self) -> str:
        """The call in one line."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        how = f"grad={self.grad}, poisoned={self.poisoned}"
        return f"ModuleCase({self.module}, seed={self.seed}, {self.dtype}, {how}: {options})"


def _plainer(name: str, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [False] if value else []
    if isinstance(value, int):
        return sorted({n for n in (1, value // 2, value - 1) if 0 < n < value})
    if name == "score" and value != "scaled_dot":
        return ["scaled_dot"]
    return [None] if value is not None and name in ("mask", "padding", "engine", "position") else []


def draw_module_case(seed: int) -> ModuleCase:
    """The call of one integer."""
    rng = random.Random(seed)  # noqa: S311 # cases, not secrets
    module = rng.choice(list(KINDS))
    dtype = rng.choice(("fp64", "fp32", "fp32", "bf16", "fp16"))
    grad, poisoned = rng.random() < 0.35, rng.random() < 0.3
    return ModuleCase(seed, module, dtype, grad, poisoned, tuple(KINDS[module].draw(rng).items()))


MADE: dict[tuple, nn.Module] = {}


def module_of(case: ModuleCase, p: PreparedModule, generator: torch.Generator) -> nn.Module:
    """The module in the dtype of the case, parameters drawn anew; one made before is used again."""
    key = (case.module, case.dtype, *p.key)
    module = MADE.get(key)
    if module is None:
        if len(MADE) > 4096:
            MADE.clear()
        state = torch.random.get_rng_state()
        module = MADE[key] = p.build().to(DTYPES[case.dtype]).eval()
        torch.random.set_rng_state(state)
    with torch.no_grad():
        for parameter in module.parameters():
            x = torch.randn(parameter.shape, generator=generator)
            wide = max(parameter.shape[-1], 1) if parameter.ndim > 1 else 1
            parameter.copy_(x * wide**-0.5 if parameter.ndim > 1 else 1 + 0.2 * x)
    return module


def run(case: ModuleCase) -> list[str]:
    """What is wrong with the call; empty if nothing."""
    generator = torch.Generator().manual_seed(case.seed & 0xFFFFFFFF)
    p = KINDS[case.module].prepare(dict(case.options), generator)
    dtype = DTYPES[case.dtype]
    module = module_of(case, p, generator)
    # Gradients at a kink are a matter of rounding, but not in fp64.
    grad = case.grad and (not p.kinked or case.dtype == "fp64")
    inputs = {name: x.to(dtype) for name, x in p.inputs.items()}
    given = dict(inputs)
    if case.poisoned:
        given |= {n: torch.where(at, torch.nan, inputs[n]) for n, at in (p.poison or {}).items()}
    given = {name: x.clone().requires_grad_(grad) for name, x in given.items()}
    with torch.set_grad_enabled(grad):
        got = p.call(module, given)
    upstream = functools.partial(_upstream, case.seed)
    if grad:
        got |= gradients(got, given | dict(module.named_parameters()), upstream)
    wrong = [
        f"{name} is {x.dtype}, inputs are {dtype}"
        for name, x in got.items()
        if name == "output" and x.dtype != dtype
    ]
    own = {name: x.detach() for name, x in module.named_parameters()}

    def by_textbook(dtype: torch.dtype, move: float, generator: torch.Generator | None) -> Found:
        leaves = {n: moved(x, dtype, move, generator) for n, x in (inputs | own).items()}
        for x in leaves.values():
            x.requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            found = p.textbook(View(module, leaves), {n: leaves[n] for n in inputs})
        return found | gradients(found, leaves, upstream) if grad else found

    return wrong or judge(Trial(dtype, got, by_textbook, slack={"output": p.slack}))


def _upstream(seed: int, like: Tensor, name: str) -> Tensor:
    generator = torch.Generator().manual_seed(len(name) + 7 * (seed & 0xFFFF))
    return torch.randn(like.shape, generator=generator)


def length(rng: random.Random, empty: float = 0.02) -> int:
    """A small length."""
    return 0 if rng.random() < empty else rng.choice((1, 1, 2, 3, 3, 4, 5, 7))


def draw_score(rng: random.Random) -> str:
    """The name of a score."""
    return rng.choice(SCORES)


def head_width(rng: random.Random, score: str) -> int:
    """Of each head; directions of one number, or two, are constant."""
    return 4 if score == "cosine" else rng.choice((1, 2, 4))


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Unit variance, in fp32: numbers that fp64 and fp32 share."""
    return torch.randn(shape, generator=generator)


def lengths_of(generator: torch.Generator, batch: int, length: int) -> Tensor:
    """How much of each sequence is real, from 0."""
    return torch.randint(0, length + 1, (batch,), generator=generator)


def before(stop: Tensor, length: int) -> Tensor:
    """Booleans (B, L), True where a position comes before `stop` (B,)."""
    return torch.arange(length) < stop.unsqueeze(-1)


def linear(x: Tensor, view: View) -> Tensor:
    """`x W' + b` of a linear layer."""
    y = x @ view.weight.mT
    return y if view.bias is None else y + view.bias


def norm(x: Tensor, view: View) -> Tensor:
    """LayerNorm or RMSNorm, as it is defined."""
    if type(view._module).__name__ == "LayerNorm":
        x = x - x.mean(-1, keepdim=True)
        y = x / (x.square().mean(-1, keepdim=True) + view.eps).sqrt()
        return y * view.weight + view.bias
    return x / (x.square().mean(-1, keepdim=True) + view.eps).sqrt() * view.weight


def to_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads * width) to (B, heads, L, width)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-2, -3)


def from_heads(x: Tensor) -> Tensor:
    """(B, heads, L, width) to (B, L, heads * width)."""
    x = x.transpose(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
