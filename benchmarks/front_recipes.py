"""The table of real tasks, from the committed comparisons of recipes in benchmarks/recipes/.

`regard recipe NAME compare --set SET --full --out benchmarks/recipes` makes them.
"""

from __future__ import annotations

from pathlib import Path

from regard.recipes.catalog import RECIPES
from regard.recipes.comparing.results import Compared, ComparedRow

RESULTS = Path(__file__).parent / "recipes"
HEADS = {
    "en": "| task | measured by | best score | without attention | another method |",
    "zh": "| 任务 | 指标 | 最好的打分函数 | 无注意力 | 其他方法 |",
}
PAGES = "docs/recipes/"


def comparisons(public: bool = False) -> list[Compared]:
    """All committed comparisons in the order of the catalogue, or those of public sets alone."""
    names = [recipe.name for recipe in RECIPES]
    found = [Compared.load(path) for path in sorted(RESULTS.glob("*.json"))]
    found.sort(key=lambda one: (names.index(one.name.partition("-")[0]), one.name))
    return [one for one in found if not public or one.dataset["origin"] == "public"]


def recipes_table(language: str, pages: str = PAGES, public: bool = False) -> str:
    """A row for each comparison; `pages` is where its page lies, as seen from the file with the table."""
    rows = [HEADS[language], "|---|---|---|---|---|"]
    for found in comparisons(public):
        title = found.title.en if language == "en" else found.title.zh
        cells = [
            f"[{title}]({pages}{found.name}.md)",
            found.metric.title.of(language) + ("" if found.metric.greater else " ↓"),
            *(cell(found, best(found, kind), language) for kind in ("score", "control", "baseline")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def best(found: Compared, kind: str) -> ComparedRow | None:
    """The best row of a kind; rows are in the order of their quality."""
    return next((row for row in found.rows if row.kind == kind), None)


def cell(found: Compared, row: ComparedRow | None, language: str) -> str:
    """The quality of a row with its interval, and its name."""
    if row is None:
        return "-"
    value, low, high = (found.metric.show(x) for x in row.value)
    name = "" if row.kind == "control" else f"{row.title.of(language)} "
    return f"{name}**{value}** [{low}, {high}]" if row.kind == "score" else f"{name}{value} [{low}, {high}]"
