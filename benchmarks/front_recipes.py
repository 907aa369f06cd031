"""The table of real tasks, from the committed comparisons of recipes in benchmarks/recipes/.

`regard recipe NAME compare --set SET --full --out benchmarks/recipes` makes them.
"""

from __future__ import annotations

from pathlib import Path

from regard.recipes.catalog import RECIPES
from regard.recipes.comparing.results import Compared, ComparedRow

RESULTS = Path(__file__).parent / "recipes"
HEAD = "| task | measured by | best score | without attention | another method |"
NONE = "No full comparison is committed yet: `regard recipe NAME compare --full` makes one."


def comparisons() -> list[Compared]:
    """All committed comparisons in the order of the catalogue."""
    names = [recipe.name for recipe in RECIPES]
    found = [Compared.load(path) for path in sorted(RESULTS.glob("*.json"))]
    return sorted(found, key=lambda one: (names.index(one.name.partition("-")[0]), one.name))


def recipes_table() -> str:
    """A row for each comparison, linked to its page in docs/recipes/."""
    known = comparisons()
    if not known:
        return NONE
    rows = [HEAD, "|---|---|---|---|---|"]
    for found in known:
        cells = [
            f"[{found.title.en}](recipes/{found.name}.md)",
            found.metric.title.en + ("" if found.metric.greater else " ↓"),
            *(cell(found, best(found, kind)) for kind in ("score", "control", "baseline")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def best(found: Compared, kind: str) -> ComparedRow | None:
    """The best row of a kind; rows are in the order of their quality."""
    return next((row for row in found.rows if row.kind == kind), None)


def cell(found: Compared, row: ComparedRow | None) -> str:
    """The quality of a row with its interval, and its name; bold for a score."""
    if row is None:
        return "-"
    value, low, high = (found.metric.show(x) for x in row.value)
    name = "" if row.kind == "control" else f"{row.title.en} "
    value = f"**{value}**" if row.kind == "score" else value
    return f"{name}{value} [{low}, {high}]"
