"""Optuna's journal file, which outlives a full disk and a process that is killed while it writes.

A line is one record. Of one that was cut off nobody was told that it is written; but the next record
would be put behind it into the same line, and from then on no reader gets past it. Needs optuna.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from regard.choosing.training.errors import StorageError
from regard.measuring.files import write_atomic

RECORD = b'{"op_code":'


class Journal(JournalFileBackend):
    """A journal in a file; what is cut off in it is taken out when it is opened."""

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
        """Add records.

        Raises:
            StorageError: the disk is full, or the like.
        """
        try:
            super().append_logs(logs)
        except OSError as error:
            raise StorageError(
                f"storage {self.path}: cannot be written: {error.strerror or error}. What is finished "
                "is kept: make room, and resume=True (--resume) goes on"
            ) from None


def mend(path: Path) -> None:
    """Take out what was cut off; the record behind it in the same line stays.

    Raises:
        ValueError: it is no journal.
    """
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    if lines and not lines[0].startswith(RECORD):
        raise ValueError("it is a file of something else")
    good = b"".join(whole(line) for line in lines)
    if data.startswith(good):
        if good != data:
            os.truncate(path, len(good))
    else:
        write_atomic(path, good)


def whole(line: bytes) -> bytes:
    """The record of a line without what was cut off before it; nothing where there is no end."""
    start = 0
    while line.endswith(b"\n") and start >= 0:
        try:
            json.loads(line[start:])
        except ValueError:
            start = line.find(RECORD, start + 1)
        else:
            return line[start:]
    return b""
