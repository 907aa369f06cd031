"""Writing files atomically: a reader finds the whole file or none. Also lock files and readable JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# An innermost list or object of indented JSON. JSON escapes line breaks in strings, so the one after the
# bracket is always layout.
INNERMOST = re.compile(r"[\[{]\n[^][{}]*[\]}]")
# Errors of file systems without locks, such as some network mounts.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a temporary file beside the target and rename it, so that a reader never sees half a file.

    Content that is too large to be held twice is given in pieces.

    Symbolic links are followed. A device, pipe or socket at the target is never replaced.

    Raises:
        OSError: the file cannot be written, or the target exists and is not a regular file.
    """
    try:
        path = path.resolve()
    except RuntimeError:  # Python before 3.13 raises this for a loop of symbolic links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    # A folder is let through: `replace` below raises IsADirectoryError, which names the problem better.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(errno.EEXIST, "there is something that is no file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            # Without this a power failure after the rename can leave an empty file under the new name.
            os.fsync(file.fileno())
        # The umask can only be read by setting it.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def json_bytes(found: dict[str, Any]) -> bytes:
    """JSON that people can read and diff: indented, with each innermost list or object on one line.

    Raises:
        ValueError: `found` contains a NaN or an infinity, which JSON does not have.
    """
    text = json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)
    return (INNERMOST.sub(one_line, text) + "\n").encode()


def one_line(match: re.Match[str]) -> str:
    """The match without line breaks; one line for each number would make the files unreadably long."""
    return re.sub(r"\n\s*", " ", match[0])


def set_aside(path: Path, why: str) -> Path:
    """Rename `NAME.json` to the first free `NAME.WHY-1.json`, `NAME.WHY-2.json`, ...; never overwrites."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{why}-{number}{path.suffix}")).exists():
        number += 1
    return path.rename(free)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file inside the `with` block.

    The operating system releases the lock when the process ends, even if it is killed. On a file
    system without locks the block runs unlocked.

    Raises:
        BlockingIOError: another process holds the lock.
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
    """Lock an open file at once, or raise BlockingIOError if another process has it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
