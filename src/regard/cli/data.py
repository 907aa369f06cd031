"""The options of `regard choose` that say what is what in the user's data, and the task they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.common import Mistake

if TYPE_CHECKING:
    from regard.choosing.tasks.roles import DataRoles
    from regard.choosing.tasks.task import Task

FILES = ("queries", "documents", "judgements")
HELP = """With --data FILE: the same on your data. A table with a column to predict needs --target alone:
every other column is a key. A query and its keys in each row: --query q_ --key k (columns k0_x, k0_y,
k1_x, ...). Arrays named query, key, value, target or x and y need no option. docs/choose.md has it
all, from the file that you have to the answer.

With --queries, --documents and --judgements: ranking documents for queries, from three tables."""
EXAMPLES = """  regard choose --data mine.csv --target label
  regard choose --data mine.csv --query q_ --key k --target right
  regard choose --data mine.parquet --key tokens --target label
  regard choose --queries q.csv --documents d.parquet --judgements qrels.txt
  regard choose --data mine.npz --minutes 10 --seeds 8 --heads 1,4"""


class ColumnList(click.ParamType):
    """Names of columns between commas, each a name, a prefix or a range."""

    name = "columns"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """The names."""
        if isinstance(value, tuple):
            return value
        found = tuple(name.strip() for name in value.split(","))
        if not all(found):
            self.fail(f"{value!r} names no column between two commas", param, ctx)
        return found


class Heads(click.ParamType):
    """Numbers of heads between commas."""

    name = "heads"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        cells = [cell.strip() for cell in value.split(",")]
        if not all(cell.isdigit() and 1 <= int(cell) <= 1024 for cell in cells):
            self.fail(f"{value!r} must be numbers of 1 or more, such as 1,4", param, ctx)
        return tuple(dict.fromkeys(map(int, cells)))


def columns_option(name: str, help: str, metavar: str = "COLUMNS") -> Any:
    """An option that names columns."""
    return click.option(f"--{name}", type=ColumnList(), metavar=metavar, help=help)


DATA_OPTIONS = [
    click.option("--data", type=click.Path(path_type=Path), metavar="FILE",
                 help="Your data: .csv, .tsv, .parquet, .npz or .safetensors."),
    columns_option("query", "Of --data: names, a prefix (q_) or a range (q_0..q_7), between commas."),
    columns_option("key", "The keys: k0_x,k0_y,k1_x,... or their prefix; or a column of lists."),
    columns_option("value", "What keys carry, if the answer is made of it."),
    columns_option("target", "The answer; alone, every other column is a key."),
    columns_option("mask", "Which keys of a row are real."),
    columns_option("lengths", "How many keys of a row are real.", "COLUMN"),
    columns_option("group", "Rows of a group are kept in one part.", "COLUMN"),
    columns_option("split", "The part of each row: train, validation or test.", "COLUMN"),
    columns_option("drop", "Columns to leave out."),
    *(click.option(f"--{name}", type=click.Path(path_type=Path), metavar="FILE", help=help)
      for name, help in zip(FILES, (
          "A table of queries: ids and numbers.", "A table of documents: ids and numbers.",
          "Query, document and relevance, or TREC's qrels."), strict=True)),
    click.option("--kind", type=click.Choice(["auto", "classification", "regression", "ranking"]),
                 default="auto", show_default=True, help="What the target of --data is."),
    click.option("--heads", type=Heads(), metavar="N,...",
                 help="Heads to compare.  [default: 1 and 4 on your data, if time allows]"),
]  # fmt: skip
COLUMNS = ("query", "key", "value", "target", "mask", "lengths", "group", "split", "drop")
TABLE_COLUMNS = ("group", "split", "drop")  # those that name columns of --queries too


def roles_of(path: Path, options: dict[str, Any]) -> DataRoles:
    """What the options say about the columns of a file."""
    from regard.choosing.tasks.roles import DataRoles, shown

    named: dict[str, Any] = {name: options.get(name) for name in COLUMNS}
    return DataRoles(**named, where=shown(path), by_flag=True)


def own_data(options: dict[str, Any]) -> bool:
    """Whether the user gave data, after checking that the options go together."""
    given = [name for name in FILES if options.get(name) is not None]
    if options.get("data") is not None and given:
        raise Mistake(
            f"--data and --{given[0]}: give a file with queries and keys, or three tables"
        )
    if given and len(given) < len(FILES):
        lacking = next(name for name in FILES if name not in given)
        raise Mistake(
            f"--queries, --documents and --judgements go together; --{lacking} is missing"
        )
    if options.get("data") is None:
        own = TABLE_COLUMNS if given else ()
        named = [name for name in COLUMNS if options.get(name) is not None and name not in own]
        if named:
            why = (
                "of the tables only --group, --split and --drop name columns"
                if given
                else "give the file: --data mine.csv"
            )
            raise Mistake(f"--{named[0]} names columns of --data; {why}")
    return bool(given) or options.get("data") is not None


def check_data(options: dict[str, Any]) -> None:
    """Refuse what is no file of data, before anything that takes seconds to load."""
    from regard.choosing.tasks.header import check_beginning, check_file
    from regard.choosing.training.errors import ChooseError

    for name in ("data", *FILES):
        path = options.get(name)
        if path is None:
            continue
        if path == Path():  # an empty string, as from a shell variable that is not set
            raise Mistake(f"--{name} is empty; give a file, for example --{name} mine.npz")
        try:
            if name == "data":
                check_file(path, roles_of(path, options))
            else:
                # Judgements as TREC writes them are texts of any suffix.
                check_beginning(path, ".csv" if name == "judgements" else "")
        except ChooseError as error:
            raise Mistake(f"--{name} {error}") from None


def own_task(options: dict[str, Any]) -> Task:
    """The task in the user's data."""
    from regard.choosing.training.asking import asked_by
    from regard.choosing.training.errors import ChooseError

    path = options.get("data")
    try:
        with asked_by("command"):
            return judged(options) if path is None else read(path, options)
    except ChooseError as error:
        raise Mistake(str(error) if path is None else f"--data {error}") from None


def read(path: Path, options: dict[str, Any]) -> Task:
    """The task in a file."""
    from regard.choosing.tasks.files import read_task

    return read_task(path, options["kind"], roles_of(path, options))


def judged(options: dict[str, Any]) -> Task:
    """The task in queries, documents and judgements."""
    from regard.choosing.tasks.judged import judged_task
    from regard.choosing.tasks.roles import printable

    tables = [options[name] for name in FILES]
    named: dict[str, Any] = {name: options.get(name) for name in TABLE_COLUMNS}
    return judged_task(*tables, by_flag=True, name=printable(tables[2].name), **named)
