"""Files that are whole or not there at all."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# A list or object of JSON with nothing nested; a line break is never inside a string.
INNERMOST = re.compile(r"[\[{]\n[^][{}]*[\]}]")
# Some network file systems have no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside the target, then move into place: a reader never sees half a file.

    A link is followed. What is there and no file, a device above all, is not replaced.
    """
    try:
        path = path.resolve()
    except RuntimeError:  # what Python before 3.13 says of links that lead in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    if path.exists() and not (path.is_file() or path.is_dir()):  # a folder says so itself
        raise FileExistsError(errno.EEXIST, "there is something that is no file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp gives the owner alone access
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def json_bytes(found: dict[str, Any]) -> bytes:
    """JSON for people and for diffs: indented, but what has nothing nested stays on one line.

    Raises:
        ValueError: there is a NaN or an infinity in it.
    """
    text = json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)
    return (INNERMOST.sub(one_line, text) + "\n").encode()


def one_line(match: re.Match[str]) -> str:
    """The same without line breaks: a line for each number would make files that nobody reads."""
    return re.sub(r"\n\s*", " ", match[0])


def set_aside(path: Path, why: str) -> Path:
    """Rename `NAME.json` to the first free `NAME.WHY-1.json`: nothing is ever overwritten."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{why}-{number}{path.suffix}")).exists():
        number += 1
    return path.rename(free)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file; the system lets go of it when the process ends, however it ends.

    Raises:
        BlockingIOError: another process holds it.
    """
    with path.open("ab") as file:
        try:
            lock(file)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield


def lock(file: BinaryIO) -> None:
    """Without waiting."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
