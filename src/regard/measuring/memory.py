"""Memory: how much is free, and the peak that a call allocates."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

# Fraction of the free memory that one measurement may use; the rest is left to other programs.
SHARE = 0.8
# Bytes assumed to be free when the system does not report any.
UNKNOWN = 2 * 2**30
CPU_NOTE = (
    "Peak memory on the CPU: every allocation and release as PyTorch's profiler records it, above "
    "the inputs and parameters, gradients included."
)
CUDA_NOTE = (
    "Peak memory on the GPU: torch.cuda.max_memory_allocated, above the inputs and parameters, "
    "gradients included."
)


def available(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # PyTorch keeps freed blocks; the driver counts them as used, but the next allocation can have them.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    limits = [x for x in (_system(), _container()) if x is not None]
    return min(limits) if limits else UNKNOWN


def _system() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _container() -> int | None:
    """Bytes left below the container's memory limit; cached file pages count as free."""
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(limit - used + int(stat.get("inactive_file", 0)), 0)
    return None


def peak(run: Callable[[], Any], device: torch.device) -> int:
    """Bytes allocated at the peak of `run`, above those allocated before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # PyTorch has no counter of CPU allocations; its profiler records every allocation and release.
    profiler = torch.autograd.profiler.profile(profile_memory=True)
    with _quiet():
        profiler.__enter__()
    try:
        run()
    finally:
        with _quiet():
            profiler.__exit__(None, None, None)
    return _peak_of_events(profiler)


def _peak_of_events(profiler: Any) -> int:
    changes = []
    waiting = list(profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        kind, detail = event.typed
        if kind == torch._C._profiler._EventType.Allocation and str(detail.device) == "cpu":
            changes.append((event.start_time_ns, detail.alloc_size))
    level = highest = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        level += change
        highest = max(highest, level)
    return highest


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the profiler's C++ part prints to stderr when it starts and stops.

    Setting its log level here would have no effect: it is read once, when torch is imported. The file
    descriptor itself is redirected, because `redirect_stderr` only reaches Python code.
    """
    try:
        kept = os.dup(2)
    except OSError:  # the process has no stderr, so nothing is printed either
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def show(count: float) -> str:
    """A number of bytes for a reader, in powers of 1024: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
