"""The sentence that ends a run: whether additive attention is affordable on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from regard.bench.bars import EXACT, MATCHED
from regard.bench.candidate import BOTH
from regard.bench.results import Measured
from regard.measuring.words import number

# Times over dot product attention, forward and backward. Where attention is a third of a training step,
# four times its time doubles the step, and ten times quadruples it.
AFFORDABLE, TOO_MUCH = 4.0, 10.0
# Not the fast series: the error of its gradients is 5%, too much to train with.
TRAINS = ("as chosen", MATCHED, EXACT)


def answer(settings: Iterable[Measured]) -> str:
    """One sentence: affordable or not by the longest self-attention, with the price of a decoder's step."""
    found = list(settings)
    squares = [(m, prices(m)) for m in found if m.setting.name.startswith("square")]
    squares = [(m, times) for m, times in squares if times]
    if not squares:
        return (
            "Whether additive attention is affordable here is open: no self-attention (--suite square) has "
            "a time of ours and one of dot product attention, forward and backward."
        )
    # The narrowest of the longest: wider layers are asked for by those who need them.
    m, times = min(squares, key=lambda one: (-one[0].setting.len_q, one[0].setting.hidden))
    best = min(times, key=lambda name: times[name])
    word = "affordable here"
    if times[best] > AFFORDABLE:
        word = "affordable here at a price" if times[best] <= TOO_MUCH else "not affordable here"
    exact = f"; {EXACT} {number(times[EXACT])}x" if EXACT in times and best != EXACT else ""
    size = f"{m.setting.len_q} x {m.setting.len_k}, hidden {m.setting.hidden}"
    return (
        f"Additive attention is {word}: at {size}, forward and backward take {number(times[best])}x the "
        f"time of dot product attention ({best}{exact}){decoder(found)}; up to {AFFORDABLE:.0f}x counts as "
        f"affordable, above {TOO_MUCH:.0f}x as not."
    )


def decoder(settings: Iterable[Measured]) -> str:
    """What a step of the first other setting takes, in ms: dot of width 64 is no yardstick for its width."""
    for m in settings:
        if m.setting.name.startswith("square") or m.setting.loop:
            continue
        rows = [row for name in TRAINS if (row := m.find(name)) is not None]
        timed = [row.passes[BOTH].times.median for row in rows if row.passes[BOTH].timed()]
        if timed:
            return f", and {m.setting.name} takes {number(1e3 * min(timed))} ms a step"
    return ""


def prices(m: Measured) -> dict[str, float]:
    """Times of ours that train over that of dot product attention, forward and backward, by engine."""
    rows = [row for name in TRAINS if (row := m.find(name)) is not None]
    ratios = {row.name: m.ratio(row, m.yardstick(BOTH), BOTH) for row in rows}
    return {name: found.median for name, found in ratios.items() if found is not None}
