"""Bars: the performance and accuracy thresholds of our engines, and whether a run met them.

GPU bars are for one NVIDIA H200, bf16, batch 4, 16 heads, length 4096, value dim 64. CPU bars are for
2 cores, fp32, batch 1, 8 heads, length 1024. A time covers all work from the projected a and b to the
output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from regard.bench.candidate import BOTH, FORWARD, PASSES
from regard.bench.results import BenchRow, Measured
from regard.bench.settings import bars as settings_of
from regard.measuring.words import number


class Unmeasured(Exception):
    """A bar has no measured number; the message says why."""


class Term(NamedTuple):
    """One pass of one candidate, as an operand of a ratio."""

    row: BenchRow
    which: str


class Reading(NamedTuple):
    """A measured number and the passes it was computed from.

    Args:
        times: the passes whose times it comes from.
        base: the denominator of the ratio, if that is another candidate.
    """

    number: float
    times: tuple[Term, ...] = ()
    base: Term | None = None


@dataclass(frozen=True)
class EngineBar:
    """One threshold that an engine must meet.

    Args:
        name: what is measured.
        of: the baseline of the ratio.
        hidden: hidden width of the setting that is measured.
        value: computes the measured number; raises `Unmeasured` if it is missing.
        limit: the largest number that passes, or the smallest if `at_most` is False.
        aim: the number we would like to reach.
        unit: printed after the number.
        is_time: the number comes from times, so the same number from eager calls is shown too.
    """

    name: str
    of: str
    hidden: int
    value: Callable[[Measured], Reading]
    limit: float
    aim: str
    at_most: bool = True
    unit: str = "x"
    is_time: bool = True


@dataclass(frozen=True)
class BarOutcome:
    """A bar with its measured number and whether it was met.

    On a GPU `value` comes from device times and `eager` from eager calls. A bar without a value counts
    as missed, and `note` says why.
    """

    name: str
    of: str
    value: float | None
    eager: float | None
    bar: float
    aim: str
    at_most: bool
    unit: str
    met: bool
    note: str

    @property
    def measured_text(self) -> str:
        """The measured number with its unit."""
        return "-" if self.value is None else amount(self.value, self.unit)

    @property
    def eager_text(self) -> str:
        """The number from eager calls with its unit."""
        return "-" if self.eager is None else amount(self.eager, self.unit)

    @property
    def bar_text(self) -> str:
        """The threshold with its direction and unit."""
        return f"{'<=' if self.at_most else '>='} {amount(self.bar, self.unit)}"

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON, including the formatted texts, so that every page prints the same digits."""
        texts = {name: getattr(self, name) for name in ("measured_text", "eager_text", "bar_text")}
        return asdict(self) | texts


def timed(m: Measured, name: str, which: str) -> BenchRow:
    """The row of a candidate; raises `Unmeasured` if it has no time in this pass."""
    row = m.find(name)
    if row is None:
        raise Unmeasured(f"{name} was not asked for")
    if not row.passes[which].timed():
        raise Unmeasured(f"{name}, {which}: {row.passes[which].reason or 'no time'}")
    return row


def fastest(m: Measured, names: Sequence[str], which: str) -> BenchRow:
    """The fastest of the named candidates; raises `Unmeasured` if none has a time."""
    rows, reasons = [], []
    for name in names:
        try:
            rows.append(timed(m, name, which))
        except Unmeasured as none:
            reasons.append(str(none))
    if not rows:
        raise Unmeasured("; ".join(reasons))
    return min(rows, key=lambda row: row.passes[which].times.median)


def slower(m: Measured, name: str, base: str, which: str) -> Reading:
    """Time of one candidate over the time of another."""
    mine, theirs = timed(m, name, which), timed(m, base, which)
    ratio = mine.passes[which].times.over(theirs.passes[which].times).median
    base_term = Term(theirs, which)
    return Reading(ratio, (Term(mine, which), base_term), base_term)


def faster(m: Measured, name: str, bases: Sequence[Sequence[str]], which: str) -> Reading:
    """Speed-up of a candidate over the fastest of several baselines.

    Each group of `bases` must have a time: the fastest baseline is unknown while one is missing.
    """
    mine = timed(m, name, which)
    fast = [fastest(m, group, which) for group in bases]
    base = min(fast, key=lambda row: row.passes[which].times.median)
    ratio = base.passes[which].times.over(mine.passes[which].times).median
    base_term = Term(base, which)
    return Reading(ratio, (Term(mine, which), base_term), base_term)


def memory_over(m: Measured, name: str, base: str) -> Reading:
    """Peak memory of one candidate over that of another, both scaled to all heads, from eager calls."""
    mine, theirs = timed(m, name, BOTH), timed(m, base, BOTH)
    ours, other = mine.passes[BOTH].bytes, theirs.passes[BOTH].bytes
    if ours is None or not other:
        raise Unmeasured(f"no peak memory of {name} or {base}")
    return Reading(ours / other, base=Term(theirs, BOTH))


def tanh_rate(m: Measured, name: str) -> Reading:
    """Number of tanh evaluated per second in the forward pass."""
    row = timed(m, name, FORWARD)
    return Reading(m.setting.numbers / row.passes[FORWARD].times.median, (Term(row, FORWARD),))


def backward_over_forward(m: Measured, name: str) -> Reading:
    """Time of the backward pass over the forward pass, computed round by round."""
    terms = tuple(Term(timed(m, name, which), which) for which in PASSES)
    forward, both = (term.row.passes[term.which].times for term in terms)
    # The backward pass is not timed alone: (both - forward) / forward = both / forward - 1.
    return Reading(both.over(forward).median - 1, terms)


def output_error(m: Measured, name: str) -> Reading:
    """Relative error of the output against fp64, as a bar's reading."""
    error = timed(m, name, FORWARD).passes[FORWARD].error
    if error is None:
        raise Unmeasured(f"no error of {name}")
    return Reading(error)


FAST, MATCHED, EXACT, CUDNN = "sine fast", "sine matched", "exact", "dot cuDNN"
DETERMINISTIC = "exact determ."
COMPILED, EAGER = ("textbook compiled",), ("textbook eager", "textbook linear")
TEXTBOOKS = (EAGER, COMPILED)
DOT, TAUGHT = "cuDNN dot d=64", "the faster textbook (eager or compiled)"
GPU_BARS = (
    EngineBar("fast, hidden 16, forward", DOT, 16, lambda m: slower(m, FAST, CUDNN, FORWARD), 2.2, "1.6x"),
    EngineBar("fast, hidden 16, forward+backward", DOT, 16, lambda m: slower(m, FAST, CUDNN, BOTH), 3.2, "2x"),
    EngineBar("matched, hidden 16, forward+backward", DOT, 16, lambda m: slower(m, MATCHED, CUDNN, BOTH), 4.2, "3x"),
    EngineBar(
        "speed-up of fast, hidden 16, forward", TAUGHT,
        16, lambda m: faster(m, FAST, TEXTBOOKS, FORWARD), 25, "35x", at_most=False,
    ),
    EngineBar(
        "speed-up of fast, hidden 16, forward+backward", TAUGHT,
        16, lambda m: faster(m, FAST, TEXTBOOKS, BOTH), 60, "120x", at_most=False,
    ),
    EngineBar(
        "peak memory, forward+backward, both sides for each head", "the compiled textbook",
        16, lambda m: memory_over(m, FAST, COMPILED[0]), 1 / 40, "O(L)", is_time=False,
    ),
    EngineBar(
        "exact pairwise tanh, hidden 64, forward, tanh/s", "",
        64, lambda m: tanh_rate(m, EXACT), 3.5e12, "4.2e12/s", at_most=False, unit="/s",
    ),
    EngineBar(
        "exact pairwise backward, hidden 64, atomics", "its forward",
        64, lambda m: backward_over_forward(m, EXACT), 3, "2.5x",
    ),
    EngineBar(
        "exact pairwise backward, hidden 64, deterministic", "its forward",
        64, lambda m: backward_over_forward(m, DETERMINISTIC), 5, "4x",
    ),
)  # fmt: skip
# All CPU bars are for the matched series: the error of the fast series (4.5e-3) exceeds the CPU's
# error bar (3e-3), so its speed would not count.
CPU_BARS = (
    EngineBar(
        "speed-up of sine matched, hidden 16, forward", "the compiled textbook",
        16, lambda m: faster(m, MATCHED, [COMPILED], FORWARD), 2.5, "", at_most=False,
    ),
    EngineBar(
        "speed-up of sine matched, hidden 16, forward", "the faster eager textbook",
        16, lambda m: faster(m, MATCHED, [EAGER], FORWARD), 8, "", at_most=False,
    ),
    EngineBar(
        "speed-up of sine matched, hidden 16, forward+backward", "the faster eager textbook",
        16, lambda m: faster(m, MATCHED, [EAGER], BOTH), 8, "", at_most=False,
    ),
    EngineBar(
        "error of the output: sine matched, hidden 16", "",
        16, lambda m: output_error(m, MATCHED), 3e-3, "", unit="", is_time=False,
    ),
)  # fmt: skip


def needed(hidden: int) -> tuple[str, ...]:
    """Names of the candidates that the GPU bars of a hidden width compare."""
    if hidden == 64:
        return (EXACT, DETERMINISTIC, CUDNN)
    return (FAST, MATCHED, EXACT, CUDNN, *EAGER, *COMPILED)


def amount(value: float, unit: str) -> str:
    """A number formatted with its unit: `2.2x`, `1/40` for a small ratio, `3.5e12/s`, `3e-3`."""
    if unit == "x":
        return f"1/{1 / value:.0f}" if value < 0.1 else f"{number(value)}x"
    return f"{value:.1e}".replace("e+", "e").replace("e-0", "e-") + unit


def outcomes(measured: Iterable[Measured], device: str) -> list[BarOutcome]:
    """The outcome of every bar of the device; empty if none of their settings was measured."""
    by_key = {m.setting.key: m for m in measured}
    found = {s.hidden: by_key[s.key] for s in settings_of(device) if s.key in by_key}
    bars = GPU_BARS if device == "cuda" else CPU_BARS
    return [outcome(bar, found.get(bar.hidden)) for bar in bars] if found else []


def outcome(bar: EngineBar, measured: Measured | None) -> BarOutcome:
    """The outcome of one bar; a bar without a number is missed."""
    value, eager, met = None, None, False
    try:
        if measured is None:
            raise Unmeasured("its setting was not measured")
        found = bar.value(measured)
        value, note = found.number, noted(found, measured)
        met = value <= bar.limit if bar.at_most else value >= bar.limit
        # The eager number is only shown beside the bar, so a missing one does not fail it.
        with contextlib.suppress(Unmeasured):
            eager = bar.value(measured.as_eager()).number if bar.is_time else None
    except Unmeasured as none:
        note = f"not measured: {none}"
    return BarOutcome(
        bar.name, bar.of, value, eager, bar.limit, bar.aim, bar.at_most, bar.unit, met, note
    )


def noted(found: Reading, m: Measured) -> str:
    """A note naming the textbook baseline, the heads it was scaled from, and uncaptured passes."""
    notes = []
    if found.base is not None and found.base.row.family == "textbook":
        row, which = found.base
        heads = row.passes[which].scaled_from
        scaled = f", scaled from {heads} of {m.setting.all_heads} heads" if heads else ""
        notes.append(f"{row.name}{scaled}")
    eager = [x.row.name for x in found.times if x.row.passes[x.which].captured is False]
    if eager:
        notes.append(f"not captured, so eager time: {', '.join(dict.fromkeys(eager))}")
    return "; ".join(notes)
