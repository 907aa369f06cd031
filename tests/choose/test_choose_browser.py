"""The report in a real browser: nothing complains, everything is there, both themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.choosing.report import compose
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.embedded import hijack, nonlinear

from .known import small


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    verdict = small(folder / "a.journal", vitals=True)
    strange = Answer(nonlinear(), reason="<script>document.title = 'strange'</script>")
    path = folder / "choose.html"
    path.write_text(compose(Suite([Answer(hijack(), verdict), strange])), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_report_in_a_browser(
    browser: Any, page: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    said: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(page.as_uri())
    assert tab.title() == "Which attention score?"
    assert tab.locator("article").count() == 2
    assert tab.locator("article svg").count() == 2
    assert "score = regard." in tab.locator(".rerun code").first.inner_text()
    tab.locator(".theme").click()
    expected = {"light": "dark", "dark": "light"}[scheme]
    assert tab.locator("html").get_attribute("data-theme") == expected
    room = tab.evaluate("document.documentElement.scrollWidth")
    assert room <= width, "the page must not scroll sideways"
    tab.screenshot(path=tmp_path / "report.png", full_page=True)
    assert said == []
    tab.close()
