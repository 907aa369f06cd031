"""A call recorded as a CUDA graph: replayed, it costs the GPU's time and next to none of Python's."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import torch

from regard.measuring.failures import first_line

# Compilers, libraries and caches must be past their first calls before a recording.
WARM_UPS = 2


class CaptureError(RuntimeError):
    """A call could not be recorded; the message says why."""


class Recorder:
    """Records calls on one GPU.

    All recordings share one memory pool, so that it grows with the largest of them and not with
    their sum: they are replayed one after the other, and the output of a replay is never read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.broken = ""

    def record(self, run: Callable[[], object]) -> Callable[[], None]:
        """A function that replays `run`; its memory is free again when the function is.

        Raises:
            CaptureError: it cannot be recorded. Others still can.
        """
        if self.broken:
            raise CaptureError(self.broken)
        graph = torch.cuda.CUDAGraph()
        try:
            self.capture(graph, run)
            graph.replay()
            torch.cuda.synchronize(self.device)
        except Exception as error:  # whatever a call, or the end of a recording, may raise
            self.recover()
            raise CaptureError(first_line(error)) from None
        return graph.replay

    def capture(self, graph: torch.cuda.CUDAGraph, run: Callable[[], object]) -> None:
        """Warm up beside the main stream, as PyTorch asks, then record."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        # The outer context gives the stream back also where the end of a recording raises.
        with torch.cuda.stream(self.stream), no_collection():
            for _ in range(WARM_UPS):
                run()
            # A backward runs in a thread of its own, where libraries may allocate: "global" would take
            # that for a mistake.
            failure = None
            try:
                with torch.cuda.graph(
                    graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
                ):
                    try:
                        run()
                    except Exception as error:
                        failure = error
                        raise
            except Exception as error:
                # The end of a recording says only that something failed before; the call says what.
                raise failure or error from None
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def recover(self) -> None:
        """After a failure: end what it left open, take a fresh pool, and see that recording works.

        Where the end of a recording raises, PyTorch's allocator goes on believing that it is under
        way, and refuses to free memory.
        """
        index = self.device.index or 0
        close = getattr(torch._C, "_cuda_endAllocateToPool", None)
        with contextlib.suppress(Exception):
            if close is not None:  # raises where the failure came before or after the recording
                close(index, self.pool)
        with contextlib.suppress(Exception):  # tells of the failure once more
            torch.cuda.synchronize(self.device)
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            self.pool = torch.cuda.graph_pool_handle()
            probe = torch.zeros(1, device=self.device)
            self.capture(torch.cuda.CUDAGraph(), probe.zero_)
        except Exception as error:  # the device is of no use for recordings any more
            self.broken = f"an earlier failure left no way to record ({first_line(error)})"


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, which could destroy an older graph in the middle of a recording."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
