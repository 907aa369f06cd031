"""Where the browser for the tests comes from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regard.testing import browser


def no_browser(reason: str):
    def way() -> Path:
        raise browser.NoBrowser(reason)

    return way


def test_the_first_that_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "system", lambda: Path("no-such-program"))
    monkeypatch.setattr(browser, "own", no_browser("not downloaded"))
    monkeypatch.setattr(browser, "from_packages", lambda: Path(sys.executable))
    monkeypatch.setattr(browser, "from_playwright", no_browser("is not asked"))
    assert browser.provide() == Path(sys.executable)


def test_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ["system", "own", "from_packages", "from_playwright"]
    for name in ways:
        monkeypatch.setattr(browser, name, no_browser(f"no {name}"))
    with pytest.raises(browser.NoBrowser, match="; ".join(f"no {name}" for name in ways)):
        browser.provide()


def test_nothing_is_installed_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(browser.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(browser, "run", lambda *command: pytest.fail("something was run"))
    with pytest.raises(browser.NoBrowser, match="root"):
        browser.from_packages()


def test_a_failure_names_its_error() -> None:
    broken = "import sys; sys.exit('start\\nError: no such host\\n}')"
    with pytest.raises(browser.NoBrowser, match="Error: no such host"):
        browser.run([sys.executable, "-c", broken], 60)
    with pytest.raises(browser.NoBrowser, match="timed out"):
        browser.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.01)
