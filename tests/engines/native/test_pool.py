"""The threads of the compiled engines: every block once, at most PyTorch's number, again after a fork."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from regard.engines.native import run


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_block_runs_once(threads):
    seen, who = [], set()

    def work(number):
        time.sleep(0.001)
        seen.append(number)
        who.add(threading.get_ident())

    run(work, 40)
    assert sorted(seen) == list(range(40))
    assert len(who) <= threads
    run(work, 0)


def test_number_of_threads_of_torch_stays(threads):
    found = []
    run(lambda _: found.append(threading.active_count()), 20)
    assert torch.get_num_threads() == threads
    assert len(found) == 20


def test_an_error_is_raised_and_the_pool_goes_on(threads):
    def work(number):
        if number == 3:
            raise ZeroDivisionError(number)

    with pytest.raises(ZeroDivisionError):
        run(work, 10)
    run(lambda _: None, 10)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_pool_is_made_again_after_a_fork(threads):
    run(lambda _: None, 10)
    child = os.fork()
    if child == 0:
        seen = []
        run(seen.append, 10)
        os._exit(0 if sorted(seen) == list(range(10)) else 1)
    deadline = time.monotonic() + 20
    done, status = 0, 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    assert done and os.waitstatus_to_exitcode(status) == 0


def test_a_block_may_run_blocks(threads):
    """A helper that waits for helpers must not wait for itself."""
    seen = []
    run(lambda _: run(seen.append, 4), 4)
    assert len(seen) == 16
