"""Calls with one argument that is wrong: each must raise one clear error, and nothing else.

Clear is a ValueError or TypeError (`EngineRefused` is one) whose message names the argument. What comes from
inside torch (RuntimeError, IndexError), from Python itself (AttributeError, KeyError) or as a warning is not.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.testing.cases import DTYPES

# Not typed: it is called with wrong types on purpose.
regard = importlib.import_module("regard")
Mask = regard.Mask
Arguments = dict[str, Any]
# What is no tensor at all, for arguments that must be one.
NO_TENSOR = (None, "text", 3, 2.5, [1.0, 2.0], (), {}, object, b"x")
NO_NUMBER = ("1", None, [1.0], {}, object)
WRONG_NUMBERS = (-1.0, float("nan"), float("inf"))


@dataclass(frozen=True)
class Mistake:
    """A wrong call: which mistake of `MISTAKES`, and the seed of what else it holds."""

    seed: int
    name: str
    dtype: str = "fp32"

    def simpler(self) -> Iterator[Mistake]:
        """The same in fp32."""
        if self.dtype != "fp32":
            yield replace(self, dtype="fp32")

    def __str__(self) -> str:
        """The name of the mistake, and its seed."""
        return f"Mistake({self.name!r}, seed={self.seed}, {self.dtype})"


# A mistake makes the wrong call of a generator of choices and a dtype; words of which the message has one.
Wrong = Callable[[random.Random, torch.dtype], object]
MISTAKES: dict[str, tuple[Wrong, tuple[str, ...]]] = {}


def mistake(name: str, *words: str) -> Callable[[Wrong], Wrong]:
    """Register a wrong call whose error says one of the words."""

    def add(wrong: Wrong) -> Wrong:
        MISTAKES[name] = (wrong, words)
        return wrong

    return add


def tensors(rng: random.Random, dtype: torch.dtype) -> Arguments:
    """Arguments of a right call, (2, 4, 3, 8) with two key heads."""
    queries, keys = rng.randint(1, 4), rng.randint(1, 5)
    return {
        "query": torch.ones(2, 4, queries, 8, dtype=dtype),
        "key": torch.ones(2, 2, keys, 8, dtype=dtype),
        "value": torch.ones(2, 2, keys, 6, dtype=dtype),
    }


def call(given: Arguments, rng: random.Random) -> object:
    """One of the three functions that take these arguments."""
    function = rng.choice((regard.attention, regard.attend, regard.explain))
    return function(**given)


def _replaced(name: str, values: tuple) -> Wrong:
    def wrong(rng: random.Random, dtype: torch.dtype) -> object:
        return call(tensors(rng, dtype) | {name: rng.choice(values)}, rng)

    return wrong


for side in ("query", "key", "value"):
    mistake(f"{side} is no tensor", side)(_replaced(side, NO_TENSOR))
mistake("bias is no tensor", "bias")(_replaced("bias", NO_TENSOR[1:]))
mistake("sink is no tensor", "sink")(_replaced("sink", NO_TENSOR[1:]))
mistake("mask is no mask", "mask")(_replaced("mask", (*NO_TENSOR[1:], True, torch.ones(3, 3))))
mistake("score is no score", "score")(
    _replaced(
        "score",
        (3, 2.5, [], {}, object, torch.ones(2, 2), Mask.causal(), "sclaed_dot", "additive", ""),
    )
)
mistake("engine is no engine", "engine")(
    _replaced("engine", (3, [], {}, object, "", "cuda", "SDPA", b"cpu", torch.ones(2), True))
)
mistake("temperature is no number", "temperature")(
    _replaced("temperature", (*NO_NUMBER, True, -1.0, float("nan"), float("inf"), 1e-40, 1j))
)
mistake("temperature is a wrong tensor", "temperature")(
    _replaced(
        "temperature",
        (
            torch.ones(3),
            torch.ones(4).int(),
            -torch.ones(4),
            torch.ones(9, 9, 1),
            torch.ones(2, 4, 9, 1),
        ),
    )
)
mistake("softcap is no number", "softcap")(
    _replaced("softcap", (*(x for x in NO_NUMBER if x is not None), 0.0, True, *WRONG_NUMBERS))
)
mistake("dropout is no probability", "dropout")(
    _replaced("dropout", (*NO_NUMBER, 1.0, 1.5, -0.1, float("nan"), torch.ones(2), True))
)
mistake("error is no number", "error")(
    _replaced("error", (*(x for x in NO_NUMBER if x is not None), 0.0, -1.0, float("nan")))
)
mistake("sink has a wrong shape", "sink")(
    _replaced("sink", (torch.ones(3), torch.ones(4, 1), torch.ones(4).int(), torch.ones(0)))
)
mistake("bias has a wrong shape", "bias")(
    _replaced(
        "bias",
        (
            torch.ones(9, 9),
            torch.ones(4),
            torch.ones(3, 1, 1, 1),
            torch.ones(()),
            torch.ones(1, 1).bool(),
        ),
    )
)
mistake("mask has a wrong shape", "mask")(
    _replaced(
        "mask",
        (
            torch.ones(9, 9).bool(),
            torch.ones(3).bool(),
            Mask.lengths(keys=[1, 2, 3]),
            Mask.lengths(keys=[99, 1]),
            Mask.lengths(keys=[-1, 1]),
            Mask.lengths(queries=[99, 1]),
            Mask.segments(torch.zeros(2, 9).long()),
            Mask.segments(torch.zeros(3, 1).long(), torch.zeros(3, 1).long()),
            torch.ones(2, 3, 1, 1).bool(),
        ),
    )
)


@mistake("want is wrong", "want", "temperature")
def _want(rng: random.Random, dtype: torch.dtype) -> object:
    given = tensors(rng, dtype)
    if rng.random() < 0.2:
        return regard.attend(**given, want=("lse",), temperature=0.0)
    names = (3, None, [3], ("lsee",), {"logsumexp"}, b"lse", object, torch.ones(2), [None])
    return regard.attend(**given, want=rng.choice(names))


@mistake("tensors do not fit", "query", "key", "value")
def _shapes(rng: random.Random, dtype: torch.dtype) -> object:
    given = tensors(rng, dtype)
    side = rng.choice(("query", "key", "value"))
    x = given[side]
    changed = [
        x[0, 0, 0],
        x[0],
        x.unsqueeze(0),
        x.expand(2, x.shape[1], *x.shape[2:])[:1].repeat(3, 1, 1, 1),
        x.to(torch.float32 if dtype == torch.float64 else torch.float64),
        x.long(),
        x.to(torch.complex64),
        x.to("meta"),
    ]
    if side != "query":
        changed += [x.repeat(1, 3, 1, 1)[:, :3], x.repeat(1, 1, 2, 1), x[:, :0]]
    if side == "key":
        changed.append(x[..., :3])
    return call(given | {side: rng.choice(changed)}, rng)


@mistake("a score that does not fit", "head", "dim", "dtype", "score", "width")
def _score(rng: random.Random, dtype: torch.dtype) -> object:
    other = torch.float32 if dtype == torch.float64 else torch.float64
    wrong = (
        lambda: regard.Additive(5, 4).to(dtype),
        lambda: regard.Additive(8, 3).to(dtype),
        lambda: regard.Bilinear(7, 8, 4).to(dtype),
        lambda: regard.Bilinear(8, 8, 3).to(dtype),
        lambda: regard.LowRank(8, 9, 2, 4, 2).to(dtype),
        lambda: regard.GATv2(8, 3).to(dtype),
        lambda: regard.GAT(9, 4).to(dtype),
        lambda: regard.Cosine(3).to(dtype),
        lambda: regard.Gaussian(heads=3).to(dtype),
        lambda: regard.Additive(8, 4).to(other),
        lambda: regard.Projected(regard.Additive(4, 3), 8, 8).to(dtype),
        lambda: regard.stabilize.Normalized(regard.Dot(), 7).to(dtype),
    )
    score = rng.choice(wrong)()
    return call(tensors(rng, dtype) | {"score": score}, rng)


@mistake("lowered keys of another score", "key", "width", "dim")
def _lowered(rng: random.Random, dtype: torch.dtype) -> object:
    given = tensors(rng, dtype)
    key = regard.Additive(8, 4).to(dtype).key(given["key"])
    if rng.random() < 0.5:
        return call(given | {"key": key, "score": "dot"}, rng)
    key = regard.Dot().key(given["key"])
    return call(given | {"key": key, "score": regard.Additive(8, 4).to(dtype)}, rng)


@mistake("a mask that cannot be built", "mask", "window", "keys", "queries", "align", "lengths")
def _mask(rng: random.Random, dtype: torch.dtype) -> object:
    wrong = (
        lambda: Mask.dense(torch.ones(3, 3)),
        lambda: Mask.dense(None),
        lambda: Mask.dense(torch.ones(3).bool()),
        Mask.lengths,
        lambda: Mask.lengths(keys=[1.5]),
        lambda: Mask.lengths(keys=torch.ones(2)),
        lambda: Mask.lengths(keys="3"),
        lambda: Mask.lengths(keys=[[1], [2, 3]]),
        lambda: Mask.lengths(keys=object),
        lambda: Mask.causal("left"),
        lambda: Mask.causal(None),
        lambda: Mask.causal(3),
        Mask.window,
        lambda: Mask.window(-1),
        lambda: Mask.window(1.5),
        lambda: Mask.window(True),
        lambda: Mask.window(1, 1, "up"),
        lambda: Mask.segments(None),
        lambda: Mask.segments(torch.ones(2)),
        lambda: Mask.segments([1, 2]),
        lambda: Mask.segments(torch.ones(2).long(), "keys"),
        lambda: Mask.segments(torch.tensor(1)),
        lambda: Mask.causal() & torch.ones(2, 2).bool(),
        lambda: Mask.causal() & None,
        lambda: bool(Mask.causal()),
    )
    return rng.choice(wrong)()


@mistake("a bottom-right mask without query lengths", "lengths")
def _aligned(rng: random.Random, dtype: torch.dtype) -> object:
    given = tensors(rng, dtype)
    given["query"] = given["query"][:, :, :1].repeat(1, 1, 2, 1)
    mask = Mask.causal() & Mask.lengths(keys=[1, 1])
    return call(given | {"mask": mask}, rng)


@mistake(
    "a score that cannot be built",
    "hidden",
    "heads",
    "dim",
    "rank",
    "slope",
    "scale",
    "bandwidth",
    "eps",
    "score",
    "temperature",
    "norm",
    "cap",
    "width",
    "activation",
)
def _built(rng: random.Random, dtype: torch.dtype) -> object:
    stabilize = regard.stabilize
    bad = rng.choice((0, -1, 1.5, "2", None, [], True))
    number = rng.choice(("x", -1.0, 0, float("nan"), [], True))
    wrong = (
        lambda: regard.Additive(bad),
        lambda: regard.Additive(4, 0 if bad is None else bad),
        lambda: regard.Additive(4, activation="relu"),
        lambda: regard.Bilinear(bad, 4),
        lambda: regard.Bilinear(4, bad),
        lambda: regard.LowRank(4, 4, bad),
        lambda: regard.GAT(bad),
        lambda: regard.GATv2(4, negative_slope=rng.choice(("x", float("nan"), [], True))),
        lambda: regard.Cosine(0 if bad is None else bad),
        lambda: regard.Cosine(scale=number),
        lambda: regard.Gaussian(number),
        lambda: regard.Projected(number, 4, 4),
        lambda: regard.Projected(regard.Additive(4), bad, 4),
        lambda: regard.Projected(regard.Dot(), 4, 4),
        lambda: stabilize.Tempered(regard.Dot(), number),
        lambda: stabilize.Tempered(number),
        lambda: stabilize.Normalized(regard.Dot(), bad),
        lambda: stabilize.Normalized(regard.Dot(), 4, "batch"),
        lambda: stabilize.ClippedKeys(regard.Dot(), number),
        lambda: stabilize.SoftCapped(regard.Dot(), number),
        lambda: stabilize.SoftCapped(stabilize.SoftCapped(regard.Dot(), 2.0), 2.0),
    )
    return rng.choice(wrong)()


def run(case: Mistake) -> list[str]:
    """What is wrong with the error; empty if it is clear."""
    wrong, words = MISTAKES[case.name]
    try:
        wrong(random.Random(case.seed), DTYPES[case.dtype])  # noqa: S311 # cases, not secrets
    except (ValueError, TypeError) as error:
        text = str(error)
        if not any(word in text.lower() for word in words):
            return [f"the error names none of {words}: {type(error).__name__}: {text[:200]}"]
        if type(error).__module__.startswith("torch"):
            return [f"an error of torch: {text[:200]}"]
        return []
    except Exception as error:
        return [f"an unclear error: {type(error).__name__}: {str(error)[:200]}"]
    return ["no error at all"]


def draw_mistake(seed: int) -> Mistake:
    """The wrong call of one integer."""
    rng = random.Random(seed)  # noqa: S311 # cases, not secrets
    dtype = rng.choice(("fp64", "fp32", "fp32", "bf16", "fp16"))
    return Mistake(seed, rng.choice(list(MISTAKES)), dtype)
