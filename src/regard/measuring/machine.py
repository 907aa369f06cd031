"""What the numbers are measured on, and how many of its threads to use."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import regard


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
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
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def calm_threads() -> int:
    """As many threads as run together well at this moment; at most torch's own number.

    Threads wait for one another after every operation. Where other programs hold the cores, each
    wait lasts a time slice, and two threads can be fifty times slower than one: such a number
    would say nothing of the scores.
    """
    most = torch.get_num_threads()
    counts = sorted({max(most >> shift, 1) for shift in range(most.bit_length())}, reverse=True)
    try:
        bursts = [(count, _probe(count)) for _ in range(2) for count in counts]
    finally:
        torch.set_num_threads(most)
    # The slower of two bursts: others come and go. More threads need only be no worse, since they
    # gain more on larger work.
    taken = {count: max(x for n, x in bursts if n == count) for count in counts}
    return next(count for count in counts if taken[count] <= 1.1 * min(taken.values()))


def _probe(count: int) -> float:
    """Seconds for a burst of operations of the size that engines work in."""
    torch.set_num_threads(count)
    x = torch.zeros(2**17)
    x.exp()
    began = time.perf_counter()
    for _ in range(200):
        x.exp()
    return time.perf_counter() - began
