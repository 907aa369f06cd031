"""What a doctor keeps does not grow with the steps: a window of numbers for each call and head."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
import torch

import regard
from regard.doctor.watch import watch

from .watching import HEADS, Attention, Eager, Stack, tokens

WINDOW = 16
SPANS = 20
BYTES = 24  # for each step: one number kept
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
            # What is made once is in some of the spans, and so are the traces of memory that torch
            # frees out of sight (a hundred or so, until their places are used again); a leak is in
            # every span. The first span without growth ends the search.
            grown = growth(lambda: run(count), enough=BYTES * count)
        finally:
            tracemalloc.stop()
        places = {id(x) for x in known}
        assert [x.shape for x in tensors() if id(x) not in places] == []
        assert grown < BYTES * count
        for site in d.chart.order:
            assert site.ring.values.nbytes == WINDOW * HEADS * len(d.vitals) * 4
    assert len(d.chart.order) == 2 and d.steps > count


def growth(span: Callable[[], None], enough: int, spans: int = SPANS) -> int:
    """The least by which one span of work made what is held grow; below ``enough`` none is."""
    least, before = None, ours()
    for _ in range(spans):
        span()
        now = ours()
        least = now - before if least is None else min(least, now - before)
        if least < enough:
            break
        before = now
    return least


def ours() -> int:
    """Bytes that the code of regard has asked for and holds."""
    gc.collect()
    place = regard.__file__.removesuffix("__init__.py") + "*"
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, place)])
    return sum(x.size for x in taken.statistics("filename"))


def test_a_number_kept_at_each_step_is_seen_as_growth():
    kept: list[float] = []

    def leak() -> None:
        for _ in range(1000):
            kept.append(float(len(kept)))

    # As if a file of regard kept it: what others hold is not counted.
    leak.__code__ = leak.__code__.replace(co_filename=regard.__file__)
    tracemalloc.start()
    try:
        assert growth(leak, enough=BYTES * 1000, spans=3) >= BYTES * 1000
    finally:
        tracemalloc.stop()
