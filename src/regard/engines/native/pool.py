"""Threads that run whole blocks of work, without a barrier between blocks.

PyTorch's own threads meet at the end of every operation, so that one busy core delays them all. Here a thread
takes the next block when it has finished the last one. Blocks are cut by shape alone and write to places of
their own, so results do not depend on the number of threads or on who ran what.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch


class Pool:
    """At most `torch.get_num_threads()` threads, the caller among them; made when first needed."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over without threads: after a fork the child has none of its parent's, and maybe a held lock."""
        self.lock, self.executor, self.helpers = threading.Lock(), None, 0

    def submit(self, work: Callable[[], None], helpers: int, most: int) -> list[Future]:
        """Run `work` on some helpers beside the caller; on fewer where the interpreter is ending."""
        with self.lock:
            if self.executor is None or self.helpers != most:
                if self.executor is not None:
                    self.executor.shutdown(wait=False)
                self.executor, self.helpers = ThreadPoolExecutor(most, "regard"), most
            futures = []
            try:
                for _ in range(helpers):
                    futures.append(self.executor.submit(work))
            except RuntimeError:  # no new threads at interpreter shutdown: the caller does the work
                pass
            return futures


POOL = Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget)


def run(work: Callable[[int], None], count: int) -> None:
    """Call `work(0)` to `work(count - 1)`, each once, on the threads that PyTorch may use.

    `work` gives up the GIL (a kernel does) and calls no PyTorch operation: those would start threads of
    their own from each of these. The first error is raised when all threads have stopped.
    """
    threads = min(torch.get_num_threads(), count)
    left = deque(range(count))

    def drain() -> None:
        try:
            while True:
                try:
                    number = left.popleft()
                except IndexError:
                    return
                work(number)
        except BaseException:
            left.clear()
            raise

    futures = POOL.submit(drain, threads - 1, torch.get_num_threads() - 1) if threads > 1 else []
    try:
        drain()
    finally:
        errors = [future.exception() for future in futures if not future.cancel()]
    for error in errors:
        if error is not None:
            raise error
