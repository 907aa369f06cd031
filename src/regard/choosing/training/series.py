"""Comparisons of one name in a storage: `x`, `x-2`, `x-3`. None is ever overwritten.

A new run begins the next of them; see `pick_name` for one that goes on.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.choosing.training.data import Data, DataParts, parts_of
from regard.choosing.training.stages import SEARCH_SEED
from regard.choosing.training.storage import (
    abandoned,
    finished,
    names_in,
    open_study,
    opened,
    quiet,
)

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


def pick_name(storage: BaseStorage, name: str, resume: bool) -> str:
    """One to go on with, else a new one.

    That is the last of the series; but somebody who begins anew, is told of an unfinished run and
    stops wants that one: of unfinished ones with the settings of the last, which nobody works on, it
    is the one that came furthest.
    """
    found = series(storage, name)
    if not resume or not found:
        return f"{name}-{len(found) + 1}" if found else name
    last = found[-1]
    if under_way(storage, last) or not unfinished(storage, last):
        return last
    like = [one for one in found if settings_of(storage, one) == settings_of(storage, last)]
    waiting = [one for one in reversed(like) if unfinished(storage, one)]
    return max(waiting, key=lambda one: len(results(storage, one)))


def series(storage: BaseStorage, name: str) -> list[str]:
    """Those that there are, the oldest first."""
    taken, found, after = names_in(storage), [], name
    while f"{after}/search" in taken:
        found.append(after)
        after = f"{name}-{len(found) + 1}"
    return found


def trials_of(storage: BaseStorage, name: str, stage: str) -> list[FrozenTrial]:
    """Of the search or the final; none where it was not begun."""
    if f"{name}/{stage}" not in names_in(storage):
        return []
    return open_study(storage, f"{name}/{stage}").get_trials(deepcopy=False)


def unfinished(storage: BaseStorage, name: str) -> bool:
    """Something of it is still to be trained."""
    final = trials_of(storage, name, "final")
    every = [*trials_of(storage, name, "search"), *final]
    return not final or any(not trial.state.is_finished() for trial in every)


def under_way(storage: BaseStorage, name: str) -> bool:
    """Some process works on it."""
    from optuna.trial import TrialState

    every = [*trials_of(storage, name, "search"), *trials_of(storage, name, "final")]
    return any(one.state == TrialState.RUNNING and not abandoned(one) for one in every)


def results(storage: BaseStorage, name: str) -> list[FrozenTrial]:
    """Trainings that need not be done again."""
    every = [*trials_of(storage, name, "search"), *trials_of(storage, name, "final")]
    return [trial for trial in every if finished(trial)]


def settings_of(storage: BaseStorage, name: str) -> dict[str, Any]:
    """What it compares, and on which data."""
    return open_study(storage, f"{name}/search").user_attrs.get("settings", {})


def left_behind(place: str | Path, name: str, data: Data) -> bool:
    """Whether the last comparison of that name is of the same data, and unfinished."""
    with quiet(), opened(place) as storage:
        found = series(storage, name)
        if not found or not unfinished(storage, found[-1]) or not results(storage, found[-1]):
            return False
        known = settings_of(storage, found[-1]).get("data")
        return known == fingerprint(parts_of(data, SEARCH_SEED))


def fingerprint(parts: DataParts) -> int:
    """Tells one data set from another, by its held-out targets."""
    found = 0
    for batch in parts.validation:
        found = zlib.crc32(batch[-1].cpu().contiguous().numpy().tobytes(), found)
    return found
