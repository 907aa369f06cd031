from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No compiled code and no counters from another test."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
