"""Recording calls as CUDA graphs: a replay measures the GPU's own time, almost without Python overhead."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import torch

from regard.measuring.failures import first_line

# Calls before a recording. A first call may compile, load libraries or fill caches, none of which can be
# recorded.
WARM_UPS = 2


class CaptureError(RuntimeError):
    """A call could not be recorded; the message says why."""


class Recorder:
    """Records calls on one GPU.

    All recordings share one memory pool, which grows with the largest of them instead of their sum. That
    is safe because they are replayed one after the other and the output of a replay is never read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.broken = ""

    def record(self, run: Callable[[], object]) -> Callable[[], None]:
        """Record `run` and return a function that replays it.

        The recording's memory is released together with the returned function.

        Raises:
            CaptureError: the call cannot be recorded. The recorder stays usable for other calls unless
                `recover` failed too; then every later call raises this error with the reason.
        """
        if self.broken:
            raise CaptureError(self.broken)
        graph = torch.cuda.CUDAGraph()
        try:
            self.capture(graph, run)
            graph.replay()
            torch.cuda.synchronize(self.device)
        except Exception as error:  # the call or the end of the recording may raise anything
            self.recover()
            raise CaptureError(first_line(error)) from None
        return graph.replay

    def capture(self, graph: torch.cuda.CUDAGraph, run: Callable[[], object]) -> None:
        """Warm up on a side stream, as PyTorch requires, then record there."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        # This outer context restores the current stream even when the end of the recording raises.
        with torch.cuda.stream(self.stream), no_collection():
            for _ in range(WARM_UPS):
                run()
            # Autograd runs a backward in its own thread, where libraries may allocate memory. The mode
            # "global" would fail the recording for that; "thread_local" looks at this thread alone.
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
                # The end of the recording only reports that something failed; the call's error says what.
                raise failure or error from None
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def recover(self) -> None:
        """Clean up after a failed recording: close it, take a fresh pool, and test that recording works.

        When the end of a recording raises, PyTorch's allocator still takes the recording to be running
        and refuses to free memory.
        """
        index = self.device.index or 0
        close = getattr(torch._C, "_cuda_endAllocateToPool", None)
        with contextlib.suppress(Exception):
            if close is not None:  # raises when no recording was open at the time of the failure
                close(index, self.pool)
        with contextlib.suppress(Exception):  # the first synchronize reports the old failure again
            torch.cuda.synchronize(self.device)
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            self.pool = torch.cuda.graph_pool_handle()
            probe = torch.zeros(1, device=self.device)
            self.capture(torch.cuda.CUDAGraph(), probe.zero_)
        except Exception as error:  # this process cannot record on the device any more
            self.broken = f"an earlier failure left no way to record ({first_line(error)})"


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: destroying an older graph during a recording would break the recording."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
