"""The accuracy page is the one that this library would write, but for the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regard.testing import SIZES
from regard.testing.accuracy import main, page

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
NUMBER = re.compile(r"\d+(\.\d+)*(e[-+]?\d+)?")


def skeleton(text: str) -> str:
    return NUMBER.sub("#", text)


def test_the_committed_page_is_up_to_date():
    """A new score, engine or dtype belongs on it: run `make accuracy`."""
    assert skeleton(PAGE.read_text(encoding="utf-8")) == skeleton(page(sizes=SIZES["tiny"]))


def test_the_page_is_written_where_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("regard.testing.accuracy.page", lambda: "text")
    assert main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == "text"
    assert main([]) == 0
    assert capsys.readouterr().out == "text\n"


@pytest.mark.parametrize("arguments", [["--help"], ["a", "b"]])
def test_a_wrong_call_says_how(arguments, capsys):
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err
