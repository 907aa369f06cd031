"""Here plans of common calls are made at once: few tests make a call twice."""

from __future__ import annotations

import pytest

from regard.engines import launching


@pytest.fixture(autouse=True)
def plans_at_first_sight(monkeypatch):
    monkeypatch.setattr(launching, "SIGHTS", 1)
