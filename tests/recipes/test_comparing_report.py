"""The table, the page and the docs of a comparison; the page in a real browser, on a phone too."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.figures.canvas import LOOKS
from regard.measuring.statistics import Estimate
from regard.recipes.comparing import Compared, compare
from regard.recipes.comparing.page import main, write_page
from regard.recipes.comparing.report import compose, write_report
from regard.recipes.comparing.report.charts import looks
from regard.recipes.comparing.results import Picture
from regard.recipes.comparing.table import filled, level, short_level, show_compared
from regard.recipes.comparing.work import facts_of
from regard.text import LANGUAGES, Text

from .. import phone
from .fake_recipe import comparison, load

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 100"><circle r="40" cx="50" cy="50"/></svg>'


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    data = load("points")
    made = compare(
        comparison(data, True, None),
        tmp_path_factory.mktemp("runs"),
        dataset=facts_of(data),
        full=True,
    )
    note = Text("A note with <b>tags</b> & `code`.", "注释 <b>标签</b>。")
    picture = Picture(Text("What it saw", "它看到的"), SVG)
    return dataclasses.replace(
        made, notes=(note,), pictures=(picture,), failed={"gaussian": "<script>"}
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_table_fits_80_columns(found: Compared, language: str) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    show_compared(found, language, console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(
        "additive" in line and short_level(found, found.row("additive")) in line for line in lines
    )
    assert not any("predict" in line or "预测" in line for line in lines)


def test_interval_that_a_bound_cuts_off_shows_both_sides(found: Compared, tmp_path: Path) -> None:
    """98.0 ±4.2 % of [93.8, 100.0] told of 102.2 %."""
    row = dataclasses.replace(found.row("additive"), value=Estimate(98.0, 93.8, 100.0))
    assert short_level(found, row) == "98.0 +2.0 −4.2"
    assert level(found, row) == "98.0 [93.8, 100.0]"
    even = dataclasses.replace(row, value=Estimate(50.0, 49.0, 51.0))
    assert short_level(found, even) == "50.0 ±1.0"
    rows = tuple(row if one.name == row.name else one for one in found.rows)
    page = write_page(dataclasses.replace(found, rows=rows), tmp_path).read_text()
    assert "| 98.0 [93.8, 100.0] |" in page and "±" not in page


def test_wide_table_has_the_time_of_predicting(found: Compared) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    show_compared(found, "en", console)
    (head,) = [line for line in console.export_text().splitlines() if "predict" in line]
    assert head.split() == [
        "contender",
        "accuracy,",
        "%",
        "to",
        "scaled",
        "dot",
        "train",
        "predict",
        "parameters",
    ]


def test_quick_comparison_says_so(found: Compared) -> None:
    for full in (True, False):
        console = Console(width=80, record=True, file=io.StringIO())
        show_compared(dataclasses.replace(found, full=full), "en", console)
        assert ("This was the quick comparison" in console.export_text()) != full


def test_chinese_fills_its_lines_and_no_line_begins_with_a_comma() -> None:
    text = "区间为针对新种子和新测试数据的 95% 区间；差值的区间，对表中 PyG GATConv 各行同时成立。"
    for width in range(8, 60):
        lines = filled(text, width)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert max(map(cell_len, lines)) <= width + 2, "a comma stays with its character"
        assert not any(line[0] in "，。；" for line in lines)
        assert "GATConv" in "|".join(lines)
    assert len(filled(text, 40)) == 3


def test_rows_that_are_named_after_no_score_differ_in_their_marks(found: Compared) -> None:
    first = found.row("additive")
    rows = [dataclasses.replace(first, name=name) for name in ("luong", "location", "monotonic")]
    other = dataclasses.replace(found, rows=(*found.rows, *rows))
    assert len(set(looks(other).values())) == len(other.rows)
    assert looks(other)["additive"] == looks(found)["additive"]


def test_many_rows_have_marks_of_their_own_whatever_their_ranks(found: Compared) -> None:
    first = found.row("additive")
    scores = ("scaled_dot", "scaled_dot residual", "gat", "gatv2", "additive", "projected_dot")
    rows = [dataclasses.replace(first, name=name) for name in scores]
    rows += [dataclasses.replace(first, name=f"PyG {n}", kind="baseline") for n in range(6)]
    rows += [dataclasses.replace(first, name=f"no {n}", kind="control") for n in range(2)]
    one = looks(dataclasses.replace(found, rows=tuple(rows)))
    assert len(set(one.values())) == len(rows)
    assert one == looks(dataclasses.replace(found, rows=tuple(reversed(rows))))
    assert one["scaled_dot"] == LOOKS["scaled dot"]
    assert one["scaled_dot residual"][0] == LOOKS["scaled dot"][0]


def test_everything_on_the_page_is_escaped(found: Compared) -> None:
    html = compose(found)
    assert "&lt;script&gt;" in html
    assert "<b>tags</b>" not in html
    assert html.count("<script>") == 1
    assert "data:image/svg+xml;base64," in html


def test_docs_are_written_from_summaries(found: Compared, tmp_path: Path) -> None:
    found.save(tmp_path / "in" / "fake-points.json")
    main([str(tmp_path / "in"), str(tmp_path / "out")])
    text = (tmp_path / "out" / "fake-points.md").read_text(encoding="utf-8")
    assert "| additive |" in text
    assert "\\<b>tags" in text
    assert (tmp_path / "out" / "fake-points-forest.svg").is_file()
    again = write_page(found, tmp_path / "again").read_text(encoding="utf-8")
    assert again == text, "the same numbers give the same page"
    with pytest.raises(SystemExit, match="no results"):
        main([str(tmp_path / "out"), str(tmp_path)])


@pytest.mark.parametrize("language", LANGUAGES)
def test_page_in_a_browser(found: Compared, tmp_path: Path, language: str, browser: object) -> None:
    path = write_report(found, tmp_path / "x.html")
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": phone.WIDTH, "height": phone.HEIGHT})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{path.as_uri()}?lang={language}")
    phone.check(page)
    assert page.title() == found.title.of(language)
    assert page.locator(f".plate.{language}:visible").count() == 2
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert complaints == []
    page.close()
