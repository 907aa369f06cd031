"""Runs a fuzzed call of the op: its tensors, the library, the textbook, and what each promises.

Shape legend: `*` leading dims, H query heads, Q query length, L key length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard
from regard.testing.cases import on_grid
from regard.testing.fuzz import masks, textbook
from regard.testing.fuzz.judge import Trial, judge
from regard.testing.fuzz.layouts import laid_out, numbers
from regard.testing.fuzz.opcase import OpCase
from regard.testing.fuzz.poison import Poison, draw_poison
from regard.testing.fuzz.textbook import Found
from regard.testing.fuzz.view import View, logits_of
from regard.testing.wrappers import SCORES

# Engines that may refuse; the others serve every call on the CPU.
MAY_REFUSE = ("sdpa", "plain", "sine", "compiled", "triton")
SIDES = ("query", "key", "value")
# Where the library computes; the textbook stays on the CPU.
DEVICE = ["cpu"]


@functools.lru_cache(maxsize=2048)
def score_for(
    name: str, dims: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> regard.Score:
    """The score of a row of the contract for (query dim, key dim, heads, key heads); parameters come later."""
    score = SCORES[name].build(*dims).to(device, dtype)
    return score.requires_grad_()


@dataclass
class Built:
    """A case with its numbers, all of them in the dtype of the case."""

    case: OpCase
    score: regard.Score
    tensors: Found
    options: dict[str, Any]
    mask: regard.Mask | None
    seen: Tensor
    poison: Poison
    upstream: Callable[[Tensor, str], Tensor]


def build(case: OpCase) -> Built:
    """Draw the numbers of a case."""
    generator = torch.Generator().manual_seed(case.seed & 0xFFFFFFFF)
    dtype, row = case.torch_dtype, SCORES[case.score]

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator)

    tensors: Found = {}
    for side, name in enumerate(SIDES):
        x = draw(case.shape(side)) * case.size
        if row.kinked and side < 2:
            x = on_grid(x.clamp(-12, 12), 0.0 if side else 1 / 16)
        tensors[name] = numbers(x, case.layouts[side]).to(dtype)
    dims = (case.shape(0)[-1], case.shape(1)[-1], case.heads, case.key_heads)
    score = score_for(case.score, (dims[0] or 1, dims[1] or 1, *dims[2:]), dtype, DEVICE[0])
    with torch.no_grad():
        for parameter in score.parameters():
            x = draw(tuple(parameter.shape)) * (0.5 if parameter.ndim > 1 else 0.2)
            x = x + 1 if parameter.ndim == 1 else x
            parameter.copy_(on_grid(x) if row.kinked else x)
    heads = case.heads if case.has_heads else None
    lead = case.full_lead
    mask, seen = masks.build(case.mask, generator, lead, heads, case.queries, case.keys)
    options = _options(case, draw, tensors)
    seen = seen.expand(*lead, case.heads, case.queries, case.keys)
    bias = wide(case, tensors.get("bias"))
    if bias is not None:
        seen = seen & (bias != -torch.inf)
    poison = draw_poison(case, generator, seen)

    def upstream(like: Tensor, name: str) -> Tensor:
        x = torch.Generator().manual_seed(len(name) + 7 * (case.seed & 0xFFFF))
        if case.layouts[3] == "expanded":
            return torch.ones(()).expand(like.shape)
        return torch.randn(like.shape, generator=x)

    return Built(case, score, tensors, options, mask, seen, poison, upstream)


def _options(
    case: OpCase, draw: Callable[[tuple[int, ...]], Tensor], tensors: Found
) -> dict[str, Any]:
    """Numbers; tensors among the options join `tensors`."""
    options: dict[str, Any] = {}
    dtype = case.torch_dtype
    middle = (case.heads,) if case.has_heads else ()
    if case.bias:
        full = (*case.full_lead, *middle, case.queries, case.keys)[-len(case.bias) :]
        full = (case.queries, case.keys) if len(case.bias) == 2 else full
        bias = draw(tuple(n if flag else 1 for n, flag in zip(full, case.bias, strict=True)))
        if case.bias_hides:
            bias = bias.masked_fill(bias > 0.7, -torch.inf)
        halves = case.wide_bias and dtype in (torch.bfloat16, torch.float16)
        tensors["bias"] = bias.to(torch.float32 if halves else dtype)
    if case.sink:
        shape = {"heads": (case.heads,), "one": (1,), "scalar": ()}[case.sink]
        tensors["sink"] = draw(shape).to(dtype)
    if case.temperature[0] == "number":
        options["temperature"] = case.temperature[1]
    else:
        flags = case.temperature[1]
        shape = {"heads": (case.heads,), "scalar": ()}.get(flags if isinstance(flags, str) else "")
        if shape is None:
            full = (*case.full_lead, *middle, case.queries)
            shape = (*(n if flag else 1 for n, flag in zip(full, flags, strict=True)), 1)
        warm = 1 + 0.5 * torch.tanh(draw(shape))
        if case.temperature[2]:
            warm = torch.where(draw(shape) > 0.3, 0.0, warm)
        tensors["temperature"] = warm.to(dtype)
    if case.softcap is not None:
        options["softcap"] = case.softcap
    return options


def wide(case: OpCase, x: Tensor | None) -> Tensor | None:
    """A bias with the head dim that inputs of up to 3 dims lack."""
    return x.unsqueeze(-3) if x is not None and x.ndim == 3 and not case.has_heads else x


def library(b: Built) -> Found:
    """What the library gives, gradients included."""
    case, given = b.case, {}
    for i, (name, x) in enumerate(b.tensors.items()):
        layout = case.layouts[i] if i < 3 else "plain"
        given[name] = laid_out(b.poison.put(name, x).to(DEVICE[0]), layout)
    learn = {
        name: x
        for name, x in given.items()
        if case.grad and not (name == "bias" and case.engine == "sdpa")
    }
    for x in learn.values():
        x.requires_grad_()
    arguments: dict[str, Any] = {**b.options, **given}
    if case.lowered:
        arguments["key"] = b.score.key(given["key"])
    arguments["score"] = b.score
    with torch.set_grad_enabled(case.grad):
        if case.function == "score":
            query, key = arguments["query"], arguments["key"]
            found = {"output": regard.score(query, key, b.score)}
        else:
            arguments |= {"mask": b.mask, "engine": case.engine, "error": case.error}
            if case.function == "attend":
                result = regard.attend(**arguments, want=case.want)
                found = {name: getattr(result, name) for name in ("output", *case.want)}
            else:
                found = {"output": regard.attention(**arguments)}
    if found["output"].dtype != case.torch_dtype:
        raise AssertionError(f"output is {found['output'].dtype}, inputs are {case.torch_dtype}")
    if not case.grad:
        return found
    leaves = learn | {f"score.{n}": p for n, p in b.score.named_parameters()}
    return found | gradients(found, leaves, b.upstream)


def gradients(found: Found, leaves: Found, upstream: Callable[[Tensor, str], Tensor]) -> Found:
    """The gradient of every leaf through all results together; 0 for a leaf that is not used."""
    ends = {name: x for name, x in found.items() if x.requires_grad}
    given: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if ends:
        flows = [textbook.as_rounded(_finite(upstream(x, name), x)) for name, x in ends.items()]
        given = torch.autograd.grad(
            list(ends.values()), list(leaves.values()), flows, allow_unused=True
        )
    return {
        f"gradient of {name}": torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(leaves.items(), given, strict=True)
    }


def _finite(flow: Tensor, x: Tensor) -> Tensor:
    """What flows back: nothing into infinities, of which LSE has some."""
    return torch.where(x.detach() == -torch.inf, 0, flow.to(x.device)).to(x.dtype)


def by_textbook(
    b: Built, dtype: torch.dtype, move: float, generator: torch.Generator | None
) -> Found:
    """What the textbook gives, on inputs moved by a relative `move`."""
    case = b.case
    fresh = b.tensors | {f"score.{n}": p.detach() for n, p in b.score.named_parameters()}
    leaves = {
        name: moved(b.poison.clean(name, x), dtype, move, generator) for name, x in fresh.items()
    }
    for name, x in leaves.items():
        x.requires_grad_(case.grad and not (name == "bias" and case.engine == "sdpa"))
    view = View(b.score, {n.removeprefix("score."): x for n, x in leaves.items()})
    query, key, value = (leaves[name] for name in SIDES)
    if not case.has_heads:
        query, key, value = (x.unsqueeze(-3) for x in (query, key, value))
    with torch.set_grad_enabled(case.grad):
        scores = logits_of(view, query, key)
        if case.function == "score":
            found = {"output": scores}
        else:
            options = dict(b.options)
            if SCORES[case.score].softcap is not None:
                options["softcap"] = SCORES[case.score].softcap
            if "temperature" in leaves:
                options["temperature"] = _for_rows(case, leaves["temperature"])
            options["bias"], options["sink"] = wide(case, leaves.get("bias")), leaves.get("sink")
            found = textbook.attend(scores, value, b.seen, want=case.want, **options)
        if not case.has_heads:
            found = {
                name: x.squeeze(-2 if name not in ("output", "weights") else -3)
                for name, x in found.items()
            }
    if not case.grad:
        return found
    learned = {name: x for name, x in leaves.items() if x.requires_grad}
    flows = b.poison.flowing(b.upstream)
    return found | gradients(found, learned, flows)


def moved(x: Tensor, dtype: torch.dtype, move: float, generator: torch.Generator | None) -> Tensor:
    """A copy in `dtype`, every entry changed by up to the share `move` of itself."""
    x = x.detach().to("cpu", dtype, copy=True)
    if move:
        x = x * (
            1 + move * (2.0 * torch.randint(0, 2, x.shape, generator=generator, dtype=dtype) - 1)
        )
    return x


def _for_rows(case: OpCase, t: Tensor) -> Tensor:
    """A temperature that broadcasts to (*, H, Q, 1)."""
    if t.ndim <= 1:
        return t.reshape(-1, 1, 1)
    return t if case.has_heads else t.unsqueeze(-3) if t.ndim >= 2 else t


def run(case: OpCase) -> list[str]:
    """What is wrong with the call; empty if nothing. `EngineRefused` passes where the engine may refuse."""
    b = build(case)
    got = library(b)
    trial = Trial(
        case.torch_dtype,
        got,
        functools.partial(by_textbook, b),
        *b.poison.promises(b, got),
    )
    # Near a one-hot row the textbook's own differences from 1 have no digits left beyond an eps of 1.
    trial.slack |= dict.fromkeys(("jacobian", "entropy"), 4 * torch.finfo(torch.float64).eps)
    if case.engine == "sine":
        _allow_series(b, trial)
    return judge(trial)


def _allow_series(b: Built, trial: Trial) -> None:
    """The series errs by its bound, and has gradients and statistics of its own."""
    arguments: dict[str, Any] = (
        dict(b.tensors) | {"score": b.score, "mask": b.mask, "engine": "sine"} | b.options
    )
    value = b.tensors["value"]
    largest = float(value.detach().abs().max()) if value.numel() else 0.0
    trial.slack["output"] = regard.explain(**arguments).error_bound * largest
    for name in trial.got:
        if name != "output":
            trial.may_be_nan[name] = torch.tensor(True)
