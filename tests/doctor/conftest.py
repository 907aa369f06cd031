"""What tests of the doctor ask for where a compiler or FlexAttention is at work."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention as flex_module


@pytest.fixture
def fresh_dynamo():
    """No graph of another test, and none left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def with_backward(monkeypatch):
    """What torch has a backward for on a GPU alone runs on a CPU too, uncompiled."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
