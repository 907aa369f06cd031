"""One page and one browser for all tests of the playground."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regard.play import write_page

DRAWN = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"  # a frame has passed


@dataclass
class Visit:
    """The open playground, and what it complained of or asked for."""

    page: Any
    complaints: list[str]
    requests: list[str]

    def call(self, name: str, *arguments: object) -> Any:
        """A function of the page's hook."""
        call = "([name, given]) => JSON.stringify(regard[name](...given))"
        return json.loads(self.page.evaluate(call, [name, arguments]))  # much faster than by value

    def until(self, condition: str) -> None:
        """Wait for a condition in JavaScript, where `s` is the state, and until that is drawn.

        Written as a function: the page's policy forbids to evaluate a string.
        """
        self.page.wait_for_function(f"() => {{ const s = regard.state(); return {condition}; }}")
        self.page.evaluate(DRAWN)


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page on disk."""
    return write_page(tmp_path_factory.mktemp("play") / "playground.html")


@pytest.fixture
def visit(browser: Any, path: Path) -> Iterator[Callable[..., Visit]]:
    """Opens the page; at the end nothing was complained of, and nothing asked for but the file."""
    visits: list[Visit] = []

    def opened(link: str = "", width: int = 1280, **options: object) -> Visit:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        found = Visit(page, [], [])
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri() + link)
        if options.get("java_script_enabled", True):
            page.evaluate(DRAWN)
        visits.append(found)
        return found

    yield opened
    for found in visits:
        files = {url.partition("#")[0] for url in found.requests if not url.startswith("data:")}
        assert found.complaints == []
        assert files == {path.as_uri()}
        found.page.close()
