"""How advice names an option: as an argument of Python, `seeds=8`, or of the command, `--seeds 8`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Asker = Literal["python", "command"]
ASKER: ContextVar[Asker] = ContextVar("asker", default="python")


@contextmanager
def asked_by(asker: Asker) -> Iterator[None]:
    """Advice that is given inside speaks to this asker."""
    before = ASKER.set(asker)
    try:
        yield
    finally:
        ASKER.reset(before)


def named(name: str, value: object = "", asker: Asker | None = None) -> str:
    """An option as the user writes it; that of the command takes no `True`."""
    if (asker or ASKER.get()) == "python":
        return f"{name}={value}"
    return f"--{name}" if value in ("", True) else f"--{name} {value}"


def anew() -> str:
    """How a run begins anew, whatever the storage holds."""
    return "resume=False" if ASKER.get() == "python" else "no --resume"
