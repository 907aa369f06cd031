"""Batches the second half of the cheap level over several attention calls, on a GPU.

What the cheap level computes from the sums of a call (`cheap_kernels.py`) is a few small products
for each head. Run after every attention call, it would leave most of the GPU idle. So the sums of
calls and of their gradients wait in a workspace. They are finished together when the workspace is
full, when the next step begins, or when the numbers are read.

Shape legend: B batch, H query heads, K key heads, T length, D dims, V vitals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.cheap import MOST_DIMS, per_head
from regard.engines.gpu import HAS_TRITON, device_current

if TYPE_CHECKING:
    from regard.doctor.vitals.cheap_kernels import CallSizes

# Numbers in the workspace of a device (32 MiB). A call with a batch of 8, 8 heads and 64 dims takes
# 4 MiB.
WORKSPACE = 2**23
# Kernels load four numbers at once, so the sums of a call begin at a multiple of this.
ALIGNED = 4


class WaitingCall(NamedTuple):
    """One attention call: where its sums begin, and the tensor (H, V) for its vitals."""

    start: int
    sizes: CallSizes
    out: Tensor


class WaitingGradient(NamedTuple):
    """One gradient: where its sums of squares begin, their shape (B, K, parts), the result (H,)."""

    start: int
    shape: tuple[int, int, int]
    entries: int
    out: Tensor


class Waiting:
    """The calls and gradients of one device that wait to be finished."""

    def __init__(self, device: torch.device) -> None:
        self.sums = workspace(WORKSPACE, device)
        self.used = 0
        self.calls: list[WaitingCall] = []
        self.gradients: list[WaitingGradient] = []
        self.stream: torch.cuda.Stream | None = None  # on which all waiting sums were made

    def add(self, seen: Seen, out: Tensor) -> None:
        """Sum up a call that `kernels_fit`; its vitals are written into `out` (H, V) later."""
        from regard.doctor.vitals.cheap_kernels import add_up, sizes_of

        assert seen.query is not None and seen.key is not None
        sizes = sizes_of(seen.query, seen.key, seen.scale, seen.softcap)
        start = self._take(sizes.layout.numbers)
        with device_current(seen.query.device):
            add_up(seen.query, seen.key, sizes, self.sums[start:])
        self.calls.append(WaitingCall(start, sizes, out))

    def add_gradient(self, gradient: Tensor, out: Tensor) -> None:
        """Sum up a gradient that `squares_fit`; its root mean square is written into `out` (H,)."""
        from regard.doctor.vitals.cheap_kernels import add_up_squares, layout_of_squares

        batch, heads, length, dims = gradient.shape
        _, parts = layout_of_squares(batch, heads, length, dims)
        start = self._take(batch * heads * parts)
        with device_current(gradient.device):
            add_up_squares(gradient, self.sums[start:])
        entries = batch * length * dims
        self.gradients.append(WaitingGradient(start, (batch, heads, parts), entries, out))

    def finish(self) -> None:
        """Finish everything that waits; calls first, since they overwrite whole rows of vitals."""
        calls, gradients, self.calls, self.gradients = self.calls, self.gradients, [], []
        self.used = 0
        if not calls and not gradients:
            return
        # The doctor's own calls must not be captured as calls of the model.
        with torch._C.DisableTorchFunction(), device_current(self.sums.device), torch.no_grad():
            here, there = current_stream(self.sums.device), self.stream
            if here is None or there is None or here == there:
                self._write(calls, gradients)
                return
            here.wait_stream(there)
            self._write(calls, gradients)
            there.wait_stream(here)  # new sums must not overwrite the workspace before it was read

    def _write(self, calls: list[WaitingCall], gradients: list[WaitingGradient]) -> None:
        self._finish_calls(calls)
        self._finish_gradients(gradients)

    def _take(self, numbers: int) -> int:
        """Reserve room for so many numbers; returns where in the workspace it begins."""
        numbers = -(-numbers // ALIGNED) * ALIGNED
        stream = current_stream(self.sums.device)
        # Not `!=` alone: a stream compared with None counts as equal.
        moved = stream is not None and (self.stream is None or stream != self.stream)
        if self.used + numbers > self.sums.numel() or moved:
            self.finish()
            self.stream = stream
        if numbers > self.sums.numel():
            self.sums = workspace(numbers, self.sums.device)
        start, self.used = self.used, self.used + numbers
        return start

    def _finish_calls(self, calls: list[WaitingCall]) -> None:
        from regard.doctor.vitals.cheap_kernels import finish

        for alike in neighbours(calls):
            first = alike[0]
            rows = finish(self.sums[first.start :], len(alike), first.sizes, first.out.shape[1])
            torch._foreach_copy_([call.out for call in alike], list(rows.unbind()))

    def _finish_gradients(self, gradients: list[WaitingGradient]) -> None:
        kinds: dict[object, list[WaitingGradient]] = {}
        for gradient in gradients:
            kinds.setdefault((gradient.shape, gradient.entries), []).append(gradient)
        for alike in kinds.values():
            shape, entries = alike[0].shape, alike[0].entries
            sums = [self.sums[x.start : x.start + math.prod(shape)] for x in alike]
            squares = torch.stack(sums).unflatten(1, shape).sum((1, 3))
            sizes = (squares / entries).sqrt().nan_to_num(torch.inf, torch.inf)
            means = [
                per_head(y, x.out.shape[0], 0) for x, y in zip(alike, sizes.unbind(), strict=True)
            ]
            torch._foreach_copy_([x.out for x in alike], means)


def workspace(numbers: int, device: torch.device) -> Tensor:
    """A tensor for so many numbers, made outside inference mode so that it can be used anywhere."""
    with torch.inference_mode(False):
        return torch.empty(numbers, device=device)


def neighbours(calls: list[WaitingCall]) -> Iterator[list[WaitingCall]]:
    """Groups of calls that one kernel can finish: of one size, and adjacent in the workspace."""
    run: list[WaitingCall] = []
    for call in calls:
        if run and (
            call.sizes != run[0].sizes
            or call.out.shape != run[0].out.shape
            or call.start != run[-1].start + call.sizes.layout.numbers
        ):
            yield run
            run = []
        run.append(call)
    if run:
        yield run


def squares_fit(gradient: Tensor, heads: int) -> bool:
    """Whether `squares_kernel` can read a gradient (B, K, T, D) of a call with so many heads."""
    return (
        gradient.is_cuda
        and gradient.ndim == 4
        and heads % max(gradient.shape[1], 1) == 0
        and HAS_TRITON
        and gradient.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and 0 < gradient.shape[-1] <= MOST_DIMS
        and gradient.numel() > 0
        and gradient.stride(-1) == 1
    )


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream on which a kernel launched now would run; None on the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
