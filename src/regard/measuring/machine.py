"""A description of the machine that measures, and the number of threads to measure with."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import regard


def machine(device: torch.device) -> dict[str, Any]:
    """Hardware, load and versions, as JSON values to store beside the numbers."""
    on_gpu = device.type == "cuda"
    return {
        "device": device.type,
        "name": torch.cuda.get_device_name(device) if on_gpu else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "regard": regard.__version__,
    }


def processor() -> str:
    """The processor's model name, or the architecture if the system does not report a model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def calm_threads() -> int:
    """The largest number of threads that runs well under the current load; at most torch's own number.

    Threads wait for one another after every operation. When other programs occupy the cores, each wait
    lasts a scheduler time slice, and two threads can be 50 times slower than one. A time measured that way
    would describe the load, not the score.
    """
    most = torch.get_num_threads()
    counts = sorted({max(most >> shift, 1) for shift in range(most.bit_length())}, reverse=True)
    try:
        bursts = [(count, _probe(count)) for _ in range(2) for count in counts]
    finally:
        torch.set_num_threads(most)
    # The slower of two bursts counts, because other programs come and go. A larger number of threads wins
    # if it is at most 10% slower here: it gains more on larger work than this probe.
    taken = {count: max(x for n, x in bursts if n == count) for count in counts}
    return next(count for count in counts if taken[count] <= 1.1 * min(taken.values()))


def _probe(count: int) -> float:
    """Seconds for 200 elementwise operations on 2**17 numbers, about the size engines work in."""
    torch.set_num_threads(count)
    x = torch.zeros(2**17)
    x.exp()  # the first call starts the threads
    began = time.perf_counter()
    for _ in range(200):
        x.exp()
    return time.perf_counter() - began
