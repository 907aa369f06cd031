"""A quick check of a data file with the standard library alone, so that errors are reported at once."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

from regard.choosing.training.errors import ChooseError

NAMES = ("query", "key", "value", "target")
OPTIONAL = ("value",)
# The first bytes of a file by suffix; in safetensors they follow an 8-byte length.
BEGINNINGS = {".npz": b"PK", ".safetensors": b"{", ".parquet": b"PAR1"}
LENGTH = 8
LARGEST = 10**8  # bytes of a header; safetensors itself accepts no more
MOST = 12  # array names listed in a message
LONGEST_NAME, LONGEST_PATH = 40, 200  # characters in a message


def shown(name: Path | str) -> str:
    """A path, or a name from an untrusted file, shortened and made safe to print on a terminal."""
    text, most = str(name), LONGEST_PATH if isinstance(name, Path) else LONGEST_NAME
    return printable(text if len(text) <= most else f"{text[:most]}...")


def printable(text: str) -> str:
    """The text, escaped by `ascii` if it holds characters that could control a terminal."""
    return text if text.isprintable() else ascii(text)


def check_file(path: Path) -> None:
    """Check the suffix, the first bytes and the names of the arrays of a file.

    Reading the names in a .parquet file needs pyarrow, so that is left to the reader.

    Raises:
        ChooseError: it is not such a file, or lacks an array.
    """
    if path.suffix not in BEGINNINGS:
        raise ChooseError(
            f"{shown(path)}: files are {', '.join(BEGINNINGS)}, this one is {path.suffix!r}"
        )
    try:
        path.stat()
        if not path.is_file():
            raise ChooseError(
                f"{shown(path)}: is {'a folder' if path.is_dir() else 'not a file'}; give a file"
            )
        with path.open("rb") as file:
            file.seek(LENGTH if path.suffix == ".safetensors" else 0)
            begins = file.read(len(BEGINNINGS[path.suffix]))
    except OSError as error:
        raise ChooseError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    if begins != BEGINNINGS[path.suffix]:
        raise ChooseError(
            f"{shown(path)}: is not a valid {path.suffix} file: it does not begin as one"
        )
    names = names_in(path)
    if names is not None:
        check_names(names, path)


def names_in(path: Path) -> list[str] | None:
    """The names of the arrays in a file, read from its header; None if the header cannot be read."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                size = int.from_bytes(file.read(LENGTH), "little")
                found = json.loads(file.read(size)) if size <= LARGEST else None
            return None if found is None else [name for name in found if name != "__metadata__"]
    except Exception:  # the file is damaged: its reader reports what is wrong
        return None
    return None


def check_names(names: Iterable[str], path: Path) -> None:
    """Check that the required arrays are there.

    Raises:
        ChooseError: an array is missing; the message lists the arrays found.
    """
    found = sorted(names)
    lacking = [name for name in NAMES if name not in found and name not in OPTIONAL]
    if lacking:
        there = [shown(name) for name in found[:MOST]]
        more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
        raise ChooseError(
            f"{shown(path)}: has no {' and no '.join(lacking)}; it has {', '.join(there) or 'nothing'}{more}"
        )
