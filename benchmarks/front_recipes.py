"""The table of real tasks, from the committed comparisons of recipes in benchmarks/recipes/.

`regard recipe NAME compare --set SET --full --out benchmarks/recipes` makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.recipes.catalog import RECIPES
from regard.recipes.comparing.results import Compared, ComparedRow
from regard.text import Language

RESULTS = Path(__file__).parent / "recipes"
HEAD = {
    "en": "| task | measured by | best score | without attention | another method |",
    "zh": "| 任务 | 指标 | 最好的打分函数 | 没有注意力 | 其他方法 |",
}
# The public set of each recipe that is best known, and one on which another method wins.
FRONT = (
    "translate-multi30k-de-en",
    "letters-eng_us",
    "graph-cora",
    "molecules-esol",
    "molecules-bbbp",
)
NONE = "No full comparison is committed yet: `regard recipe NAME compare --full` makes one."


def comparisons() -> list[Compared]:
    """All committed comparisons in the order of the catalogue."""
    names = [recipe.name for recipe in RECIPES]
    found = [Compared.load(path) for path in sorted(RESULTS.glob("*.json"))]
    return sorted(found, key=lambda one: (names.index(one.name.partition("-")[0]), one.name))


def on_front_page(found: Compared) -> bool:
    """Whether it is on the front page, which has room for a few lines."""
    return found.name in FRONT


def recipes_table(
    folder: str,
    language: Language = "en",
    shown: Callable[[Compared], bool] = lambda found: True,
) -> str:
    """A row for each comparison that is shown, linked to its page in the folder."""
    known = [found for found in comparisons() if shown(found)]
    if not known:
        return NONE
    rows = [HEAD[language], "|---|---|---|---|---|"]
    for found in known:
        score = best(found, "score")
        beside = (score, control_of(found, score), best(found, "baseline"))
        cells = [
            f"[{found.title.of(language)}]({folder}/{found.name}.md)",
            found.metric.title.of(language) + ("" if found.metric.greater else " ↓"),
            *(cell(found, row, language) for row in beside),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def best(found: Compared, kind: str) -> ComparedRow | None:
    """The best row of a kind; rows are in the order of their quality."""
    return next((row for row in found.rows if row.kind == kind), None)


def control_of(found: Compared, score: ComparedRow | None) -> ComparedRow | None:
    """The best network without attention that has the inputs of a score's: "GATv2 + descriptors", "mean + descriptors"."""
    if score is None:
        return None
    inputs = score.name.partition(" + ")[2]
    controls = [row for row in found.rows if row.kind == "control"]
    return next((row for row in controls if row.name.partition(" + ")[2] == inputs), None)


def cell(found: Compared, row: ComparedRow | None, language: Language) -> str:
    """The quality of a row with its interval, and its name; bold for a score."""
    if row is None:
        return "-"
    value, low, high = (found.metric.show(x) for x in row.value)
    value = f"**{value}**" if row.kind == "score" else value
    return f"{row.title.of(language)} {value} [{low}, {high}]"
