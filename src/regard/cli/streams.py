"""Standard streams that survive a closed pipe, as in `regard claims | head -1`.

When the reader has closed the pipe, output is dropped and the command continues: its files are written, and
its exit code says how the work went.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class Lasting(io.FileIO):
    """A file that drops its output when the other end of its pipe is closed."""

    def write(self, data: Any, /) -> int:
        """Write the data, or drop it if the reader is gone; raise once if the disk is full."""
        if not len(data):  # click writes empty data to find out whether a stream takes bytes
            return 0
        try:
            return super().write(data)
        except OSError as error:
            # From now on the descriptor is /dev/null, so that later writes and Python's exit succeed.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            return len(data)


def outlive_readers() -> None:
    """Replace stdout and stderr by streams that survive a closed pipe.

    A stream that the caller closed becomes /dev/null. A stream that is not Python's own, such as that of a
    test runner, stays.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = io.FileIO(os.devnull, "w")
            setattr(sys, name, io.TextIOWrapper(nowhere, encoding="utf-8", write_through=True))
            continue
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # with PYTHONUNBUFFERED there is no buffer between
        if type(raw) is io.FileIO:
            stream.flush()
            file = Lasting(raw.fileno(), "w", closefd=False)
            lasting = io.TextIOWrapper(
                file if raw is buffer else io.BufferedWriter(file),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, lasting)
