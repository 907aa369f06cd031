"""`Column`: one array or column of the user's data, whatever it came from. N rows.

Numbers are fp64, int64 or bool, missing ones NaN. Words are objects, missing ones None. Rows of different
length are padded, and their lengths are kept.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.choosing.tasks.roles import DataRoles, shown
from regard.choosing.tasks.sizes import check_size

DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%Y-%m-%d %H:%M:%S",
    "%Y%m%dT%H%M%S",
)


@dataclass(frozen=True, eq=False)
class Column:
    """One array (N, ...) of numbers or words.

    Attributes:
        values: the entries; padding is 0, or the empty word.
        lengths: entries of each row that are real, if rows differ in length.
        shared: the array may be one for all rows, so its first dim need not be rows.
    """

    values: np.ndarray
    lengths: np.ndarray | None = None
    shared: bool = False

    @property
    def is_words(self) -> bool:
        """Whether it holds words, not numbers."""
        return self.values.dtype.kind == "O"

    @property
    def is_dates(self) -> bool:
        """Whether it holds dates or durations."""
        return self.values.dtype.kind in "Mm"

    @property
    def is_whole(self) -> bool:
        """Whether it holds integers or truth values by its type."""
        return self.values.dtype.kind in "iub"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the padded entries."""
        return self.values.shape


@dataclass(frozen=True)
class DataSource:
    """The columns of the user's data, and what the user says about them.

    Attributes:
        columns: those that were read.
        roles: what the user says.
        table: every column has one entry for each row.
        names: all names in the data; () if every column was read.
    """

    columns: dict[str, Column]
    roles: DataRoles
    table: bool = True
    names: Sequence[str] = ()

    def error(self, said: str) -> Exception:
        """An error about this data."""
        return self.roles.error(said)


def missing(entry: Any) -> bool:
    """Whether an entry of a column of objects is missing: None, NaN or pandas' NA."""
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return True
    return type(entry).__name__ in ("NAType", "NaTType")


def column_of(given: Any, name: str, roles: DataRoles) -> Column:
    """A column from an array, a tensor, a list, or a column of a frame.

    Raises:
        ChooseError: it holds something that is neither numbers, words, dates nor lists of them.
    """
    if hasattr(given, "detach"):  # a tensor; bfloat16 is no type of NumPy
        given = given.detach().cpu()
        given = (given.float() if given.is_floating_point() else given).numpy()
    if hasattr(given, "to_numpy"):
        given = given.to_numpy()
    if isinstance(given, (list, tuple)):
        return objects_column(list(given), name, roles)
    found = np.asarray(given)
    kind = found.dtype.kind
    if kind == "O":
        return objects_column(list(found), name, roles)
    if kind in "US":
        return Column(found.astype(str).astype(object))
    if kind in "Mm":
        return Column(found)
    if kind not in "fiub":
        raise roles.error(f"{shown(name)} must be numbers, got {found.dtype}")
    return Column(as_numbers(found, name, roles))


def as_numbers(found: np.ndarray, name: str, roles: DataRoles) -> np.ndarray:
    """The array as fp64, int64 or bool, whatever its width and byte order, of which torch supports few."""
    kind = found.dtype.kind
    if kind == "u" and found.size and int(found.max()) > np.iinfo(np.int64).max:
        raise roles.error(f"{shown(name)} holds whole numbers too large for int64")
    if kind == "b":
        return found
    # fp32 stays as it is, since a copy in fp64 takes twice the memory and tells nothing more.
    if found.dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return found.astype(found.dtype.newbyteorder("="), copy=False)
    wide = np.float64 if found.dtype.itemsize > 4 else np.float32
    return found.astype(wide if kind == "f" else np.int64)


def objects_column(entries: list[Any], name: str, roles: DataRoles) -> Column:
    """A column from Python objects, of the type that all of them have.

    Raises:
        ChooseError: they are of several kinds, or of one that is not understood.
    """
    present = [x for x in entries if not missing(x)]
    if not present:
        return Column(np.full(len(entries), np.nan))
    if all(isinstance(x, str) for x in present):
        words = np.empty(len(entries), object)
        words[:] = [None if missing(x) else x for x in entries]
        return Column(words)
    if all(isinstance(x, (bool, np.bool_)) for x in present) and len(present) == len(entries):
        return Column(np.array(entries, bool))
    if all(isinstance(x, (numbers.Real, np.number, np.bool_)) for x in present):
        if len(present) == len(entries) and all(isinstance(x, (int, np.integer)) for x in present):
            try:
                return Column(np.array(entries, np.int64))
            except OverflowError:
                raise roles.error(
                    f"{shown(name)} holds whole numbers too large for int64"
                ) from None
        return Column(np.array([np.nan if missing(x) else float(x) for x in entries]))
    if all(isinstance(x, (datetime.date, datetime.timedelta)) for x in present):
        return Column(np.array([None if missing(x) else x for x in entries], "datetime64[s]"))
    if all(hasattr(x, "__len__") and not isinstance(x, (str, bytes, dict, set)) for x in present):
        return rows_column(entries, name, roles)
    kinds = sorted({type(x).__name__ for x in present})
    raise roles.error(
        f"{shown(name)} must be numbers, words or lists of them, but holds {', '.join(kinds[:4])}"
    )


def rows_column(entries: Sequence[Any], name: str, roles: DataRoles) -> Column:
    """A column whose entries are lists or arrays, padded if they differ in length.

    Raises:
        ChooseError: an entry is neither a list of numbers or words nor a list of such lists of one length.
    """
    rows = []
    for place, entry in enumerate(entries):
        row = row_of([] if missing(entry) else entry)
        if row.dtype.kind == "O" and any(map(missing, entry)):
            raise roles.error(
                f"{shown(name)}: row {place} has missing entries inside its list; leave a whole key or word out of "
                "its list, or fill in the number"
            )
        if row.size and (row.dtype.kind not in "fiubUS" or row.ndim not in (1, 2)):
            raise roles.error(
                f"{shown(name)}: row {place} is neither a list of numbers nor a list of keys that are equally long"
            )
        rows.append(row)
    full = [row for row in rows if row.size]
    if not full:
        raise roles.error(f"{shown(name)} holds empty lists only")
    if len({(row.ndim, *row.shape[1:], row.dtype.kind in "US") for row in full}) > 1:
        raise roles.error(
            f"{shown(name)}: keys must have the same width in all rows; pad or cut them"
        )
    like = np.concatenate([row[:1] for row in full])
    lengths = np.array([len(row) if row.size else 0 for row in rows])
    flat = np.concatenate(full)
    words = like.dtype.kind in "US"
    return padded(flat.astype(object) if words else as_numbers(flat, name, roles), lengths, roles)


def row_of(entry: Any) -> np.ndarray:
    """The array of one list; one of objects if it is neither numbers nor words nor lists of one length."""
    try:
        row = np.asarray(entry)
        if row.dtype.kind != "O" or row.ndim != 1:
            return row
        # pandas reads lists of words, and lists of lists, from Parquet as arrays of objects.
        return np.asarray(
            row.tolist() if all(isinstance(x, str) for x in row) else list(map(list, row))
        )
    except (ValueError, TypeError):
        return np.empty((), object)


def padded(flat: np.ndarray, lengths: np.ndarray, roles: DataRoles) -> Column:
    """Rows of different length from all their entries one after another (sum of lengths, ...).

    The size is checked first: one long row makes every row as long.
    """
    rows, longest = len(lengths), int(lengths.max(initial=0))
    shape = (rows, longest, *flat.shape[1:])
    check_size(
        math.prod(shape) * flat.dtype.itemsize,
        roles.where,
        f" for {' x '.join(map(str, shape))} numbers when every row is as long as the longest",
    )
    if len(flat) == rows * longest:
        return Column(flat.reshape(shape))
    found = np.full(shape, "" if flat.dtype.kind == "O" else 0, flat.dtype)
    found[np.arange(longest) < lengths[:, None]] = flat
    return Column(found, lengths)


def looks_like_dates(words: Sequence[str | None]) -> bool:
    """Whether the first words are dates in a usual form."""
    some = [word.strip() for word in words[:200] if word is not None][:20]
    return bool(some) and all(map(is_date, some))


def is_date(word: str) -> bool:
    """Whether a word is a date in one of the usual forms."""
    try:
        datetime.datetime.fromisoformat(word)
        return not word.isdigit()
    except ValueError:
        pass
    for form in DATES:
        try:
            datetime.datetime.strptime(word, form)
            return True
        except ValueError:
            continue
    return False
