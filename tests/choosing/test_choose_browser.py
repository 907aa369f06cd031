"""The report in a real browser: the answer first, all else folded, two languages, nothing complains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard.choosing.report import compose, save_verdict
from regard.choosing.rules import RULES
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.embedded import hijack, lookup, nonlinear
from regard.choosing.training.verdict import Outcome, Verdict
from regard.text import Text

from .. import phone
from .conftest import Finished

STRANGE = "<img src=x onerror=\"document.title='strange'\">$x^"
LARGEST = 1_000_000  # bytes


def renamed(verdict: Verdict) -> Verdict:
    """The same, but an alternative wins whose name would be markup, and a formula that is none."""
    rows = []
    for row in verdict.rows:
        strange = row.candidate.name == "cosine"
        label = Text(STRANGE, STRANGE) if strange else row.candidate.label
        rows.append(replace(row, candidate=replace(row.candidate, label=label)))
    return replace(verdict, rows=rows, outcome=Outcome.ALTERNATIVE, winner="cosine")


@pytest.fixture(scope="module")
def report(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three tasks: one as it is, one with strange names, one without a verdict."""
    answers = [
        Answer(hijack(), replace(finished.verdict, asked_by="command")),
        Answer(replace(lookup(), name=STRANGE, zh=""), renamed(finished.verdict)),
        Answer(nonlinear(), reason=f"it broke: {STRANGE}"),
    ]
    path = tmp_path_factory.mktemp("report") / "choose.html"
    path.write_text(compose(Suite(answers)), encoding="utf-8")
    assert path.stat().st_size < LARGEST
    return path


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; afterwards nothing may have been said, nothing fetched, nothing run over."""
    said: list[str] = []
    contexts = []

    def opened(address: str, width: int = 1280, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda one: one.url.startswith("file:") or said.append(one.url))
        tab.goto(address)
        return tab

    yield opened
    for context in contexts:
        for tab in context.pages:
            width = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width[0] <= width[1], "the page must not scroll sideways"
        context.close()
    assert said == []


def seen(tab: Any, selector: str) -> bool:
    """Whether it stands on the screen now."""
    box = tab.locator(selector).first.bounding_box()
    return box is not None and 0 <= box["y"] < tab.viewport_size["height"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_first_screen_answers(visit, report: Path, width: int, scheme: str) -> None:
    tab = visit(report.as_uri(), width, color_scheme=scheme)
    assert tab.title() == "Which attention score?"
    said = tab.locator(".board .recommend:visible").all_inner_texts()
    assert [text.split()[0] for text in said] == ["Change", "Not", "There"]
    assert tab.locator(".answers tbody tr").count() == 3
    assert seen(tab, ".recommend") and seen(tab, ".answers tbody tr:last-child")
    assert tab.evaluate("document.documentElement.scrollHeight") < 2500
    assert tab.locator("details[open]").count() == 0
    tab.locator(".theme").click()
    expected = {"light": "dark", "dark": "light"}[scheme]
    assert tab.locator("html").get_attribute("data-theme") == expected
    tab.locator(".open-all").click()
    assert tab.locator("details:not([open])").count() == 0


def test_strange_names_are_text(visit, report: Path) -> None:
    tab = visit(report.as_uri())
    tab.locator(".open-all").click()
    assert tab.locator("img").count() == 0 and tab.title() == "Which attention score?"
    assert tab.locator("#task-2 .lines th", has_text=STRANGE).count() == 2  # candidates and vitals
    assert tab.locator("#task-2 .plate text", has_text=STRANGE).count() == 2  # both drawings
    assert STRANGE in tab.locator("#task-3 .recommend").inner_text()


def test_links_unfold_what_they_lead_to(visit, report: Path) -> None:
    tab = visit(report.as_uri())
    tab.locator(".answers a").first.click()
    assert tab.locator("#task-1").get_attribute("open") is not None
    tab.locator("#task-1 .bears a").first.click()
    assert tab.locator("#claims").get_attribute("open") is not None
    assert seen(tab, ".claim:target") and tab.locator(".claim:target").count() == 1
    lost = """() => [...document.querySelectorAll('a')].map(a => a.getAttribute("href"))
        .filter(to => !to.startsWith("#") || !document.getElementById(to.slice(1)))"""
    assert tab.evaluate(lost) == []
    again = visit(report.as_uri() + "#claim-G1")
    assert seen(again, "#claim-G1")


def test_two_languages(visit, report: Path) -> None:
    tab = visit(report.as_uri() + "#task-1")
    assert tab.locator("#task-1 .plate text:visible", has_text="training steps").count() == 1
    tab.locator(".language").click()
    assert tab.title() == "用哪种注意力打分函数？" and "?lang=zh#task-1" in tab.url
    assert tab.locator(".plate text:visible", has_text="训练步数").count() == 1
    assert tab.locator(".en:visible").count() == 0
    assert tab.locator(".language").inner_text() == "English"
    tab.reload()
    assert tab.locator("html").get_attribute("lang") == "zh-Hans"
    assert tab.locator("#task-1 .zh:visible").count() > 30
    other = visit(report.as_uri(), locale="zh-CN")
    assert other.locator("h1").inner_text() == "用哪种注意力打分函数？"
    spoken = visit(report.as_uri() + "?lang=en", locale="zh-CN")
    assert spoken.locator(".zh:visible").count() == 0


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_phone(visit, report: Path, language: str) -> None:
    tab = visit(f"{report.as_uri()}?lang={language}", phone.WIDTH)
    tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    phone.check(tab)


def test_the_switch_to_chinese_needs_no_chinese_font(visit, report: Path) -> None:
    """Without such a font its label was two boxes."""
    tab = visit(report.as_uri())
    switch = tab.locator(".language")
    assert switch.inner_text().strip() == "ZH"
    drawn = switch.locator(".hanzi").bounding_box()
    assert drawn["width"] > 20 and drawn["height"] > 10
    switch.click()
    assert not switch.locator(".hanzi").is_visible()
    assert switch.inner_text().strip() == "English"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_wide_tables_say_that_they_go_on(visit, report: Path, scheme: str) -> None:
    """The table of candidates ran off the edge without a hint, and options broke behind `--`."""
    tab = visit(report.as_uri() + "#task-1", 390, color_scheme=scheme)
    frame, name = tab.locator("#task-1 .scroll").first, tab.locator("#task-1 .lines tbody th").first
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth + 50")
    assert "local" in frame.evaluate("frame => getComputedStyle(frame).backgroundAttachment")
    place = name.bounding_box()["x"]
    frame.evaluate("frame => { frame.scrollLeft = 200; }")
    assert name.bounding_box()["x"] == pytest.approx(place, abs=1)
    lines = "parts => parts.map(part => part.getClientRects().length)"
    assert set(tab.locator(".option:visible").evaluate_all(lines)) == {1}


def test_every_part_of_the_issue_is_there(visit, finished: Finished, tmp_path: Path) -> None:
    """One comparison from Python: open, with charts, vitals of every finalist, claims, rules, code."""
    path = save_verdict(finished.verdict, tmp_path / "new" / "one.html")
    tab = visit(path.as_uri(), permissions=["clipboard-read", "clipboard-write"])
    assert tab.locator(".answers").count() == 0 and seen(tab, ".board .copy")
    assert tab.locator("#task-1[open] .plate svg[role=img]").count() == 2
    for drawing in tab.locator(".plate svg").all():
        assert tab.locator(f"#{drawing.get_attribute('aria-labelledby')}").inner_text()
    final = [row for row in finished.verdict.rows if row.status == "final"]
    rows = tab.locator(".vitals tbody tr")
    assert rows.count() == len(final) >= 4
    entropy = [row.vitals["vitals"]["entropy"] for row in final]
    assert [float(x) for x in rows.locator("td:nth-child(3)").all_inner_texts()] == pytest.approx(
        entropy, rel=0.06
    )
    assert tab.locator("#task-1 .bears li").count() >= 3
    tab.locator("#rules summary").focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#rules tbody tr:visible").count() == len(RULES)
    tab.locator(".copy").click()
    code = tab.evaluate("navigator.clipboard.readText()")
    assert f"{finished.verdict.code}\n# regard.attention(" in code
    assert tab.locator(".copy").inner_text() == "Copied"
    exec(compile(code, "pasted", "exec"), {})  # noqa: S102 - it runs as it stands


def test_on_paper_everything_is_open(visit, report: Path) -> None:
    tab = visit(report.as_uri(), color_scheme="dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")  # as the browser does
    assert tab.locator("details:not([open])").count() == 0
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details[open]").count() == 0
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(30, 35, 41)"


def test_without_scripts_it_is_english_and_folds(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(report.as_uri())
    assert tab.locator(".zh:visible").count() == 0 and tab.locator(".theme:visible").count() == 0
    tab.locator("#task-1 summary").click()
    assert tab.locator("#task-1 .vitals").is_visible()
    context.close()
