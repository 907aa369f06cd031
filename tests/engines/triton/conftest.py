"""Binds common calls at their first use: few tests make a call twice."""

from __future__ import annotations

import pytest

from regard.engines import launching


@pytest.fixture(autouse=True)
def bound_at_first_use(monkeypatch):
    monkeypatch.setattr(launching, "SIGHTS", 1)
