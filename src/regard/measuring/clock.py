"""Time by the wall, as a caller feels it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch


def clock(run: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Seconds for one of `calls` calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        return (time.perf_counter() - began) / calls
    finally:
        if collecting:
            gc.enable()


def synchronize(device: torch.device) -> None:
    """Wait for a device that runs beside the program."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
