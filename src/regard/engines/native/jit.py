"""`kernel`, the decorator that compiles a function with numba, and `absent`, why that is not possible here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

INSTALL = "pip install 'regard[cpu]'"
# Sums may be reordered and divisions replaced by products with a reciprocal. NaN and Inf keep their
# meaning: a row that sees one must show it.
FASTMATH = frozenset({"contract", "reassoc", "nsz", "arcp"})
LOG = logging.getLogger("regard.engines")


# Found out without importing numba, which takes about 0.5 s.
INSTALLED = importlib.util.find_spec("numba") is not None
NOT_INSTALLED = f"numba is not installed: {INSTALL}"


def absent(load: bool = True) -> str | None:
    """Why kernels cannot run on this machine, None if they can; without `load` numba is not imported."""
    if not INSTALLED:
        return NOT_INSTALLED
    # A tracer of torch.compile cannot import; the kernels do when they run.
    return None if not load or torch.compiler.is_compiling() else fails()


@functools.cache
def fails() -> str | None:
    """Why numba cannot be used although it is installed, None if it can."""
    try:
        numba: Any = importlib.import_module("numba")
    except (
        Exception
    ) as error:  # numba raises ImportError for a NumPy that is too new, others elsewhere
        return f"numba does not load ({type(error).__name__}: {error}): {INSTALL}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set: kernels would run as Python, a thousand times slower"
    return None


def kernel(
    function: Callable | None = None, *, fastmath: frozenset[str] = FASTMATH, inline: bool = False
) -> Any:
    """Decorator: compile a function with numba when it is first called, and keep the code on disk.

    It runs without the GIL, a division by 0 gives Inf or NaN, and no index is checked. A kernel may
    call kernels of its own folder and no others: a change there compiles it again.

    Args:
        function: the function.
        fastmath: the liberties that LLVM may take in it, by their names in LLVM.
        inline: copy the function into its callers; such a function has no code of its own to keep.
    """
    if function is None:
        return functools.partial(kernel, fastmath=fastmath, inline=inline)
    numba: Any = importlib.import_module("numba")
    listen()
    compiled = numba.njit(
        nogil=True, error_model="numpy", fastmath=set(fastmath), forceinline=inline
    )(function)
    OURS.append(compiled)
    if not inline:
        keep_on_disk(compiled)
    return compiled


OURS: list[Any] = []
ANNOUNCED: list[bool] = []


def keep_on_disk(compiled: Any) -> None:
    """Let numba keep the code of a kernel in a folder; without one each process compiles again.

    `cache=True` raises where neither `__pycache__` nor a cache folder of the user can be written, as in a
    read-only install without a home, and again where a folder is full when the code is saved.
    """
    caching: Any = importlib.import_module("numba.core.caching")

    class Cache(caching.FunctionCache):
        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                LOG.info("the compiled kernels cannot be kept: %s", error)

    try:
        cache = Cache(compiled.py_func)
        # numba compares the function's own file alone, but a kernel calls kernels of other files.
        cache._cache_file._source_stamp = stamp_of(
            Path(compiled.py_func.__code__.co_filename).parent
        )
        compiled._cache = cache
    except (RuntimeError, OSError) as error:
        LOG.info("compiled kernels are not kept: %s", error)


@functools.cache
def stamp_of(folder: Path) -> tuple[tuple[str, float, int], ...]:
    """Names, dates and sizes of the sources in a folder."""
    found = ((path.name, path.stat()) for path in sorted(folder.glob("*.py")))
    return tuple((name, stat.st_mtime, stat.st_size) for name, stat in found)


def folder() -> str | None:
    """The folder that compiled kernels are kept in, None if there is none."""
    paths = (getattr(compiled._cache, "cache_path", None) for compiled in OURS)
    return next((path for path in paths if path), None)


@functools.cache
def listen() -> None:
    """Announce the first compilation of a process: it takes seconds, and looks like a hang without a word."""
    events: Any = importlib.import_module("numba.core.event")

    class Announcer(events.Listener):
        def on_start(self, event: Any) -> None:
            if any(event.data["dispatcher"] is compiled for compiled in OURS):
                announce()

        def on_end(self, event: Any) -> None:
            pass

    events.register("numba:compile", Announcer())


def announce() -> None:
    """Say once that kernels are being compiled. Without handlers, Python's logging prints it on stderr."""
    # numba compiles under a lock, so that no other thread is here.
    if ANNOUNCED:
        return
    ANNOUNCED.append(True)
    path = folder()
    kept = f"kept in {path}" if path else "not kept: no cache folder can be written"
    LOG.warning("compiling kernels for this CPU, some seconds, once (%s)", kept)
