"""What a task is: data, a model around a score, candidates to try, and what it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from regard import Score
from regard.choosing.api import choose
from regard.text import Text

if TYPE_CHECKING:
    from regard.choosing.training.data import Data
    from regard.choosing.training.verdict import Verdict


@dataclass(frozen=True)
class Task:
    """Something to choose a score for.

    Attributes:
        name: short, for files and options.
        prop: the property of the data that it stands for.
        build: the model around a score.
        data: of a seed, or the same for all.
        dims: of query and key.
        claims: that bear on it, by id.
        options: of `regard.choose` for it: candidates, steps, rates.
        zh: its name in Chinese.
    """

    name: str
    prop: Text
    build: Callable[[Score], nn.Module]
    data: Data
    dims: tuple[int, int]
    claims: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    zh: str = ""

    @property
    def title(self) -> Text:
        """Its name for readers."""
        return Text(self.name, self.zh or self.name)

    def choose(self, *, storage: str | Path, **more: Any) -> Verdict:
        """The verdict for this task."""
        options: dict[str, Any] = {"projected": True, "name": self.name, **self.options, **more}
        return choose(self.build, self.data, dims=self.dims, storage=storage, **options)
