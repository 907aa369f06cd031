"""A first look at a file of data, by the standard library alone: what is wrong is said at once."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

from regard.choosing.training.errors import ChooseError

NAMES = ("query", "key", "value", "target")
OPTIONAL = ("value",)
# How files of each suffix begin; safetensors have eight bytes of a length in front.
BEGINNINGS = {".npz": b"PK", ".safetensors": b"{", ".parquet": b"PAR1"}
LENGTH = 8
LARGEST = 10**8  # bytes of a header; safetensors itself takes no more
MOST = 12  # names of a stranger's file in a message
LONGEST_NAME, LONGEST_PATH = 40, 200  # letters in a message


def shown(name: Path | str) -> str:
    """A path, or a name in a stranger's file, for a message: short, and safe for a terminal."""
    text, most = str(name), LONGEST_PATH if isinstance(name, Path) else LONGEST_NAME
    return printable(text if len(text) <= most else f"{text[:most]}...")


def printable(text: str) -> str:
    """The text, or as Python would write it where it could move a terminal's cursor."""
    return text if text.isprintable() else ascii(text)


def check_file(path: Path) -> None:
    """Refuse what is no file, of no known suffix, does not begin as that says, or lacks an array.

    The names of a .parquet file take its own package to read: they are left to the reader.

    Raises:
        ChooseError: one sentence says why.
    """
    if path.suffix not in BEGINNINGS:
        raise ChooseError(
            f"{shown(path)}: files are {', '.join(BEGINNINGS)}, this one is {path.suffix!r}"
        )
    try:
        path.stat()
        if not path.is_file():
            raise ChooseError(
                f"{shown(path)}: is {'a folder' if path.is_dir() else 'no file'}; give a file"
            )
        with path.open("rb") as file:
            file.seek(LENGTH if path.suffix == ".safetensors" else 0)
            begins = file.read(len(BEGINNINGS[path.suffix]))
    except OSError as error:
        raise ChooseError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    if begins != BEGINNINGS[path.suffix]:
        raise ChooseError(f"{shown(path)}: is no good {path.suffix} file: it does not begin as one")
    names = names_in(path)
    if names is not None:
        check_names(names, path)


def names_in(path: Path) -> list[str] | None:
    """The names of its arrays, without reading them; None where that takes more than a look."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                size = int.from_bytes(file.read(LENGTH), "little")
                found = json.loads(file.read(size)) if size <= LARGEST else None
            return None if found is None else [name for name in found if name != "__metadata__"]
    except Exception:  # each format has errors of its own, and its reader says what is wrong
        return None
    return None


def check_names(names: Iterable[str], path: Path) -> None:
    """Refuse a file that lacks an array.

    Raises:
        ChooseError: which, and what is there.
    """
    found = sorted(names)
    lacking = [name for name in NAMES if name not in found and name not in OPTIONAL]
    if lacking:
        there = [shown(name) for name in found[:MOST]]
        more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
        raise ChooseError(
            f"{shown(path)}: has no {' and no '.join(lacking)}; it has {', '.join(there) or 'nothing'}{more}"
        )
