"""The mode is off while an optimizer steps, and back afterwards, whatever happens."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack

from regard.doctor.capture.mode import Mode
from regard.doctor.watch import watch

from .watching import Attention, tokens


class Looking(torch.optim.SGD):
    """Counts the doctor's modes that are active in its step; may raise."""

    modes = -1
    fails = False

    def step(self, closure=None):
        self.modes = active()
        if self.fails:
            raise RuntimeError("a bad step")
        return super().step(closure)


def active() -> int:
    return sum(isinstance(mode, Mode) for mode in _get_current_function_mode_stack())


def train(model, optimizer) -> None:
    model(tokens()).sum().backward()
    optimizer.step()


def test_off_in_the_step_and_on_again():
    model = Attention()
    optimizer = Looking(model.parameters(), lr=0.1)
    with watch(model) as d:
        for _ in range(3):
            train(model, optimizer)
            assert optimizer.modes == 0 and active() == 1
    assert d.steps == 3 and len(d.history(d.sites[0]).steps) == 3
    train(model, optimizer)
    assert active() == 0 and d.steps == 3


def test_a_step_that_raises_does_not_end_the_watch():
    model = Attention()
    optimizer = Looking(model.parameters(), lr=0.1)
    optimizer.fails = True
    with watch(model) as d:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a bad step"):
                train(model, optimizer)
    assert len(d.history(d.sites[0]).steps) == 2
    assert active() == 0


def test_two_doctors_and_a_mode_of_another_library():
    model = Attention()
    optimizer = Looking(model.parameters(), lr=0.1)
    with watch(model) as one, watch(model) as two:
        train(model, optimizer)
        assert active() == 2
        with BaseTorchFunctionMode():
            train(model, optimizer)
            assert active() == 2
    assert active() == 0
    assert one.steps == two.steps == 2
