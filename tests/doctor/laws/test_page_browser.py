"""The page of a check in a real browser, as wide as a phone and a desk."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright drives the browser: pip install playwright")
from playwright.sync_api import Browser

from regard.doctor import check
from regard.doctor.laws.page import write

from ... import phone
from ..reporting import HOSTILE
from .handmade import Small
from .hosts import B, T, tokens


@pytest.mark.parametrize("width", [phone.WIDTH, 1280])
def test_a_check_can_be_read(browser: Browser, tmp_path: Path, width: int) -> None:
    model = Small({1: "shifted-mask"}, causal=True)
    found = check(model, tokens(B, T), causal=True)
    bad = found.findings[0]._replace(site=HOSTILE[0], title=HOSTILE[1], explanation=HOSTILE[4])
    rulings = [x._replace(findings=(bad,)) if x.findings else x for x in found.rulings]
    path = write([found, found._replace(rulings=rulings, model=HOSTILE[3])], tmp_path / "out.html")
    page = browser.new_page(viewport={"width": width, "height": phone.HEIGHT})
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert "who-may-see-whom" in page.locator("h1").first.inner_text()
    # One screen for the verdict: the place of the first finding is on it.
    assert page.locator(".broken .site").first.bounding_box()["y"] < phone.HEIGHT
    assert page.locator(".laws").first.locator("li").count() == len(found.rulings)
    assert page.locator(".map svg").count() == 2
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    if width == phone.WIDTH:
        phone.check(page)
    page.locator(".theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert complaints == [] and {x for x in requests if not x.startswith("data:")} == {
        path.as_uri()
    }
    page.close()
