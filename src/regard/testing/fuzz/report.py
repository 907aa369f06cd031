"""The report of a run as text: settings, counts by engine, module and dtype, and every failure."""

from __future__ import annotations

import platform

import torch

import regard
from regard.engines.plan import ENGINES
from regard.testing.cases import DTYPES
from regard.testing.fuzz.tally import State

# A run of a million calls has at least this many of each engine, module and dtype.
ENOUGH = 20_000


def as_text(state: State) -> str:
    """The report: settings, counts by engine, module and dtype, and every failure."""
    tally = state.tally
    whole = "finished" if tally.calls >= state.calls else "not finished, resume it with --resume"
    lines = [
        "Calls of regard against fp64 textbooks (python -m regard.testing.fuzz)",
        "",
        f"seed      {state.seed}",
        f"calls     {tally.calls:,} of {state.calls:,}, {whole}",
        f"wrong     {tally.wrong:,}",
        f"fewest    {_fewest(tally.counts)}",
        f"time      {state.seconds / 60:,.1f} min",
        f"versions  regard {regard.__version__}; {', then '.join(state.versions)}",
    ]
    for kind in ("engine", "module", "refusals"):
        lines += _table(kind, tally.counts)
        lines += _not_run(tally.counts) if kind == "engine" else []
    for kind in ("dtype", "score", "calls"):
        lines += _counts(kind, tally.counts)
    for failure in tally.failures:
        lines += ["", f"case {failure['case']}: {failure['call']}"]
        lines += [f"  {problem}" for problem in failure["problems"]]
        if failure["smaller"] != failure["call"]:
            lines += [f"  smaller: {failure['smaller']}"]
            lines += [f"    {problem}" for problem in failure["still"]]
    return "\n".join(lines) + "\n"


def version_here() -> str:
    """Python, torch and the kind of machine of this process."""
    return f"Python {platform.python_version()}, torch {torch.__version__} ({platform.machine()})"


def _of_kind(kind: str, counts: dict[str, int]) -> dict[str, int]:
    """The counts of one kind by name, the largest first."""
    found = {
        tag.removeprefix(f"{kind} "): n for tag, n in counts.items() if tag.startswith(f"{kind} ")
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _counts(kind: str, counts: dict[str, int]) -> list[str]:
    """One line for each name of a kind."""
    found = _of_kind(kind, counts)
    word = f"{kind} " if kind == "calls" else ""
    lines = [f"  {word + name:32} {n:>10,}" for name, n in found.items()]
    return ["", f"{kind}:", *lines] if lines else []


def _table(kind: str, counts: dict[str, int]) -> list[str]:
    """A line for each engine or module: calls in all, and in each dtype."""
    found = _of_kind(kind, counts)
    if not found:
        return []
    heading = f"{kind + ':':34} {'all':>10}" + "".join(f"{name:>10}" for name in DTYPES)
    lines = ["", heading]
    for name, n in found.items():
        by_dtype = "".join(f"{counts.get(f'in {dtype} {kind} {name}', 0):>10,}" for dtype in DTYPES)
        lines.append(f"  {name:32} {n:>10,}{by_dtype}")
    return lines


def _not_run(counts: dict[str, int]) -> list[str]:
    """Engines that no call of the run named, and where they can run."""
    missing = [engine.name for engine in ENGINES if f"engine {engine.name}" not in counts]
    return [
        f"  {name:32} not run: on a GPU by --engine {name} --device cuda, on a CPU in Triton's interpreter by "
        f"TRITON_INTERPRET=1 and --engine {name}"
        if name == "triton"
        else f"  {name:32} not run"
        for name in missing
    ]


def _fewest(counts: dict[str, int]) -> str:
    """The engine, module and dtype with the fewest calls, beside the number that a million calls should bring."""
    least = []
    for kind in ("engine", "module", "dtype"):
        found = _of_kind(kind, counts)
        if found:
            name = min(found, key=lambda name: found[name])
            least.append(f"{kind} {name} {found[name]:,}")
    return f"{', '.join(least)}; {ENOUGH:,} of each are asked of a million"
