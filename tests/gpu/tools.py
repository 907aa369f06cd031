"""What the tests of bound launches share."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch

from regard.engines.launching import Launch


@contextmanager
def all_ordinary():
    """A launch hook is set, so that every launch goes through Triton."""
    from triton.knobs import runtime

    seen = []
    hook = seen.append
    runtime.launch_enter_hook.add(hook)
    try:
        yield seen
    finally:
        runtime.launch_enter_hook.remove(hook)


@contextmanager
def none_ordinary():
    """A launch that is not bound raises."""

    def refuse(self, *given, **more):
        raise AssertionError(f"{self.kernel} was not bound")

    original, Launch.ordinary = Launch.ordinary, refuse
    try:
        yield
    finally:
        Launch.ordinary = original


def captured(results, warm_ups):
    """A graph of what `results` launches, all of it bound, and what it will have written."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            results()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with none_ordinary(), torch.cuda.graph(graph):
        found = results()
    return graph, found


def equal(found, wanted):
    return all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


def assert_equal_in_threads(cases, results):
    """Each case in a thread and a stream of its own has the results that it has alone."""
    wanted = [results(case) for case in cases]
    wrong = []

    def work(case, expected):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                if not equal(results(case), expected):
                    wrong.append(case)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
