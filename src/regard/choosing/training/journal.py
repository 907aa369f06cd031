"""Optuna's journal file, made to survive a full disk and a process killed while it writes.

Each line is one record. A write that is cut off leaves part of a record without its end of line. The
record itself is no loss, because its writer never returned. But the next record would be appended to the
same line, which then is not valid JSON, and Optuna's reader stops there. Needs optuna.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from regard.choosing.training.asking import named
from regard.choosing.training.errors import StorageError
from regard.measuring.files import write_atomic

RECORD = b'{"op_code":'


class Journal(JournalFileBackend):
    """A journal in a file; opening it removes incomplete records."""

    def __init__(self, path: Path) -> None:
        lock = JournalFileSymlinkLock(str(path))
        super().__init__(str(path), lock)
        self.path = path
        lock.acquire()
        try:
            mend(path)
        finally:
            lock.release()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records to the file.

        Raises:
            StorageError: the file cannot be written, for example because the disk is full.
        """
        try:
            super().append_logs(logs)
        except OSError as error:
            raise StorageError(
                f"storage {self.path}: cannot be written: {error.strerror or error}. Finished trainings "
                f"are kept: free some space and continue with {named('resume', True)}"
            ) from None


def mend(path: Path) -> None:
    """Remove incomplete records; a complete record after one in the same line is kept.

    Raises:
        ValueError: the file is not a journal.
    """
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    if lines and not lines[0].startswith(RECORD):
        raise ValueError("it is a file of something else")
    good = b"".join(whole(line) for line in lines)
    # The usual damage is at the end: cut it off in place. Anything else needs a new file.
    if data.startswith(good):
        if good != data:
            os.truncate(path, len(good))
    else:
        write_atomic(path, good)


def whole(line: bytes) -> bytes:
    """The complete record at the end of a line; empty if the line has no end or no such record."""
    start = 0
    while line.endswith(b"\n") and start >= 0:
        try:
            json.loads(line[start:])
        except ValueError:
            start = line.find(RECORD, start + 1)
        else:
            return line[start:]
    return b""
