"""`Task`: data, a model that takes a score, options of the comparison, and the property it represents."""

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
    """A task to choose a score for.

    Attributes:
        name: short name, for files and options.
        prop: the property of data that the task represents.
        build: builds the model from a score.
        data: a function from a seed to data, or the same data for all seeds.
        dims: dims of query and key.
        claims: ids of the claims about this property.
        options: arguments of `regard.choose` for this task: candidates, steps, rates.
        zh: its name in Chinese.
        notes: what the reader of the data has to say, such as the names of the classes.
    """

    name: str
    prop: Text
    build: Callable[[Score], nn.Module]
    data: Data
    dims: tuple[int, int]
    claims: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    zh: str = ""
    notes: tuple[Text, ...] = ()

    @property
    def title(self) -> Text:
        """The name in both languages."""
        return Text(self.name, self.zh or self.name)

    def choose(self, *, storage: str | Path, **more: Any) -> Verdict:
        """Run `regard.choose` on this task; `more` overrides its options."""
        options: dict[str, Any] = {"projected": True, "name": self.name, **self.options, **more}
        verdict = choose(self.build, self.data, dims=self.dims, storage=storage, **options)
        verdict.facts["notes"] = [*self.notes, *verdict.facts.get("notes", ())]
        return verdict
