"""docs/recipes/*.md from summaries: `python -m regard.recipes.comparing.page benchmarks/recipes docs/recipes`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.figures.canvas import drawn
from regard.measuring.files import write_atomic
from regard.measuring.words import seconds
from regard.page.markdown import marked, table, with_fonts
from regard.recipes.comparing.report import extra_names, number_text
from regard.recipes.comparing.report.charts import CHARTS
from regard.recipes.comparing.report.words import CAPTIONS, WORDS
from regard.recipes.comparing.results import Compared, ResultError, is_number
from regard.recipes.comparing.sentences import how, sentences
from regard.recipes.comparing.table import KINDS, change, level, parameters

USAGE = "usage: python -m regard.recipes.comparing.page RESULTS_FOLDER docs/recipes"


def main(arguments: Sequence[str]) -> None:
    """Write a page and two figures for every summary in a folder."""
    if len(arguments) != 2:
        raise SystemExit(USAGE)
    folder, pages = map(Path, arguments)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(
            f"error: no results in {folder}: `regard recipe NAME compare --full` makes them"
        )
    try:
        for path in paths:
            write_page(Compared.load(path), pages)
    except (OSError, ResultError) as error:
        raise SystemExit(f"error: {error}") from None


def write_page(found: Compared, folder: Path) -> Path:
    """Write the page of a comparison and its figures, and return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in CHARTS.items():
        svg = drawn(lambda canvas, draw=chart: draw(found, canvas), "en", ["svg"])["svg"]
        path = folder / f"{found.name}-{name}.svg"
        write_atomic(path, with_fonts(svg))
    path = folder / f"{found.name}.md"
    write_atomic(path, ("\n\n".join(parts(found)) + "\n").encode())
    return path


def parts(found: Compared) -> Iterator[str]:
    """The paragraphs of the page."""
    yield f"# {marked(found.title.en)}"
    yield "<!-- Written by `python -m regard.recipes.comparing.page`: change the results, not this page. -->"
    first, *rest = sentences(found)
    yield f"**{marked(first.en)}**"
    yield from (marked(one.en) for one in rest)
    yield how(found).en + ("" if found.full else f" {WORDS['quick'].en}")
    for name in CHARTS:
        yield f"![{CAPTIONS[name].en}]({found.name}-{name}.svg)"
        yield CAPTIONS[name].en
    reference = found.row(found.reference).title.en
    head = ["contender", "kind", found.metric.title.en, f"difference to {reference}", "training", "predicting",
            "parameters", "chosen setting"]  # fmt: skip
    rows = [
        [marked(row.title.en), KINDS[row.kind].en, level(found, row), change(found, row).en,
         seconds(row.train_seconds), seconds(row.predict_seconds), parameters(row),
         setting(row.setting)]
        for row in found.rows
    ]  # fmt: skip
    yield table(head, rows)
    yield from other_numbers(found)
    told = [
        f"- **{marked(row.title.en)}**: {marked(row.about.en)}" for row in found.rows if row.about
    ]
    if told:
        yield f"## {WORDS['about'].en}"
        yield "\n".join(told)
    yield f"## {WORDS['how'].en}"
    yield from (marked(note.en) for note in found.notes)
    yield from facts(found)


def other_numbers(found: Compared) -> Iterator[str]:
    """A table of the further numbers, and of each seed's value."""
    names = extra_names(found)
    yield f"## {WORDS['more'].en}"
    seeds = [f"seed {seed}" for seed in found.seeds]
    rows = [
        [marked(row.title.en), *map(found.metric.show, row.values)]
        + [number_text(row.extra[k]) if is_number(row.extra.get(k)) else "-" for k in names]
        for row in found.rows
    ]
    yield table(["contender", *seeds, *(marked(k.replace("_", " ")) for k in names)], rows)


def facts(found: Compared) -> Iterator[str]:
    """Data and machine."""
    data = found.dataset
    if "title" in data:
        licence = f" Licence: {marked(str(data['licence']))}." if data.get("licence") else ""
        yield f"Data: {marked(data['title']['en'])}. {WORDS[data['origin']].en}{licence}"
    known = [[str(k), marked(str(v))] for k, v in found.machine.items() if k != "load"]
    if known:
        yield table(["", ""], known)


def setting(given: Mapping[str, Any]) -> str:
    """A setting as code."""
    return ", ".join(f"`{k}={v}`" for k, v in given.items()) or "-"


if __name__ == "__main__":
    main(sys.argv[1:])
