"""`regard.choose` on data in place of a model: from its arguments to a task, and to the verdict."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

from regard.choosing.tasks.files import task_of
from regard.choosing.tasks.frames import source_of
from regard.choosing.tasks.judged import judged_task
from regard.choosing.tasks.roles import DataRoles
from regard.choosing.tasks.task import Task
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.verdict import Verdict

TABLES = ("queries", "documents", "judgements")
TABLE_ROLE_NAMES = ("group", "split", "drop")  # what may be said of queries and documents
ROLE_NAMES = tuple(
    one.name for one in fields(DataRoles) if one.name not in ("where", "by_flag", "whole")
)


def choose_on_data(arguments: dict[str, Any]) -> Verdict:
    """The verdict on a frame, a file or two tables.

    Args:
        arguments: all arguments of `regard.choose` by name.

    Raises:
        ChooseError: the data cannot be used.
        ValueError: an argument goes with a model of the user's own.
    """
    from regard.choosing.api import choose

    task = asked_task(arguments)
    known = inspect.signature(choose).parameters
    given = {
        name: value
        for name, value in arguments.items()
        if name not in ("build_model", "data", "kind", *TABLES, *ROLE_NAMES)
        and value is not known[name].default
    }
    for name in ("dims", "projected", "loss"):
        if name in given:
            raise ValueError(
                f"{name}= goes with a model of your own; with data it follows from the columns"
            )
    return task.choose(storage=given.pop("storage", known["storage"].default), **given)


def asked_task(arguments: dict[str, Any]) -> Task:
    """The task of the data that the arguments name.

    Raises:
        ChooseError: the data cannot be used.
    """
    data, kind = arguments["build_model"], arguments["kind"]
    if kind not in ("auto", "classification", "regression", "ranking"):
        raise ValueError(f"kind must be auto, classification, regression or ranking, got {kind!r}")
    if arguments["data"] is not None:
        raise ChooseError(
            "data came twice: give regard.choose(frame, target=...), or a model with data, "
            "regard.choose(Model, data, dims=...)"
        )
    if arguments["queries"] is not None:
        if data is not None:
            raise ChooseError("give a frame, or queries=, documents= and judgements=, not both")
        lacking = [name for name in TABLES if arguments[name] is None]
        if lacking:
            raise ChooseError(
                f"queries=, documents= and judgements= go together; {lacking[0]}= is missing"
            )
        strange = [
            name
            for name in ROLE_NAMES
            if arguments[name] is not None and name not in TABLE_ROLE_NAMES
        ]
        if strange:
            raise ChooseError(
                f"{strange[0]}= names columns of a frame; queries= and documents= are tables of ids and numbers, of "
                f"which {', '.join(f'{name}=' for name in TABLE_ROLE_NAMES)} may name columns"
            )
        named = {name: arguments[name] for name in TABLE_ROLE_NAMES}
        return judged_task(*(arguments[name] for name in TABLES), by_flag=False, **named)
    roles = DataRoles(**{name: arguments[name] for name in ROLE_NAMES})
    source = source_of(data, replace(roles, where="your data"))
    return task_of(source, kind, "your data")
