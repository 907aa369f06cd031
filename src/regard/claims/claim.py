"""`Claim`: a statement with a criterion written before the run, an experiment and a verdict."""

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
# What an experiment measured, as plain JSON with words as keys. NaN and infinity are not allowed.
Numbers = dict[str, Any]


class ClaimVerdict(StrEnum):
    """What the numbers say about the statement."""

    HOLDS = "holds"
    CONDITIONS = "holds with conditions"
    FAILS = "does not hold here"
    UNDECIDED = "not decided at this size"


@dataclass(frozen=True)
class Fact:
    """One of the numbers that decide the verdict; `low` and `high` are its 95% interval, if it has one."""

    label: Text
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason for it, and the numbers it rests on.

    For a statement that holds with conditions, `because` names the condition. For an undecided one it
    says what a decision would take.
    """

    verdict: ClaimVerdict
    because: Text
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Run:
    """Settings of one run of an experiment: its size, its seed, its device, and a progress callback.

    An experiment reports progress through `steps`, which calls `tell` after each item of a loop. Where a
    loop is only part of the experiment, `within` maps its progress to that part.

    Attributes:
        full: full size instead of quick.
        seed: of all random numbers.
        device: where tensors live.
        tell: called with the finished fraction of the experiment, from 0 to 1.
    """

    full: bool = False
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tell: Callable[[float], None] = lambda fraction: None

    def pick(self, quick: T, full: T) -> T:
        """`quick` in a quick run, `full` in a full one."""
        return full if self.full else quick

    def generator(self, *names: object) -> torch.Generator:
        """A generator seeded by the run's seed and these names.

        Parts of an experiment that use different names draw independent numbers: changing how much one
        part draws does not change another.
        """
        # crc32 gives 32 bits, which is all that torch's CPU generator uses of a seed.
        mixed = zlib.crc32(repr(names).encode(), self.seed)
        return torch.Generator(self.device).manual_seed(mixed)

    def seeds(self, count: int) -> list[int]:
        """Seeds for `count` repeated trainings, disjoint for different runs up to 1000 repetitions."""
        return [1000 * self.seed + number for number in range(count)]

    def steps(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over the items and report progress after each."""
        known = list(items)
        for number, item in enumerate(known):
            yield item
            self.tell((number + 1) / len(known))

    def within(self, number: int, count: int) -> Run:
        """The run for part `number` of `count` equal parts: its progress counts as one part of the whole."""
        return replace(self, tell=lambda part: self.tell((number + part) / count))


class Claim(ABC):
    """A statement about attention with an experiment that can confirm or contradict it.

    Each subclass is one file in `experiments/`. It is a frozen dataclass whose fields, all with
    defaults, are the ingredients of the experiment: a sampler, a score, a size. Tests replace an
    ingredient and check that the verdict changes. `judge` and `draw` are pure functions of the numbers,
    so results on disk can be judged and drawn again without running the experiment.
    """

    id: ClassVar[str]
    statement: ClassVar[Text]
    # The rule for the verdict, written before the first run; `judge` is the same rule in code.
    criterion: ClassVar[Text]
    # What the outcome means for choosing a score.
    meaning: ClassVar[Text]
    # What the figure shows and how to read it.
    caption: ClassVar[Text]
    # What is equal for all competitors, or what the numbers are compared with.
    control: ClassVar[Text]
    # Expected seconds on one core, quick and full; progress bars estimate the remaining time from them.
    seconds: ClassVar[tuple[float, float]]
    # Whether it measures times: then no other claim runs beside it, and it may use all cores.
    alone: ClassVar[bool] = False

    @abstractmethod
    def measure(self, run: Run) -> Numbers:
        """Run the experiment and return what it measured."""

    @abstractmethod
    def judge(self, numbers: Numbers) -> Judgement:
        """Compute the verdict from the numbers alone."""

    @abstractmethod
    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """Draw the figure from the numbers alone."""
