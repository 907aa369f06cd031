"""What a doctor keeps does not grow with the steps: a window of numbers for each call and head."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
import torch

import regard
from regard.doctor.watch import watch

from .watching import HEADS, Attention, Eager, Stack, tokens

WINDOW = 16
SLOW = pytest.mark.slow


def tensors() -> list[torch.Tensor]:
    gc.collect()
    return [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]


@pytest.mark.parametrize(
    ("level", "backward", "count"),
    [
        ("sampled", True, 50),
        pytest.param("cheap", True, 400, marks=SLOW),
        pytest.param("sampled", False, 400, marks=SLOW),
        pytest.param("exact", True, 400, marks=SLOW),
    ],
)
def test_many_steps_keep_what_a_few_do(level, backward, count):
    model, x = Stack(Attention(), Eager()), tokens(1, 4)

    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.set_grad_enabled(backward):
                out = model(x)
            if backward:
                out.sum().backward()
                model.zero_grad()

    with watch(model, level, window=WINDOW, every=50) as d:
        run(2 * WINDOW)
        known = tensors()  # held, so that no other tensor gets the place of one of them
        tracemalloc.start()
        try:
            held = [ours()]
            for _ in range(3):
                run(count)
                held.append(ours())
            # What is made once is in one of the spans; what leaks is in all.
            grown = min(after - before for before, after in itertools.pairwise(held))
        finally:
            tracemalloc.stop()
        places = {id(x) for x in known}
        assert [x.shape for x in tensors() if id(x) not in places] == []
        # Less than the smallest object for each step; torch itself leaves about ten bytes of it.
        assert grown < 32 * count
        for site in d.chart.order:
            assert site.ring.values.nbytes == WINDOW * HEADS * len(d.vitals) * 4
    assert len(d.chart.order) == 2 and d.steps > count


def ours() -> int:
    """Bytes that the code of regard has asked for and holds."""
    gc.collect()
    place = regard.__file__.removesuffix("__init__.py") + "*"
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, place)])
    return sum(x.size for x in taken.statistics("filename"))
