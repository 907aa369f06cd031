"""The report as a text: what it says, and that nothing in it is run or reached for."""

from __future__ import annotations

import dataclasses
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard.claims import Claim, ClaimVerdict, Fact, Text
from regard.claims.report import compose, figures, write_report
from regard.claims.report.amounts import row
from regard.claims.report.figures import figure
from regard.claims.report.words import (
    GROUPS,
    HOW,
    MACHINE,
    MEANINGS,
    UNITS,
    VERDICTS,
    WORDS,
    key_of,
)
from regard.claims.running.store import Result
from regard.text import LANGUAGES, Language

# Said when a figure is lost, and at the terminal.
ELSEWHERE = ("no_figure", "verdict")
VOID = {"meta", "link", "input", "img", "br"}


class Elements(HTMLParser):
    """Every element with its attributes, and those that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> Language:
    return request.param


@pytest.fixture(scope="module")
def report(reports: dict[Language, str], language: Language) -> str:
    return reports[language]


@pytest.fixture(scope="module")
def elements(report: str) -> Elements:
    return Elements(report)


def classed(elements: Elements, name: str) -> list[dict[str, str | None]]:
    return [a for _, a in elements.found if name in (a.get("class") or "").split()]


def test_it_is_whole_and_ids_are_unique(elements: Elements) -> None:
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert elements.open == []
    assert len(ids) == len(set(ids))


def test_every_link_has_its_target(elements: Elements) -> None:
    ids = {a["id"] for _, a in elements.found if "id" in a}
    for tag, attributes in elements.found:
        for name in ("href", "xlink:href"):
            if tag != "link" and name in attributes:
                assert attributes[name].removeprefix("#") in ids
        for used in re.findall(r"url\(#(.*?)\)", str(attributes)):
            assert used in ids


def test_it_says_everything_about_a_claim(report: str, language: Language) -> None:
    shown = html.unescape(report)
    for words in (
        Text("The number is above 1.", "该数大于 1。"),
        Text("Choose what you like.", "任选其一。"),
        Text("The same for both.", "两者相同。"),
        Text('A line that is "straight".', "一条“直”线。"),
        Text("Because of <code>this</code>.", "因为 <code>this</code>。"),
        Text("−2.50\N{NO-BREAK SPACE}points", "−2.50\N{NO-BREAK SPACE}个百分点"),
        Text("[0.9961, 1.0084]", "[0.9961, 1.0084]"),
        Text("seed 7", "种子 7"),
        Text("dimension d", "维数 d"),
        *(text for key, text in WORDS.items() if key not in ELSEWHERE),
        *VERDICTS.values(),
        *MEANINGS.values(),
        *HOW,
        MACHINE["cores"],
    ):
        assert words.of(language) in shown
    assert "<code>regard claims run C10 --full --seed 7</code>" in report
    assert "<code>regard claims run G1 --quick</code>" in report


def test_tiles_claims_and_counts_agree(
    elements: Elements, claims: dict[str, Claim], results: dict[str, Result]
) -> None:
    expected = {
        name: key_of(results[name].judgement.verdict if name in results else None)
        for name in claims
    }
    tiles = {a["href"][1:]: a["class"].split()[1] for a in classed(elements, "tile")}
    articles = {a["id"]: a["data-verdict"] for a in classed(elements, "claim")}
    assert list(tiles) == list(claims)
    assert tiles == articles == expected
    assert {a["data-verdict"] for a in classed(elements, "chip")} == set(VERDICTS)
    assert len(classed(elements, "plate")) == len(results)


def test_what_strangers_wrote_is_text(elements: Elements, report: str) -> None:
    assert [tag for tag, _ in elements.found].count("script") == 1
    assert "b" not in {tag for tag, a in elements.found if a}
    assert "<made up>" not in report
    assert not [name for _, a in elements.found for name in a if name.startswith("on")]


def test_nothing_is_fetched(elements: Elements) -> None:
    for _, attributes in elements.found:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert re.match("#|data:", attributes.get(name) or "#")


def test_figures_have_a_name_and_leave_the_page_alone(elements: Elements, report: str) -> None:
    pictures = [a for tag, a in elements.found if tag == "svg" and a.get("role") == "img"]
    assert pictures
    assert all(a["aria-label"] for a in pictures)
    assert report.count("<style") == 1


def test_numbers_of_another_version_cost_the_figure_only(
    claims: dict[str, Claim], results: dict[str, Result], language: Language
) -> None:
    other = {"A1": dataclasses.replace(results["A1"], numbers={"other": 1})}
    report = compose({"A1": claims["A1"]}, other, language)
    assert WORDS["no_figure"].of(language) in report
    assert WORDS["meaning"].of(language) in report


def test_a_drawing_that_is_too_large_is_a_picture(
    claims: dict[str, Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"x": [1, 2], "y": [1.0, 2.0], "name": "n"}
    vectors = figure(claims["A1"], few, "en")
    assert vectors is not None
    assert not vectors.picture
    monkeypatch.setattr(figures, "LARGEST_SVG", len(vectors.markup) - 1)
    found = figure(claims["A1"], few, "en")
    assert found is not None
    assert found.picture
    assert found.width == vectors.width
    assert found.markup.startswith('<img src="data:image/png;base64,')
    assert 'alt="A line that is &#34;straight&#34;."' in found.markup


@pytest.mark.parametrize(
    ("fact", "value", "interval"),
    [
        ((1.00234, 0.9961, 1.0084), "1.0023", "[0.9961, 1.0084]"),
        ((0.5,), "0.5000", ""),
        ((4096.0,), "4,096", ""),
        ((0.0,), "0", ""),
        ((-0.0004, -0.03, 0.03), "0.000", "[−0.030, 0.030]"),
        ((123456.0, 100000.0, 150000.0), "123,456", "[100,000, 150,000]"),
        ((1.25e-7, 1.1e-7, 1.4e-7), "1.25 × 10⁻⁷", "[1.10 × 10⁻⁷, 1.40 × 10⁻⁷]"),
        ((3.2e30,), "3.2 × 10³⁰", ""),
        ((1.0, 1 - 1e-12, 1 + 1e-12), "1.00000", "[1.00000, 1.00000]"),
        ((2.0, float("-inf"), float("inf")), "2", ""),
        ((2.5, None, 3.0), "2.500", ""),
        ((12.345, 12.0, 12.7, "%"), "12.35%", "[12.00, 12.70]"),
        ((1.5, None, None, "ms"), "1.500 ms", ""),
    ],
)
def test_a_number_has_the_digits_that_its_interval_gives(
    fact: tuple, value: str, interval: str
) -> None:
    found = row(Fact(Text("a", "b"), *fact), "en")
    assert (found.value.replace("\N{NO-BREAK SPACE}", " "), found.label) == (value, "a")
    assert found.interval.replace("\N{NO-BREAK SPACE}", " ") == interval


def test_every_word_is_translated() -> None:
    words = [*WORDS.values(), *VERDICTS.values(), *GROUPS.values(), *UNITS.values(), *HOW]
    words += MACHINE.values()
    for text in [*words, *MEANINGS.values()]:
        assert text.en
        assert text.zh
        assert text.en != text.zh
    assert {key_of(verdict) for verdict in [*ClaimVerdict, None]} == set(VERDICTS) == set(MEANINGS)


def test_a_folder_without_results_gives_a_report_of_claims_not_run(tmp_path: Path) -> None:
    path = write_report(tmp_path, "en", tmp_path / "report.html")
    found = Elements(path.read_text(encoding="utf-8"))
    assert {a["data-verdict"] for a in classed(found, "claim")} == {"not_run"}
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_a_partial_run_opens_on_what_was_run(
    claims: dict[str, Claim], results: dict[str, Result], language: Language
) -> None:
    text = compose(claims, {name: results[name] for name in ("C2", "C10")}, language)
    found = Elements(text)
    ids = [a["id"] for a in classed(found, "claim")]
    assert ids == ["C2", "C10", "A1", "A2", "C1", "C11", "G1"]
    tiles = [a["href"] for a in classed(found, "tile")]
    assert tiles == [f"#{name}" for name in ids]
    # The board above the claims has only what was run; the other tiles come after those claims.
    last_run = text.index('<article class="claim" id="C10"')
    assert [text.index(f'href="#{name}" title') > last_run for name in ids] == [False] * 2 + [
        True
    ] * 5
    assert [a["id"] for a in classed(found, "group")] == ["C", "not_run"]


def test_a_complete_run_has_no_part_that_waits(
    claims: dict[str, Claim], results: dict[str, Result]
) -> None:
    ran = {name: claim for name, claim in claims.items() if name in results}
    found = Elements(compose(ran, results, "en"))
    assert [a["id"] for a in classed(found, "group")] == ["A", "C"]
