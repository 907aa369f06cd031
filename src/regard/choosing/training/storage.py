"""Optuna's storages, in which trials are kept, and the queue of trials that are still to be done.

A cell is one training to do: {"candidate": ..., "rate": ...}, in the final with a "seed". Cells go into
the queue of Optuna's study, from which every process, on this or another machine, takes the next one.
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

from regard.choosing.training.asking import named
from regard.choosing.training.errors import ChooseError, StorageError
from regard.measuring.failures import first_line

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

Cell = dict[str, Any]
# A trial on another machine counts as abandoned this many seconds after its run should have ended. A
# trial without an owner after `NAMELESS_TIME` belongs to a process that was killed while it took it.
GRACE = 60
NAMELESS_TIME = datetime.timedelta(seconds=5)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental features."""
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
    """The storage; connections to a database are closed on exit.

    Raises:
        ChooseError: the storage cannot be opened.
        StorageError: the storage failed during the run.
    """
    from optuna.exceptions import StorageInternalError

    storage = open_storage(place)
    try:
        yield storage
    except StorageInternalError as error:
        shown = str(place).rpartition("@")[2]  # without user and password
        raise StorageError(
            f"storage {shown}: {first_line(error.__cause__ or error)}. Finished trainings are kept; "
            f"continue with {named('resume', True)}"
        ) from None
    finally:
        engine = getattr(storage, "engine", None)
        if engine is not None:
            storage.remove_session()
            engine.dispose()


def open_storage(place: str | Path) -> BaseStorage:
    """The storage in a journal file, or in the database that a URL names.

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
    except Exception as error:  # each database raises its own errors
        shown = name.rpartition("@")[2]  # without user and password
        raise ChooseError(f"storage {shown}: cannot be opened: {first_line(error)}") from None


def database(url: str) -> BaseStorage:
    """The storage in a database, tried twice: two processes may create its tables at the same time."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError

    try:
        return RDBStorage(url)
    except (DBAPIError, OSError):
        time.sleep(1.0)
        return RDBStorage(url)


def driven(url: str) -> str:
    """The URL with PostgreSQL's psycopg driver, if it names none and psycopg2 is not installed."""
    head, mark, rest = url.partition("://")
    if head in ("postgresql", "postgres") and importlib.util.find_spec("psycopg2") is None:
        head = "postgresql+psycopg"
    return head + mark + rest


def open_study(storage: BaseStorage, name: str, pruner: Any = None) -> Study:
    """The study of that name; created if it does not exist."""
    import optuna

    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction="maximize",
        load_if_exists=True,
        # Every trial comes from the queue, so the sampler is never used.
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=pruner or optuna.pruners.NopPruner(),
    )


def names_in(storage: BaseStorage) -> set[str]:
    """The names of all studies in the storage."""
    return {study.study_name for study in storage.get_all_studies()}


def cell_of(trial: FrozenTrial | Trial) -> Cell | None:
    """The cell of a trial; None if the trial did not come from the queue."""
    return trial.user_attrs.get("cell")


def finished(trial: FrozenTrial) -> bool:
    """Whether a trial has a result; being pruned by halving is a result too."""
    from optuna.trial import TrialState

    if trial.state == TrialState.PRUNED:
        return "duplicate" not in trial.user_attrs
    return trial.state == TrialState.COMPLETE


def abandoned(trial: FrozenTrial) -> bool:
    """Whether no process works on a running trial any more.

    That is so if its process on this machine is gone, if its time limit has passed, or if no process
    registered as its owner.
    """
    owner = trial.user_attrs.get("owner")
    if owner is None:
        began = trial.datetime_start
        return began is not None and datetime.datetime.now() - began > NAMELESS_TIME
    if owner["host"] == platform.node() and not alive(owner["process"]):
        return True
    return time.time() > owner["until"] + GRACE


def alive(process: int) -> bool:
    """Whether a process with this id exists on this machine."""
    try:
        os.kill(process, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to another user
        return True
    return True


def enqueue(study: Study, cells: Iterable[Cell]) -> int:
    """Queue the cells that are neither finished nor under way; returns how many are unfinished.

    Abandoned trials are closed first, so their cells are queued again.
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
    """Mark an abandoned trial as failed."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        study._storage.set_trial_user_attr(trial._trial_id, "error", why)
        study.tell(trial.number, state=TrialState.FAIL)
    except (UpdateFinishedTrialError, ValueError, RuntimeError):  # another process closed it first
        return


def take(study: Study, until: float) -> tuple[Trial, Cell] | None:
    """The next trial of the queue with its cell; None if the queue is empty."""
    from optuna.trial import TrialState

    while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        trial = study.ask()
        cell = cell_of(trial)
        if cell is None:
            # Another process emptied the queue first, so Optuna made up a trial of its own.
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
    """Whether an earlier trial has the same cell and is finished or running.

    Two machines may queue the same cell at the same time; the trial with the lower number is kept.
    """
    from optuna.trial import TrialState

    return any(
        trial.number < number
        and cell_of(trial) == cell
        and (finished(trial) or (trial.state == TrialState.RUNNING and not abandoned(trial)))
        for trial in study.get_trials(deepcopy=False)
    )
