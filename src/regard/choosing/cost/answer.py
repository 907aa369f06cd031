"""The answer in plain words, from what was measured."""

from __future__ import annotations

from regard.choosing.cost.results import Report, Row
from regard.measuring.memory import show
from regard.measuring.words import listed, seconds

QUESTION = "Which score should you use at this shape?"
CAVEAT = (
    "This is about cost alone. Nothing was trained: which score learns your task best is a "
    "question for your data."
)

# A machine is called busy above this load for each core, or this spread of the middle candidate.
BUSY_LOAD, BUSY_SPREAD = 1.25, 0.15


def answer(report: Report) -> list[str]:
    """A few sentences, one idea each; always at least one."""
    base = report.baseline
    if base is None or not base.timed():
        why = "" if base is None or not base.reason else f": {base.reason}"
        return [f"Nothing can be said, since scaled dot has no time{why}."]
    found = [start(report, base), cheaper(report, base), unlike_widths(report)]
    found += [additive(report, base), textbook(report), busy(report), CAVEAT]
    return [sentence for sentence in found if sentence]


def start(report: Report, base: Row) -> str:
    """The default."""
    s = report.shape
    how = f"Start with {base.candidate.label}"
    if base.candidate.key.startswith("projected"):
        how += f", that is scaled dot on learned projections {s.width} wide"
    return f"{how}: {cost(base)} forward and backward."


def cheaper(report: Report, base: Row) -> str:
    """What beats the default by more than the noise, if anything does."""
    rows = [row for row in report.rows if row is not base and row.timed()]
    ratios = {row.candidate.label: row.both.over(base.both) for row in rows}
    beating = {name: r.median for name, r in ratios.items() if r.quartiles[1] < 0.98}
    if not beating:
        return "Nothing measured here is faster by more than the noise."
    order = sorted(beating, key=lambda label: beating[label])[:3]
    found = listed([f"{label} ({beating[label]:.2f} times its time)" for label in order])
    return f"Faster by more than the noise: {found}."


def unlike_widths(report: Report) -> str:
    """What cannot be used at all."""
    names = [row.candidate.label for row in report.of("refused")]
    if not names:
        return ""
    s = report.shape
    return (
        f"{listed(names).capitalize()} cannot compare {s.d_q} numbers with {s.d_k}: they need "
        "projections in front."
    )


def additive(report: Report, base: Row) -> str:
    """The price of a learned judge."""
    row = report.find("additive")
    if row is None or not row.timed():
        return ""
    ratio = row.both.over(base.both).median
    return (
        "Take additive where no inner product expresses the match: here it costs "
        f"{times(ratio)} the time of {base.candidate.label}, {cost(row)}."
    )


def textbook(report: Report) -> str:
    """Ours beside the formula as it is taught."""
    ours, theirs = report.find("additive"), report.find("textbook_additive")
    if ours is None or theirs is None or not ours.timed():
        return ""
    if theirs.status == "skipped":
        return "Written as the textbook has it, additive was not run: see what was skipped."
    if not theirs.timed() or not ours.both_memory or not theirs.both_memory:
        return ""
    time, forward = theirs.both.over(ours.both).median, theirs.forward.over(ours.forward).median
    space = theirs.both_memory / ours.both_memory
    return (
        f"Written as the textbook has it, additive takes {times(forward)} the time forward, "
        f"{times(time)} forward and backward, and {times(space)} the memory "
        f"({show(theirs.both_memory)})."
    )


def busy(report: Report) -> str:
    """A warning where the times are not to be trusted."""
    load, cores = report.machine.get("load"), report.machine.get("cores") or 1
    spreads = sorted(r.both.spread for r in report.rows if r.timed() and r.both.spread is not None)
    if report.machine["device"] == "cpu" and load is not None and load > BUSY_LOAD * cores:
        why = f"load {load:g} on {cores} cores when this began"
    elif spreads and spreads[len(spreads) // 2] > BUSY_SPREAD:
        why = f"times varied by ±{100 * spreads[len(spreads) // 2]:.0f}%"
    else:
        return ""
    return f"This machine was busy ({why}): take the times as rough, and repeat when it is idle."


def cost(row: Row) -> str:
    """Time and memory of a forward and backward pass."""
    return f"{seconds(row.both.median)}, {show(row.both_memory or 0)}"


def times(ratio: float) -> str:
    """A factor in words: `2.3 times`."""
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
