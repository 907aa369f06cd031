"""The answer of `regard choose --shape` in plain sentences, from the measured costs."""

from __future__ import annotations

from regard.choosing.cost.results import CostReport, CostRow
from regard.measuring.memory import show
from regard.measuring.words import listed, seconds

QUESTION = "Which score should you use at this shape?"
CAVEAT = (
    "This is about cost alone. Nothing was trained: which score learns your task best is a "
    "question for your data."
)

# A machine counts as busy above this load per core, or above this relative spread of the times of the
# median candidate.
BUSY_LOAD, BUSY_SPREAD = 1.25, 0.15


def answer(report: CostReport) -> list[str]:
    """The answer as a list of sentences, at least one."""
    base = report.baseline
    if base is None or not base.timed():
        why = "" if base is None or not base.reason else f": {base.reason}"
        return [f"Nothing can be said, since scaled dot has no time{why}."]
    found = [start(report, base), cheaper(report, base), unlike_widths(report)]
    found += [additive(report, base), textbook(report), busy(report), CAVEAT]
    return [sentence for sentence in found if sentence]


def start(report: CostReport, base: CostRow) -> str:
    """The default score and its cost."""
    s = report.shape
    how = f"Start with {base.candidate.label}"
    if base.candidate.key.startswith("projected"):
        how += f", that is scaled dot on learned projections {s.width} wide"
    return f"{how}: {cost(base)} forward and backward."


def cheaper(report: CostReport, base: CostRow) -> str:
    """The scores that are faster than the default by more than noise."""
    rows = [row for row in report.rows if row is not base and row.timed()]
    ratios = {row.candidate.label: row.both.over(base.both) for row in rows}
    # Clearly faster: in three quarters of the rounds the ratio is at most 0.98.
    beating = {name: r.median for name, r in ratios.items() if r.quartiles[1] < 0.98}
    if not beating:
        return "Nothing measured here is faster by more than the noise."
    order = sorted(beating, key=lambda label: beating[label])[:3]
    found = listed([f"{label} ({beating[label]:.2f} times its time)" for label in order])
    return f"Faster by more than the noise: {found}."


def unlike_widths(report: CostReport) -> str:
    """The scores that cannot be used because query and key widths differ."""
    names = [row.candidate.label for row in report.of("refused")]
    if not names:
        return ""
    s = report.shape
    return (
        f"{listed(names).capitalize()} cannot compare {s.d_q} numbers with {s.d_k}: they need "
        "projections in front."
    )


def additive(report: CostReport, base: CostRow) -> str:
    """The cost of the additive score, and when it is worth it."""
    row = report.find("additive")
    if row is None or not row.timed():
        return ""
    ratio = row.both.over(base.both).median
    return (
        "Take additive where no inner product expresses the match: here it costs "
        f"{times(ratio)} the time of {base.candidate.label}, {cost(row)}."
    )


def textbook(report: CostReport) -> str:
    """Time and memory of textbook additive attention over ours."""
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


def busy(report: CostReport) -> str:
    """A warning if the machine was too busy for reliable times; empty otherwise."""
    load, cores = report.machine.get("load"), report.machine.get("cores") or 1
    spreads = sorted(r.both.spread for r in report.rows if r.timed() and r.both.spread is not None)
    # The CPU's load says nothing about a GPU; there only the spread of the times counts.
    if report.machine["device"] == "cpu" and load is not None and load > BUSY_LOAD * cores:
        why = f"load {load:g} on {cores} cores when this began"
    elif spreads and spreads[len(spreads) // 2] > BUSY_SPREAD:
        why = f"times varied by ±{100 * spreads[len(spreads) // 2]:.0f}%"
    else:
        return ""
    return f"This machine was busy ({why}): take the times as rough, and repeat when it is idle."


def cost(row: CostRow) -> str:
    """Time and peak memory of a forward and backward pass, as text."""
    return f"{seconds(row.both.median)}, {show(row.both_memory or 0)}"


def times(ratio: float) -> str:
    """A ratio as text: `2.3 times`."""
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
