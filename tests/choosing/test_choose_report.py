"""What the report says, before a browser shows it."""

from __future__ import annotations

import re

import pytest

from regard.choosing.report.entries import finding
from regard.choosing.report.words import FINDINGS
from regard.doctor.findings import DISEASES
from regard.page.template import prose
from regard.text import Text

CHINESE = re.compile("[\u4e00-\u9fff]")


def test_every_finding_has_a_chinese_title() -> None:
    """They stood in English in a report that is Chinese."""
    assert set(FINDINGS) == {disease.name for disease in DISEASES}
    assert all(CHINESE.search(title) for title in FINDINGS.values())
    assert len(set(FINDINGS.values())) == len(FINDINGS)


def test_a_finding_is_told_in_both_languages() -> None:
    told = {"title": "logits are far too large", "severity": "warning", "disease": "large-logits"}
    assert finding(told) == Text("logits are far too large", "logit 过大")
    other = told | {"disease": "of another version"}
    assert finding(other) == Text("logits are far too large", "logits are far too large")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("more (--seeds 5)", 'more (<span class="option">--seeds 5</span>)'),
        ("更多（--seeds 5）", '更多（<span class="option">--seeds 5</span>）'),
        ("请用--steps", '请用<span class="option">--steps</span>'),
        ("`run A4 --quick`", '<code>run A4 <span class="option">--quick</span></code>'),
        ("a--b, x - y, --- and <i>", "a--b, x - y, --- and &lt;i&gt;"),
    ],
)
def test_options_of_commands_stay_in_one_piece(text: str, expected: str) -> None:
    assert str(prose(text)) == expected
