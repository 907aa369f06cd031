"""Where trials are kept: Optuna's storages, and which of its trials are still to be done.

A cell is one training that is asked for, as {"candidate": ..., "rate": ...}. Cells are put into the
study's own queue; whoever asks next, in this process, another or on another machine, gets the next.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import platform
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.choosing.training.errors import ChooseError, StorageError
from regard.measuring.graphs import first_line

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

Cell = dict[str, Any]
# A trial on another machine is given up this many seconds after its run should have ended; one that
# nobody put a name to within these was cut off while it began.
GRACE = 60
NAMELESS_TIME = datetime.timedelta(seconds=5)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's log, and its warnings that a feature may change."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def opened(place: str | Path) -> Iterator[BaseStorage]:
    """The storage; the connections of a database are closed afterwards.

    Raises:
        ChooseError: it cannot be opened.
        StorageError: it was lost on the way.
    """
    from optuna.exceptions import StorageInternalError

    storage = open_storage(place)
    try:
        yield storage
    except StorageInternalError as error:
        shown = str(place).rpartition("@")[2]
        raise StorageError(
            f"storage {shown}: {first_line(error.__cause__ or error)}. What is finished is kept, and "
            "resume=True (--resume) goes on"
        ) from None
    finally:
        engine = getattr(storage, "engine", None)
        if engine is not None:
            storage.remove_session()
            engine.dispose()


def open_storage(place: str | Path) -> BaseStorage:
    """A journal file, or the database that a URL names.

    Raises:
        ChooseError: it cannot be opened.
    """
    from optuna.storages import JournalStorage

    from regard.choosing.training.journal import Journal

    name = str(place)
    try:
        if "://" not in name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(Journal(Path(name)))
        return database(driven(name))
    except Exception as error:  # each database has errors of its own
        shown = name.rpartition("@")[2]  # no password in a message
        raise ChooseError(f"storage {shown}: cannot be opened: {first_line(error)}") from None


def database(url: str) -> BaseStorage:
    """The second time where the first fails: two processes may make the tables at once."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError

    try:
        return RDBStorage(url)
    except (DBAPIError, OSError):
        time.sleep(1.0)
        return RDBStorage(url)


def driven(url: str) -> str:
    """PostgreSQL by the driver that is installed, where the URL leaves it open."""
    head, mark, rest = url.partition("://")
    if head in ("postgresql", "postgres") and importlib.util.find_spec("psycopg2") is None:
        head = "postgresql+psycopg"
    return head + mark + rest


def open_study(storage: BaseStorage, name: str, pruner: Any = None) -> Study:
    """The study of that name, made where there is none."""
    import optuna

    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction="maximize",
        load_if_exists=True,
        # Every trial comes from the queue: a sampler has nothing to sample.
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=pruner or optuna.pruners.NopPruner(),
    )


def names_in(storage: BaseStorage) -> set[str]:
    """The studies that there are."""
    return {study.study_name for study in storage.get_all_studies()}


def cell_of(trial: FrozenTrial | Trial) -> Cell | None:
    """What it was asked for; None for one that came from nowhere."""
    return trial.user_attrs.get("cell")


def same(first: Cell | None, second: Cell | None) -> bool:
    """The same training."""
    return first is not None and first == second


def finished(trial: FrozenTrial) -> bool:
    """It has a result, if only that it was halved away."""
    from optuna.trial import TrialState

    if trial.state == TrialState.PRUNED:
        return "duplicate" not in trial.user_attrs
    return trial.state == TrialState.COMPLETE


def abandoned(trial: FrozenTrial) -> bool:
    """Its process, on this machine, is gone, its time was over long ago, or nobody took it up."""
    owner = trial.user_attrs.get("owner")
    if owner is None:
        began = trial.datetime_start
        return began is not None and datetime.datetime.now() - began > NAMELESS_TIME
    if owner["host"] == platform.node() and not alive(owner["process"]):
        return True
    return time.time() > owner["until"] + GRACE


def alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def enqueue(study: Study, cells: Iterable[Cell]) -> int:
    """Put into the queue what is neither done nor under way; returns how many there are to do.

    Trials that a killed process left behind are closed first.
    """
    from optuna.trial import TrialState

    busy, done = [], []
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING and abandoned(trial):
            close(study, trial, "stopped: its process was killed")
        elif trial.state in (TrialState.WAITING, TrialState.RUNNING):
            busy.append(cell_of(trial))
        elif finished(trial):
            done.append(cell_of(trial))
    left = [cell for cell in cells if cell not in done]
    for cell in left:
        if cell not in busy:
            study.enqueue_trial(cell, user_attrs={"cell": cell})
    return len(left)


def close(study: Study, trial: FrozenTrial, why: str) -> None:
    """Fail a trial that nobody works on any more."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        study._storage.set_trial_user_attr(trial._trial_id, "error", why)
        study.tell(trial.number, state=TrialState.FAIL)
    except (UpdateFinishedTrialError, ValueError, RuntimeError):  # somebody else was faster
        return


def take(study: Study, until: float) -> tuple[Trial, Cell] | None:
    """The next trial of the queue; None where it is empty."""
    from optuna.trial import TrialState

    while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        trial = study.ask()
        cell = cell_of(trial)
        if cell is None:  # another was faster, and Optuna made a new one up
            trial.set_user_attr("duplicate", True)
            study.tell(trial, state=TrialState.PRUNED)
            return None
        owner = {"host": platform.node(), "process": os.getpid(), "until": until}
        trial.set_user_attr("owner", owner)
        if not earlier(study, trial.number, cell):
            return trial, cell
        trial.set_user_attr("duplicate", True)
        study.tell(trial, state=TrialState.PRUNED)
    return None


def earlier(study: Study, number: int, cell: Cell) -> bool:
    """Whether an older trial has or does the same: two machines may have asked for it at once."""
    from optuna.trial import TrialState

    return any(
        trial.number < number
        and same(cell_of(trial), cell)
        and (finished(trial) or (trial.state == TrialState.RUNNING and not abandoned(trial)))
        for trial in study.get_trials(deepcopy=False)
    )
