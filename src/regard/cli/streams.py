"""Standard streams whose reader may leave: `regard claims | head -1` is no mistake.

Once the reader has closed the pipe, output is dropped and the command goes on: its files are written, and its status
says how the work went.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class Lasting(io.FileIO):
    """A file that does not mind when the other end of its pipe is closed."""

    def write(self, data: Any, /) -> int:
        """Count everything as written once the reader is gone; report a full disk once."""
        if not len(data):  # click asks by it what a stream takes, and keeps the answer to itself
            return 0
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            return len(data)


def outlive_readers() -> None:
    """Replace the standard streams, where they are Python's own; one that was closed is nowhere."""
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
