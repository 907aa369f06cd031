"""Which arrays or columns of the user's data play which part, decided by names alone.

Only the standard library is needed, so that a misspelt column is reported before torch is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regard.choosing.training.errors import ChooseError

ROLES = ("query", "key", "value", "target", "mask", "lengths", "group", "split")
# Names that arrays of a file have by themselves; columns of a table are named by the user.
REQUIRED = ("query", "key", "target")
SEQUENCES = {"x": "key", "X": "key", "y": "target"}
MOST = 12  # names listed in a message
LONGEST_NAME, LONGEST_PATH = 40, 200  # characters in a message
# A numbered name: k3_price, k_3_1 or k_3. The number says which key it belongs to.
NUMBERED = re.compile(r"(?P<stem>.*?)(?P<block>\d+)(?:[_.\-](?P<feature>.+))?")

Asked = str | Sequence[str] | None


def printable(text: str) -> str:
    """The text, escaped by `ascii` if it holds characters that could control a terminal."""
    return text if text.isprintable() else ascii(text)


def shown(name: object) -> str:
    """A name from a stranger's file, shortened and made safe to print; paths may be longer."""
    text = str(name)
    most = LONGEST_NAME if isinstance(name, str) else LONGEST_PATH
    return printable(text if len(text) <= most else f"{text[:most]}...")


def listed(names: Iterable[str]) -> str:
    """The first names of a list, for a message."""
    found = list(names)
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(map(shown, found[:MOST])) + more if found else "nothing"


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts x_2 before x_10."""
    return [(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class DataRoles:
    """What the user says about the columns, each a name, a prefix, a range `a_0..a_7` or a list of these.

    Attributes:
        query, key, value, target: columns of the parts of the task.
        mask, lengths: which keys of a row are real.
        group, split: rows that stay together, and the part that each row belongs to.
        drop: columns to leave out.
        where: the data in messages, such as the name of the file.
        by_flag: messages speak of `--target`, not of `target=`.
        whole: every column is read, whatever the layout.
    """

    query: Asked = None
    key: Asked = None
    value: Asked = None
    target: Asked = None
    mask: Asked = None
    lengths: Asked = None
    group: Asked = None
    split: Asked = None
    drop: Asked = None
    where: str = "the data"
    by_flag: bool = False
    whole: bool = False

    def option(self, name: str, value: str = "") -> str:
        """An option as the user writes it: `--key k_`, or `key="k_"`."""
        if self.by_flag:
            return f"--{name} {value}".rstrip()
        return f'{name}="{value}"' if value else f"{name}="

    def example(self, **options: str) -> str:
        """A whole call that would work."""
        said = [self.option(name, value) for name, value in options.items()]
        if self.by_flag:
            return f"regard choose --data {self.where} {' '.join(said)}"
        return f"regard.choose(data, {', '.join(said)})"

    def error(self, said: str) -> ChooseError:
        """An error about this data."""
        return ChooseError(f"{self.where}: {said}")


class ColumnsByRole(NamedTuple):
    """Names of the columns of each part; `flat` if every column is a key of its own."""

    columns: dict[str, list[str]]
    flat: bool = False
    unused: tuple[str, ...] = ()

    def one(self, role: str) -> str | None:
        """The only column of a part; None if it has none."""
        found = self.columns.get(role)
        return found[0] if found else None


def layout(names: Iterable[str], roles: DataRoles, table: bool) -> ColumnsByRole:
    """The columns of each part.

    Args:
        names: all names in the data.
        roles: what the user says.
        table: the data is a table, whose columns may have any name; else arrays named after their parts.

    Raises:
        ChooseError: a column is not there, or nothing says what the answer is.
    """
    there = list(names)
    given = {role: asked for role in ROLES if (asked := getattr(roles, role)) is not None}
    dropped = set() if roles.drop is None else set(columns_of("drop", roles.drop, there, roles))
    there = [name for name in there if name not in dropped]
    if not given.keys() & {"query", "key", "value"} and "target" not in given:
        by_name = named_layout(there, given, roles, table)
        if by_name is not None:
            return by_name
    found = {role: columns_of(role, asked, there, roles) for role, asked in given.items()}
    if "target" not in found:
        found["target"] = [guessed_target(there, roles)]
    taken = {name for columns in found.values() for name in columns}
    check_once(found, roles)
    rest = tuple(name for name in there if name not in taken)
    if "query" in found or "value" in found:
        if "key" not in found:
            raise roles.error(
                f"the queries need keys to attend to: {roles.option('key', 'k_')} names their columns. It has "
                f"{listed(rest)}"
            )
        return ColumnsByRole(found, unused=rest)
    if "key" in found:
        return ColumnsByRole(found, flat=len(found["key"]) > 1, unused=rest)
    if not rest:
        raise roles.error(f"has no column beside {listed(sorted(taken))}: nothing to learn from")
    return ColumnsByRole({**found, "key": list(rest)}, flat=True)


def needed(names: list[str], roles: DataRoles) -> list[str]:
    """The columns of a table that play a part; all of them if every one is read.

    Raises:
        ChooseError: the layout lacks a column.
    """
    if roles.whole:
        return names
    plan = layout(names, roles, table=True)
    return [name for columns in plan.columns.values() for name in columns]


def checked_names(names: Iterable[object], roles: DataRoles) -> list[str]:
    """The names, if all are words and no two are the same."""
    given = list(names)
    found = [name for name in given if isinstance(name, str)]
    strange = [name for name in given if not isinstance(name, str)]
    if strange:
        raise roles.error(
            f"column names must be words, got {strange[0]!r}; name them: frame.columns = [f'x_{{i}}' for i in "
            "range(frame.shape[1])]"
        )
    twice = [name for name in dict.fromkeys(found) if found.count(name) > 1]
    if twice:
        raise roles.error(f"more than one column is named {listed(twice)}")
    if not found:
        raise roles.error("has no columns")
    return found


def named_layout(
    names: list[str], given: dict[str, Asked], roles: DataRoles, table: bool
) -> ColumnsByRole | None:
    """The layout of data whose arrays have the names of the parts, or x and y; None for other tables.

    Raises:
        ChooseError: an array is missing or not understood.
    """
    known = {name: name for name in ROLES if name in names}
    own = [name for name in names if name in SEQUENCES]
    only_ours = set(names) <= {*ROLES, *SEQUENCES}
    if own and "query" not in known and (len(own) == 2 and only_ours if table else True):
        known |= {SEQUENCES[name]: name for name in own}
        words = {"key": "x", "target": "y"}
    elif (
        not table
        or {"query", "key"} <= set(known)
        or (known.keys() & {"query", "key"} and only_ours)
    ):
        words = {role: role for role in REQUIRED}
    else:
        return None
    known |= {role: columns_of(role, asked, names, roles)[0] for role, asked in given.items()}
    lacking = [word for role, word in words.items() if role not in known]
    if lacking:
        raise roles.error(f"has no {' and no '.join(lacking)}; it has {listed(sorted(names))}")
    strange = [name for name in names if name not in known.values()]
    if strange:
        raise roles.error(
            f"does not understand {listed(strange)}; arrays are named {', '.join(ROLES)}, or x and y for "
            f"sequences. Leave it out: {roles.option('drop', shown(strange[0]))}"
        )
    return ColumnsByRole({role: [name] for role, name in known.items()})


def guessed_target(names: list[str], roles: DataRoles) -> str:
    """The column named target.

    Raises:
        ChooseError: there is none, so the user must say which it is.
    """
    if "target" in names:
        return "target"
    last = shown(names[-1]) if names else "label"
    raise roles.error(
        f"which column is the answer? It has {listed(names)}. Name it: {roles.option('target', last)}, for "
        f"example {roles.example(target=last)}"
    )


def columns_of(role: str, asked: Asked, names: list[str], roles: DataRoles) -> list[str]:
    """The columns that a name, a prefix, a range or a list of these stands for.

    Raises:
        ChooseError: there is no such column.
    """
    items = [asked] if isinstance(asked, str) else list(asked or ())
    if not items or not all(isinstance(item, str) and item for item in items):
        raise roles.error(f"{roles.option(role)} must name columns, got {asked!r}")
    found: list[str] = []
    for item in items:
        first, dots, last = item.partition("..")
        if item in names:
            found.append(item)
        elif dots and first in names and last in names:
            start, stop = names.index(first), names.index(last)
            found += names[min(start, stop) : max(start, stop) + 1]
        else:
            # A group is one column; a prefix of its name is a misspelling.
            begins = [name for name in names if name.startswith(item)]
            whole = role in ("lengths", "group", "split", "drop")
            if not begins or whole:
                what = (
                    "no column has that name" if whole else "no column is named or begins like that"
                )
                raise roles.error(
                    f"{roles.option(role, shown(item))}: {what}; it has {listed(names)}"
                )
            found += sorted(begins, key=natural)
    return list(dict.fromkeys(found))


def check_once(found: dict[str, list[str]], roles: DataRoles) -> None:
    """Raise ChooseError if the answer is among the inputs: it would be found without learning."""
    inputs = {name for role in ("query", "key", "value") for name in found.get(role, ())}
    both = [name for name in found["target"] if name in inputs]
    if both:
        raise roles.error(
            f"{listed(both)} is both an input and the target; name the inputs so that they leave it out"
        )


def key_blocks(columns: Sequence[str], role: str, roles: DataRoles) -> list[list[str]]:
    """The columns of each key: k0_x, k0_y, k1_x, k1_y are two keys of two numbers.

    Raises:
        ChooseError: names have no numbers, or a key lacks a column that others have.
    """
    blocks: dict[int, dict[str, str]] = {}
    for name in columns:
        match = NUMBERED.fullmatch(name)
        if match is None:
            raise roles.error(
                f"{role} column {shown(name)!r} has no number that says which key it belongs to. Name the columns "
                "of the first key k0_x, k0_y and of the second k1_x, k1_y; if keys are rows of a table of "
                "their own, give --queries, --documents and --judgements"
            )
        blocks.setdefault(int(match["block"]), {})[match["feature"] or ""] = name
    features = list(dict.fromkeys(name for block in blocks.values() for name in block))
    for number, block in sorted(blocks.items()):
        lacking = [name for name in features if name not in block]
        if lacking:
            other = next(b[lacking[0]] for b in blocks.values() if lacking[0] in b)
            raise roles.error(
                f"{role} {number} has no column like {shown(other)!r}; every {role} needs the same columns"
            )
    return [[block[name] for name in features] for _, block in sorted(blocks.items())]
