"""The evaluation of one run of a comparison, and the clock by which rows are charged."""

import time

import pytest
import torch

from regard.measuring.clock import worked


@pytest.fixture
def threads():
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_thread_that_waits_is_not_charged(threads):
    """A row was charged for what other programs did on its core."""
    threads(1)
    begun = worked()
    time.sleep(0.2)
    assert worked() - begun < 0.1


def test_several_threads_are_timed_by_the_wall(threads):
    """The work of one thread says nothing about the others."""
    threads(2)
    begun = worked()
    time.sleep(0.2)
    assert worked() - begun >= 0.2
