"""The report in a real browser, opened from disk as a reader does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("playwright", reason="playwright drives the browser: pip install playwright")
from playwright.sync_api import Browser, Page

from regard.doctor.findings.finding import Severity
from regard.doctor.report import Record, record_of
from regard.doctor.report.html import write_html
from regard.doctor.vitals import VITALS
from regard.doctor.watch import watch

from .. import phone
from .reporting import HOSTILE, constant, examined, finding, renamed, values_record
from .watching import Stack

PHONE, DESK = 390, 1280
PAPER = "getComputedStyle(document.body).backgroundColor"
DRAWING = "document.querySelector('.heat-grid canvas').toDataURL()"
# The colour at a place of the heat map.
PIXEL = """([x, y]) => [...document.querySelector(".heat-grid canvas").getContext("2d")
    .getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]"""


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a report; at the end nothing was complained of, and nothing asked for but the file."""
    pages: list[Page] = []
    complaints: list[str] = []
    requests: list[str] = []

    def opened(record: Record, width: int = DESK, **options: object) -> Page:
        path = write_html(record, tmp_path / "out.html")
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opened
    assert complaints == []
    assert {url.partition("#")[0] for url in requests if not url.startswith("data:")} == {
        (tmp_path / "out.html").as_uri()
    }
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def record() -> Record:
    findings = [finding(), finding("layers.1", Severity.WARNING, heads=())]
    return record_of(examined(layers=3), findings)


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_hostile_names_are_text_and_fit(
    record: Record, visit: Callable[..., Page], width: int
) -> None:
    page = visit(renamed(record), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".finding").count() == len(HOSTILE)
    assert HOSTILE[0] in page.locator(".finding .place").first.inner_text()
    assert "\\u202eevil" in page.locator(".finding .place").nth(1).inner_text()
    assert page.locator("script").count() == 2


def test_a_phone(record: Record, visit: Callable[..., Page]) -> None:
    phone.check(visit(record, PHONE))


def test_findings_say_what_why_and_what_helps(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record)
    assert page.locator("h1").inner_text() == "1 failure and 1 warning found."
    card = page.locator(".finding").first
    for part in ("The logits grow", "layers.0", "head 1 of 2 · since step 3 · 90% sure", "152",
                 "above 100", "Kimi K2", "qk-norm bounded logits"):  # fmt: skip
        assert part in card.inner_text()
    page.locator(".chip.warning").click()
    assert page.locator(".finding").count() == 1
    page.locator(".chip.warning").click()
    assert page.locator(".finding").count() == 2
    page.locator(".finding").nth(1).get_by_text("Show in the charts").click()
    assert page.locator("#pick-site").input_value() == "layers.1"


def test_what_is_copied_runs(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record, permissions=["clipboard-read", "clipboard-write"])
    page.locator(".copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")

    class Told:
        def findings(self) -> list:
            return [finding("layers.1"), finding()]

        def treat(self, found, remedy, batch) -> None:
            assert (found, remedy, batch) == (finding(), "qk-norm", "batch")
            Told.treated = True

    exec(code, {"d": Told(), "batch": "batch"})  # noqa: S102 - our own
    assert Told.treated


def test_the_heat_map_follows_keys_and_clicks(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record)
    canvas = page.locator(".heat-grid canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.locator("#pick-site").input_value() == "layers.2"
    assert page.locator("#pick-head").input_value() == "0"
    assert "head 0" in page.locator("#heat-readout").inner_text()
    canvas.click(position={"x": 5, "y": 5})
    assert page.locator("#pick-site").input_value() == "layers.0"
    assert page.locator("#course .trace").count() == 2
    page.locator("#pick-vital").select_option("entropy")
    assert "entropy of the weights" in page.locator("#meaning").inner_text()
    assert page.locator("#spread rect").count() > 0


def test_the_table_sorts_and_filters(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record)
    first = page.locator("#table tbody tr").first
    page.locator("#rows").select_option("heads")
    assert page.locator("#table tbody tr").count() == 6
    column = 3 + [v["name"] for v in record.vitals].index("logit_bound")
    page.locator("#table thead").get_by_role("button", name="logit_bound").click()
    cells = page.locator(f"#table tbody td:nth-child({column})").all_inner_texts()
    assert cells == sorted(cells, key=float, reverse=True)
    page.locator("#filter").fill("layers.2")
    assert page.locator("#table tbody tr").count() == 2
    assert "layers.2" in first.inner_text()
    page.locator("#filter").fill("nothing of that name")
    assert page.locator(".count").inner_text() == "0 rows"


def test_the_keyboard_is_enough(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record)
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.className || document.activeElement.id || document.activeElement.tagName"))  # fmt: skip
    kinds = {word for name in seen for word in name.split()}
    assert {"skip", "theme", "tile", "chip", "copy", "pick-vital", "CANVAS", "filter"} <= kinds


def test_dark_light_and_paper(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record, color_scheme="light")
    light, heat = page.evaluate(PAPER), page.evaluate(DRAWING)
    page.locator(".theme").click()
    assert page.evaluate(PAPER) != light
    assert page.evaluate(DRAWING) != heat
    page.reload()
    assert page.evaluate(PAPER) != light
    page.emulate_media(media="print")
    assert page.evaluate(PAPER) == "rgb(255, 255, 255)"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize(
    "small",
    [
        record_of(watch(Stack()), []),
        values_record(constant(3, 2, torch.nan)),
        values_record(constant(3, 2, torch.inf), (finding(heads=(0, 1)),)),
        values_record(constant(1, 1, 0.5)),
        values_record(constant(2, 3, -2.0), (finding("a site that is not there"),)),
    ],
    ids=["no sites", "nothing measured", "infinite", "one number", "negative"],
)
def test_edges(small: Record, visit: Callable[..., Page]) -> None:
    page = visit(small, PHONE)
    measured = any(site.last for site in small.sites)
    assert page.locator("#vitals").is_visible() == measured
    assert page.locator("#calls").is_visible() == bool(small.sites)
    if not small.findings:
        assert page.locator(".quiet").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_a_large_model_is_quick(visit: Callable[..., Page]) -> None:
    d = watch(Stack(), window=2)
    for i in range(96):
        site = d.chart.site_of(f"model.layers.{i}.self_attn", "sdpa")
        d.chart.step = 1
        d.chart._put(site, torch.rand(128, len(VITALS)))
    page = visit(record_of(d, []), PHONE)
    assert page.locator(".tile").count() == 96
    assert page.evaluate(PIXEL, [383, 1240])[3] == 255  # the last cell is drawn
    spent = page.evaluate("""() => { const from = performance.now();
        document.querySelector(".heat-grid canvas").focus();
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"}));
        return performance.now() - from; }""")
    assert spent < 2000
    page.locator("#rows").select_option("heads")
    assert "100 of 12288 rows" in page.locator(".count").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_it_reads_without_script(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record, java_script_enabled=False)
    assert "qk-norm: bounded logits" in page.locator(".plain-report").inner_text()
    assert not page.locator(".theme").is_visible()


def attacked(names: tuple[str, str]) -> dict:
    """What a probe of two calls might have found."""
    inputs = {"logit_max": [1.0, 4.0, 2000.0], "entropy": [0.9, 0.5, 0.01], "broken": [0, 0, 7]}
    return {
        "key_factors": [1.0, 100.0],
        "keys": [
            {"site": name, "captured": [0.0, 0.625], "c50": half, "moved": [0.0, "inf"]}
            for name, half in zip(names, (7.92, "inf"), strict=True)
        ],
        "input_factors": [0.3, 1.0, 100.0],
        "scaled": names[0],
        "inputs": [{"site": name, **inputs, "range": held} for name, held in zip(names, ([0.3, 1.0], None), strict=True)],
        "positions": {
            "how": "rolled", "shifts": [1, 16], "moved": [0.25, None],
            "sites": [{"site": name, "changed": [0.5, None]} for name in names],
        },
        "notes": [names[1]],
    }  # fmt: skip


def test_what_a_probe_found(record: Record, visit: Callable[..., Page]) -> None:
    page = visit(record._replace(probe=attacked((HOSTILE[0], HOSTILE[4]))), PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    cards = page.locator("#attacks .attack")
    assert cards.count() == 4 and page.locator("script").count() == 2
    keys, inputs, positions = (cards.nth(i).inner_text() for i in range(3))
    assert "63%" in keys and "NaN" in keys and "×7.92" in keys and "beyond ×100" in keys
    assert "×0.3 to ×1" in inputs and "not even ×1" in inputs and "NaN or Inf" in inputs
    assert cards.nth(1).locator("td.failure").count() == 6
    assert "rolled back" in positions and "50%" in positions


def test_without_a_probe_nothing_is_said_of_one(record: Record, visit: Callable[..., Page]) -> None:
    assert not visit(record).locator("#attacks").is_visible()
