"""The report in a real browser, opened from disk as a reader does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright drives the browser: pip install playwright")
from playwright.sync_api import Browser, Page

from regard.claims import Claim, all_claims
from regard.claims.report import compose, write_report
from regard.claims.report.words import VERDICTS, WORDS, key_of
from regard.claims.running.store import Result, load_results
from regard.figures import canvas
from regard.text import LANGUAGES, Language

from .. import phone

LARGEST = 10_000_000  # bytes
PHONE, DESK = 375, 1440
# Width and height of every figure, by the id of its claim.
FIGURES = """() => Object.fromEntries([...document.querySelectorAll(".claim")].map(claim => {
    const drawing = claim.querySelector(".plate > *");
    const box = drawing ? drawing.getBoundingClientRect() : {width: 0, height: 0};
    return [claim.id, [box.width, box.height]];
}))"""
# Letters of a figure that reach over the edge of its plate, and would be cut off.
CUT = """() => [...document.querySelectorAll(".plate text")].filter(text => {
    const plate = text.closest(".plate"), box = plate.getBoundingClientRect();
    const ink = text.getBoundingClientRect(), left = box.left - plate.scrollLeft;
    return ink.left < left || ink.right > left + plate.scrollWidth
        || ink.top < box.top || ink.bottom > box.bottom;
}).map(text => text.closest(".claim").id + ": " + text.textContent)"""


@dataclass
class Visit:
    """An open report, and what it complained of or asked for."""

    page: Page
    complaints: list[str]
    requests: list[str]

    def shown(self) -> list[str]:
        """Ids of the claims that can be seen."""
        return self.page.locator(".claim:visible").evaluate_all("all => all.map(x => x.id)")


@pytest.fixture(scope="module")
def paths(
    reports: dict[Language, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[Language, Path]:
    """Reports of claims that are made up, by language."""
    folder = tmp_path_factory.mktemp("reports")
    found = {language: folder / f"{language}.html" for language in reports}
    for language, path in found.items():
        path.write_text(reports[language], encoding="utf-8")
    return found


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens a report; at the end nothing was complained of, and nothing asked for but the file."""
    visits: list[Visit] = []

    def opened(path: Path, width: int = DESK, **options: object) -> Visit:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        found = Visit(page, [], [])
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        visits.append(found)
        return found

    yield opened
    for found in visits:
        files = {url.partition("#")[0] for url in found.requests if not url.startswith("data:")}
        assert found.complaints == []
        assert len(files) == 1
        assert files.pop().startswith("file:")
        found.page.close()


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_figure_is_there_and_no_letter_is_cut(
    paths: dict[Language, Path],
    results: dict[str, Result],
    visit: Callable[..., Visit],
    language: Language,
    width: int,
) -> None:
    page = visit(paths[language], width).page
    sizes = page.evaluate(FIGURES)
    assert all(min(sizes[name]) > 150 for name in results)
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.title() == WORDS["title"].of(language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_phone(
    paths: dict[Language, Path], visit: Callable[..., Visit], language: Language
) -> None:
    phone.check(visit(paths[language], phone.WIDTH).page)


def test_letters_fit_that_the_writer_had_no_font_for(
    claims: dict[str, Claim],
    results: dict[str, Result],
    visit: Callable[..., Visit],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(canvas, "CHINESE", [])
    path = tmp_path / "report.html"
    path.write_text(compose({"C1": claims["C1"]}, results, "zh"), encoding="utf-8")
    page = visit(path).page
    assert page.get_by_text("时间（秒）").first.is_visible()
    assert page.evaluate(CUT) == []


def test_every_claim_is_reached_by_its_tile(
    paths: dict[Language, Path], claims: dict[str, Claim], visit: Callable[..., Visit]
) -> None:
    page = visit(paths["en"]).page
    for name in claims:
        page.locator(f'.tile[href="#{name}"]').click()
        # At the top, or as near as the end of the page lets it.
        top, end, high = page.evaluate(
            "name => [document.getElementById(name).getBoundingClientRect().top,"
            " document.documentElement.scrollHeight - scrollY, innerHeight]",
            name,
        )
        assert 0 <= top < 60 or end - high < 2


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_partial_run_opens_on_what_was_run(
    claims: dict[str, Claim],
    results: dict[str, Result],
    visit: Callable[..., Visit],
    width: int,
    tmp_path: Path,
) -> None:
    path = tmp_path / "report.html"
    path.write_text(compose(claims, {"C10": results["C10"]}, "en"), encoding="utf-8")
    there = visit(path, width)
    assert there.shown()[0] == "C10"
    # Its verdict is on the first screen, without scrolling.
    assert there.page.locator("#C10 .badge").bounding_box()["y"] < 900


def test_the_keyboard_is_enough(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    page = visit(paths["en"]).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.className.split(' ')[0]"))
        if "tile" in seen:
            break
    assert {"theme", "chip", "search", "tile"} <= seen
    page.keyboard.press("Enter")
    assert page.url.endswith("#A1")


def test_verdicts_filter(
    paths: dict[Language, Path], results: dict[str, Result], visit: Callable[..., Visit]
) -> None:
    there = visit(paths["en"])
    everything = there.shown()
    for key in VERDICTS:
        there.page.locator(f".chip.{key}").click()
        of_verdict = {n for n, r in results.items() if key_of(r.judgement.verdict) == key}
        assert set(there.shown()) == (of_verdict or {"G1"})
        there.page.locator(f".chip.{key}").click()
    there.page.locator(".chip.fails").click()
    there.page.locator(".chip.undecided").click()
    assert there.shown() == ["C1", "C2"]
    assert "2 of 7" in there.page.locator(".status").inner_text()
    # A link to what is hidden shows it again.
    there.page.locator('.tile[href="#A1"]').click()
    assert there.shown() == everything


def test_search(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    there = visit(paths["zh"])
    search = there.page.locator(".search")
    search.fill("C1 编造")
    assert set(there.shown()) == {"C1", "C10", "C11"}
    assert there.page.locator(".group:visible").count() == 1
    search.fill("没有这样的词")
    assert there.shown() == []
    assert there.page.get_by_text(WORDS["nothing"].zh).is_visible()
    there.page.get_by_role("button", name=WORDS["all"].zh).click()
    assert len(there.shown()) == 7


def test_dark(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = visit(paths["en"], color_scheme="light").page
    dark = visit(paths["en"], color_scheme="dark").page
    bright, dim = light.evaluate(paper), dark.evaluate(paper)
    assert bright != dim
    for page, after in ((light, dim), (dark, bright)):
        page.locator(".theme").click()
        assert page.evaluate(paper) == after
        page.reload()
        assert page.evaluate(paper) == after
    # On paper it is always light.
    light.emulate_media(media="print")
    assert light.evaluate(paper) == "rgb(255, 255, 255)"


def test_copy(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    page = visit(paths["en"], permissions=["clipboard-read", "clipboard-write"]).page
    button = page.locator("#C1 .copy")
    button.click()
    page.get_by_text(WORDS["copied"].en).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == (
        "regard claims run C1 --full --seed 7"
    )


def test_it_reads_without_script(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    there = visit(paths["en"], java_script_enabled=False)
    assert there.page.locator(".claim:visible").count() == 7
    assert not there.page.locator(".search").is_visible()
    assert not there.page.locator(".theme").is_visible()


def test_it_prints(paths: dict[Language, Path], visit: Callable[..., Visit]) -> None:
    page = visit(paths["en"], color_scheme="dark").page
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.slow)])
def test_the_committed_results(
    committed: Path, language: Language, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    path = write_report(committed, language, tmp_path / "report.html")
    assert path.stat().st_size < LARGEST
    there = visit(path)
    assert there.shown() == list(all_claims())
    sizes = there.page.evaluate(FIGURES)
    assert {name for name, size in sizes.items() if min(size) > 150} >= set(load_results(committed))
    assert there.page.evaluate(CUT) == []
    for name in sizes:
        assert there.page.locator(f'.tile[href="#{name}"]').count() == 1
