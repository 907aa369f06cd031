"""A comparison that several tests look at: it is trained once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from regard.choosing.training.verdict import Verdict

from .known import small

OPTIONS: dict[str, Any] = {
    "scores": ("additive", "cosine"), "hidden": (4, 8), "rates": (3e-3, 1e-2, 3e-2), "vitals": True,
}  # fmt: skip


class Finished(NamedTuple):
    """A comparison that came to its end, and where its trainings are kept."""

    verdict: Verdict
    place: Path

    def copy(self, folder: Path) -> Path:
        """A journal of one's own to go on with."""
        return Path(shutil.copy(self.place, folder / "copy.journal"))


def again(place: Path, **more: Any) -> Verdict:
    """The same comparison once more."""
    return small(place, **OPTIONS | more)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Four candidates, three rates, two seeds, and the doctor's look at the finalists."""
    place = tmp_path_factory.mktemp("finished") / "a.journal"
    return Finished(again(place), place)
