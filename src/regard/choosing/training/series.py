"""Series of comparisons with one name in a storage: `x`, `x-2`, `x-3`. None is ever overwritten.

A new run starts the next of the series; `pick_name` chooses the one that a resumed run continues.
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
    """The name of the comparison to run: a new one, or with `resume` one to continue.

    A resumed run usually continues the last comparison of the series. But a user may start anew, read
    that an unfinished run exists, stop, and resume: then the unfinished run is meant, not the one just
    stopped. So if the last one is unfinished and no process works on it, the unfinished comparison with
    the same settings and the most finished trainings is continued.
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
    """The comparisons with that name in the storage, the oldest first."""
    # Every comparison creates its search first, so that study shows that the comparison exists.
    taken, found, after = names_in(storage), [], name
    while f"{after}/search" in taken:
        found.append(after)
        after = f"{name}-{len(found) + 1}"
    return found


def trials_of(storage: BaseStorage, name: str, stage: str) -> list[FrozenTrial]:
    """The trials of a stage, "search" or "final"; empty if it was not started."""
    if f"{name}/{stage}" not in names_in(storage):
        return []
    return open_study(storage, f"{name}/{stage}").get_trials(deepcopy=False)


def unfinished(storage: BaseStorage, name: str) -> bool:
    """Whether a comparison has trainings left to do."""
    final = trials_of(storage, name, "final")
    every = [*trials_of(storage, name, "search"), *final]
    return not final or any(not trial.state.is_finished() for trial in every)


def under_way(storage: BaseStorage, name: str) -> bool:
    """Whether a process is working on a comparison."""
    from optuna.trial import TrialState

    every = [*trials_of(storage, name, "search"), *trials_of(storage, name, "final")]
    return any(one.state == TrialState.RUNNING and not abandoned(one) for one in every)


def results(storage: BaseStorage, name: str) -> list[FrozenTrial]:
    """The finished trainings of a comparison."""
    every = [*trials_of(storage, name, "search"), *trials_of(storage, name, "final")]
    return [trial for trial in every if finished(trial)]


def settings_of(storage: BaseStorage, name: str) -> dict[str, Any]:
    """The settings of a comparison, with the fingerprint of its data."""
    return open_study(storage, f"{name}/search").user_attrs.get("settings", {})


def left_behind(place: str | Path, name: str, data: Data) -> bool:
    """Whether the last comparison of that name is unfinished and has the same data."""
    with quiet(), opened(place) as storage:
        found = series(storage, name)
        # A run stopped before its first result has nothing worth continuing.
        if not found or not unfinished(storage, found[-1]) or not results(storage, found[-1]):
            return False
        known = settings_of(storage, found[-1]).get("data")
        return known == fingerprint(parts_of(data, SEARCH_SEED))


def fingerprint(parts: DataParts) -> int:
    """A checksum of the validation targets, which tells data sets apart."""
    found = 0
    for batch in parts.validation:
        found = zlib.crc32(batch[-1].cpu().contiguous().numpy().tobytes(), found)
    return found
