"""What a claim is: a statement, a criterion written before the run, an experiment, a verdict."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from regard.text import Text

if TYPE_CHECKING:
    from regard.figures.canvas import Canvas

T = TypeVar("T")
# What an experiment measured: plain JSON (numbers, lists, strings; no NaN, no infinity), keys in words.
Numbers = dict[str, Any]


class Verdict(StrEnum):
    """What the numbers say of the statement."""

    HOLDS = "holds"
    CONDITIONS = "holds with conditions"
    FAILS = "does not hold here"
    UNDECIDED = "not decided at this size"


@dataclass(frozen=True)
class Fact:
    """One of the few numbers that decide; `low` and `high` are its 95% interval where it has one."""

    label: Text
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Judgement:
    """A verdict, why, and the numbers it rests on.

    `because` names the condition where the statement holds with conditions, and what it would take
    where the numbers do not decide.
    """

    verdict: Verdict
    because: Text
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Run:
    """What an experiment is told: how much to do, from which seed, where.

    In turn `tell` is told how far the experiment is, as a fraction of 1: by `steps` after each item
    of a loop, by `within` where a loop is only a part of the whole.

    Attributes:
        full: at full size, not quick.
        seed: of all random numbers.
        device: where tensors live.
        tell: called with the fraction that is done.
    """

    full: bool = False
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tell: Callable[[float], None] = lambda fraction: None

    def pick(self, quick: T, full: T) -> T:
        """The first in a quick run, the second in a full one."""
        return full if self.full else quick

    def generator(self, *names: object) -> torch.Generator:
        """Random numbers of their own for each list of names: no experiment shifts another's."""
        # 32 bits: torch's generator on the CPU leaves out what is above them.
        mixed = zlib.crc32(repr(names).encode(), self.seed)
        return torch.Generator(self.device).manual_seed(mixed)

    def seeds(self, count: int) -> list[int]:
        """Seeds of repeated trainings."""
        return [1000 * self.seed + number for number in range(count)]

    def steps(self, items: Iterable[T]) -> Iterator[T]:
        """The items one by one, saying after each how far the whole is."""
        known = list(items)
        for number, item in enumerate(known):
            yield item
            self.tell((number + 1) / len(known))

    def within(self, number: int, count: int) -> Run:
        """For the part `number` of `count` equal parts: its steps move the whole by one part."""
        return replace(self, tell=lambda part: self.tell((number + part) / count))


class Claim(ABC):
    """A statement about attention that runs and can fail.

    A subclass is one file in `experiments/`. It is a frozen dataclass whose fields, all with
    defaults, are the ingredients of the experiment (a sampler, a score, a size): a test replaces
    one and sees the verdict change. `judge` and `draw` are pure functions of the numbers, so that
    results on disk can be judged and drawn again without running.
    """

    id: ClassVar[str]
    statement: ClassVar[Text]
    # Decided before the run, in words; `judge` is the same in code.
    criterion: ClassVar[Text]
    # For a person who chooses a score: what to do with the outcome.
    meaning: ClassVar[Text]
    # What the figure shows and how to read it.
    caption: ClassVar[Text]
    # What is held equal between competitors, or what the numbers are compared with.
    control: ClassVar[Text]
    # Seconds on one core, quick and full: for the time left.
    seconds: ClassVar[tuple[float, float]]
    # Measures times: nothing else may run beside it, and it may use all cores.
    alone: ClassVar[bool] = False

    @abstractmethod
    def measure(self, run: Run) -> Numbers:
        """Run the experiment."""

    @abstractmethod
    def judge(self, numbers: Numbers) -> Judgement:
        """The verdict, from the numbers alone."""

    @abstractmethod
    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """The figure, from the numbers alone."""
