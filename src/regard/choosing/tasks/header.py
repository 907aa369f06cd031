"""A first look at a file of data, by the standard library alone: what is wrong is said at once."""

from __future__ import annotations

from pathlib import Path

from regard.choosing.training.errors import ChooseError

# How files of each suffix begin; safetensors have eight bytes of a length in front.
BEGINNINGS = {".npz": b"PK", ".safetensors": b"{", ".parquet": b"PAR1"}
LENGTH = 8


def check_file(path: Path) -> None:
    """Refuse what is no file, of no known suffix, or does not begin as its suffix says.

    Raises:
        ChooseError: one sentence says why.
    """
    if path.suffix not in BEGINNINGS:
        raise ChooseError(f"{path}: files are {', '.join(BEGINNINGS)}, this one is {path.suffix!r}")
    try:
        path.stat()
        if not path.is_file():
            raise ChooseError(
                f"{path}: is {'a folder' if path.is_dir() else 'no file'}; give a file"
            )
        with path.open("rb") as file:
            file.seek(LENGTH if path.suffix == ".safetensors" else 0)
            begins = file.read(len(BEGINNINGS[path.suffix]))
    except OSError as error:
        raise ChooseError(f"{path}: cannot be read: {error.strerror or error}") from None
    if begins != BEGINNINGS[path.suffix]:
        raise ChooseError(f"{path}: is no good {path.suffix} file: it does not begin as one")
