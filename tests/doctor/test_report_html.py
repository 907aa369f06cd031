"""The HTML report as a file: whole, safe, and small."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from regard.doctor.report import ReportError, record_of, write_report
from regard.doctor.report.html import compose
from regard.doctor.vitals import VITALS
from regard.doctor.watch import watch

from .reporting import HOSTILE, constant, examined, finding, renamed, values_record
from .watching import Stack


class Page(HTMLParser):
    """The tags, their attributes, and what is in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))


def test_names_become_text_and_nothing_else() -> None:
    plain = Page(compose(record_of(examined(), [finding()])))
    hostile = Page(compose(renamed(record_of(examined(), [finding()]))))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    record = json.loads(hostile.scripts[0])
    assert [site["name"] for site in record["sites"]] == list(HOSTILE)
    assert hostile.scripts[1] == plain.scripts[1]


def test_it_asks_for_nothing_and_lets_nothing_else_run() -> None:
    text = compose(record_of(examined(), [finding()]))
    page = Page(text)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not [
        a for _, a in page.tags if "src" in a or "style" in a or any(k[:2] == "on" for k in a)
    ]
    assert re.findall(r"(?:https?:)?//\w+\.", text.replace("http://www.w3.org/2000/svg", "")) == []
    # Scripts write text, never markup.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_it_reads_without_script() -> None:
    text = compose(record_of(examined(), [finding()]))
    inside = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "1. qk-norm: bounded logits" in inside
    assert "<h1>1 failure found.</h1>" in text


@pytest.mark.parametrize(
    "record",
    [
        record_of(watch(Stack()), []),
        values_record(constant(3, 2, torch.nan)),
        values_record(constant(1, 1, 0.5)),
    ],
    ids=["no sites", "nothing measured", "one number"],
)
def test_little_to_say(record) -> None:
    assert len(Page(compose(record)).scripts) == 2


def test_a_large_model_gives_a_report_of_a_bounded_size() -> None:
    d = watch(Stack(), window=32)
    for i in range(24):
        site = d.chart.site_of(f"model.layers.{i}.self_attn", "sdpa")
        for step in range(32):
            d.chart.step = step + 1
            d.chart._put(site, torch.rand(128, len(VITALS)))
    assert len(compose(record_of(d, [finding("model.layers.3.self_attn")]))) < 6_000_000


def test_json_where_the_name_says_so(tmp_path: Path) -> None:
    d = examined()
    found = json.loads(write_report(d, tmp_path / "out.json", [finding()]).read_text())
    assert found["findings"][0]["severity"] == "failure"


def test_a_folder_that_is_none_is_one_clear_error_and_the_old_report_stays(tmp_path: Path) -> None:
    d = examined()
    path = write_report(d, tmp_path / "out.html", [])
    before = path.read_bytes()
    for bad in (path / "inside.html", tmp_path / "nowhere" / "out.html", tmp_path):
        with pytest.raises(ReportError, match="cannot write the report to"):
            write_report(d, bad, [])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


def test_a_full_disk_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = examined()
    path = write_report(d, tmp_path / "out.html", [])
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.measuring.files.os.fsync", full)
    with pytest.raises(ReportError, match="No space left"):
        write_report(d, path, [])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


def test_it_needs_torch_alone() -> None:
    blocked = ["rich", "jinja2", "markupsafe", "transformers", "tensorboard", "matplotlib", "numpy"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from torch import nn, rand\n"
        "from regard.doctor.watch import watch\n"
        "m = nn.MultiheadAttention(8, 2)\n"
        "with watch(m) as d, d.live(): m(*[rand(4, 1, 8)] * 3)\n"
        "d.table(); d.report(sys.argv[1])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "/dev/null/x.html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MultiheadAttention: 1 attention call with 2 heads" in result.stdout
    assert "ReportError: cannot write the report to" in result.stderr
