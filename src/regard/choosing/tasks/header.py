"""A quick check of a data file with the standard library alone, so that errors are reported at once."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

from regard.choosing.tasks.roles import DataRoles, layout, printable, shown
from regard.choosing.training.errors import ChooseError

# The first bytes of a file by suffix; in safetensors they follow an 8-byte length.
BEGINNINGS = {".npz": b"PK", ".safetensors": b"{", ".parquet": b"PAR1", ".csv": b"", ".tsv": b""}
TEXTS = (".csv", ".tsv")
TABLES = (*TEXTS, ".parquet")  # every column has one entry for each row
LENGTH = 8
LARGEST = 10**8  # bytes of a header; safetensors itself accepts no more
LONGEST_LINE = 10**7  # characters of the first line of a text

__all__ = ["check_file", "names_in", "printable", "shown"]


def check_file(path: Path, roles: DataRoles | None = None) -> None:
    """Check the suffix, the first bytes and the names of the arrays of a file.

    Reading the names in a .parquet file needs pyarrow, so that is left to the reader.

    Raises:
        ChooseError: it is not such a file, or lacks an array or a column.
    """
    check_beginning(path)
    names = names_in(path)
    if names is not None:
        layout(names, roles or DataRoles(where=shown(path)), path.suffix in TEXTS)


def check_beginning(path: Path, suffix: str = "") -> None:
    """Raise ChooseError for what is no readable file of its suffix."""
    suffix = suffix or path.suffix
    if suffix not in BEGINNINGS:
        raise ChooseError(
            f"{shown(path)}: files are {', '.join(BEGINNINGS)}, this one is {path.suffix!r}{advice(path)}"
        )
    try:
        path.stat()
        if not path.is_file():
            raise ChooseError(
                f"{shown(path)}: is {'a folder' if path.is_dir() else 'not a file'}; give a file"
            )
        with path.open("rb") as file:
            file.seek(LENGTH if suffix == ".safetensors" else 0)
            begins = file.read(max(len(BEGINNINGS[suffix]), 1))
    except OSError as error:
        raise ChooseError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    if not begins.startswith(BEGINNINGS[suffix]) or not begins:
        raise ChooseError(f"{shown(path)}: is not a valid {suffix} file: it does not begin as one")


def advice(path: Path) -> str:
    """What to do about a file of another kind; empty if that is not known."""
    lines = {
        ".gz": f"; unpack it: gunzip {shown(path.name)}",
        ".zip": f"; unpack it: unzip {shown(path.name)}",
        ".xlsx": '; save it as CSV: pandas.read_excel("mine.xlsx").to_csv("mine.csv", index=False)',
        ".json": '; save it as Parquet: pandas.read_json("mine.json").to_parquet("mine.parquet")',
        ".jsonl": '; save it as Parquet: pandas.read_json("mine.jsonl", lines=True).to_parquet('
        '"mine.parquet")',
        ".npy": '; put it beside its target: np.savez("mine.npz", x=np.load("mine.npy"), y=y)',
        ".pt": '; save its tensors: safetensors.torch.save_file(tensors, "mine.safetensors")',
        ".pkl": '; it could run code; save it as Parquet: frame.to_parquet("mine.parquet")',
    }
    return lines.get(path.suffix, "")


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
        if path.suffix in TEXTS:
            with path.open(encoding="utf-8-sig", newline="") as file:
                line = file.readline(LONGEST_LINE)
            return header_names(next(csv.reader([line], delimiter=delimiter_of(line, path.suffix))))
    except Exception:  # the file is damaged: its reader reports what is wrong
        return None
    return None


def header_names(cells: list[str]) -> list[str]:
    """The names of columns; pandas leaves that of its index empty, which no option could name."""
    return [cell.strip() or f"unnamed_{place}" for place, cell in enumerate(cells)]


def delimiter_of(line: str, suffix: str) -> str:
    """The character between the cells of a line: tab in .tsv, else the commonest of , ; and tab."""
    return "\t" if suffix == ".tsv" else max(",;\t", key=line.count)
