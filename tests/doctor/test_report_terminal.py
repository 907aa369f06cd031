"""The report in a terminal, and the table that updates while a model trains."""

from __future__ import annotations

import fcntl
import io
import json
import os
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest
import torch

from regard.doctor import probe
from regard.doctor.findings.finding import Severity
from regard.doctor.report import lines, live, record_of, show, summary_text
from regard.doctor.report.lines import bar, sparkline
from regard.doctor.report.live import Live, arrow, is_terminal
from regard.doctor.report.numbers import cells, shown
from regard.doctor.watch import watch

from .reporting import constant, examined, finding, renamed, values_record
from .watching import Attention, Stack, tokens


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[IO[str]]:
    """A real one."""
    other, here = os.openpty()
    try:
        fcntl.ioctl(here, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(here, "w") as file:
            yield file
    finally:
        os.close(other)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")


def test_it_says_what_why_and_what_helps() -> None:
    text = summary_text(record_of(examined(), [finding(), finding("layers.1", Severity.WARNING)]))
    for part in (
        "✗ 1 failure and 1 warning found.",
        "Stack: 2 attention calls with 4 heads, watched for 6 steps",
        "head 1 of 2, since step 3, 90% sure",
        "logit_max 152, above 100 (Kimi K2 (arXiv 2507.20534))",
        "1. qk-norm: bounded logits",
        "remedies: the same as above",
    ):
        assert part in text
    assert text.count("They rise from step to step.") == 1
    assert max(map(cells, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 80, 110])
def test_hostile_names_neither_move_the_cursor_nor_break_the_table(width: int) -> None:
    text = summary_text(renamed(record_of(examined(), [finding()])), width)
    assert "\x1b" not in text
    assert "\u202e" not in text
    table = text[text.index("worst head") : text.index("notes")]
    assert all(cells(line) <= width for line in table.splitlines())


@pytest.mark.parametrize("width", [60, 66, 72])
def test_a_narrow_terminal_is_not_overrun_and_words_stay_whole(width: int) -> None:
    """The title of a disease was never wrapped, and Chinese was counted in letters."""
    title = "softmax is so hard that nothing can be learnt through it"
    found = finding("encoder." * 9 + "attention", title=title, explanation="注意力" * 30)
    record = record_of(examined(), [found, finding(severity=Severity.WARNING)])
    text = summary_text(record, width)
    assert max(map(cells, text.splitlines())) <= width
    whole = {*summary_text(record, 200).split(), "enc." * 9 + "attention"}
    assert {word for word in text.split() if word.isascii()} <= whole


def test_a_word_that_no_line_holds_is_cut_at_a_joint() -> None:
    found = lines.wrapped("see encoder.layers.0.self_attention.projections twice", 24, "- ", "  ")
    assert lines.plain_text(found) == (
        "- see\n  encoder.layers.0.self_\n  attention.projections\n  twice\n"
    )
    assert lines.plain_text(lines.wrapped("x" * 50, 22)) == f"{'x' * 22}\n{'x' * 22}\n{'x' * 6}\n"
    assert lines.plain_text(lines.wrapped("", 40)) == "\n"


def test_the_width_is_what_columns_says_or_the_terminal_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for columns, width in (("64", 64), ("20", 60), ("500", 110), ("many", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        assert lines.width_of(Terminal()) == lines.width_of(io.StringIO()) == width
    monkeypatch.delenv("COLUMNS")
    assert lines.width_of(io.StringIO()) == lines.width_of(Terminal()) == 80
    with pseudo_terminal(columns=67) as screen:  # of the file that is written to, not of stdout
        assert lines.width_of(screen) == 67
        monkeypatch.setenv("COLUMNS", "70")
        assert lines.width_of(screen) == 70


def test_healthy_empty_and_unmeasured() -> None:
    assert summary_text(record_of(examined(), [])).startswith("✓ A clean bill of health.")


def test_a_clean_bill_says_what_was_checked_and_what_was_not():
    text = " ".join(summary_text(record_of(examined(), [])).split())
    assert "Checked: logits, weights, masks of the layers, " in text
    assert "Not checked: " in text and "wiring, which regard.doctor.check tests." in text
    assert summary_text(record_of(watch(Stack()), [])).startswith("? No attention was seen.")
    assert "nothing could be measured" in summary_text(values_record(constant(2, 2, torch.nan)))


def test_colours_only_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(examined(), [finding()])
    terminal, log = Terminal(), io.StringIO()
    show(record, terminal)
    show(record, log)
    assert "\x1b[1;31m" in terminal.getvalue()
    assert log.getvalue() == summary_text(record)
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    show(record, quiet)
    assert quiet.getvalue() == summary_text(record)


def test_without_rich_and_with_a_poor_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(examined(), [finding()])
    monkeypatch.setattr(lines, "has_rich", lambda: False)
    bare = Terminal()
    show(record, bare)
    assert bare.getvalue() == summary_text(record)
    poor = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(record, poor)
    assert poor.buffer.getvalue().startswith(b"? 1 failure")


def test_bars_and_sparklines() -> None:
    assert bar(5, 10, 4) == "██  "
    assert bar("inf", 10, 4) == "████"
    assert bar(None, 10, 4) == "    "
    assert sparkline([1, float("nan"), 2, float("inf")], 5) == "  ▁█!"
    assert sparkline([], 3) == "   "
    assert [arrow([1, 1, 1, 2]), arrow([2, 1, 1, 1]), arrow([1] * 8), arrow([])] == ["↑", "↓", "→", " "]  # fmt: skip


def train(d, model, steps: int = 4) -> None:
    with d:
        for _ in range(steps):
            model(tokens()).sum().backward()


def test_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Attention(), Attention())
    d, terminal = watch(model, every=1), Terminal()
    monkeypatch.setattr(d, "findings", lambda: [finding()], raising=False)
    with live(d, 0, total=4, file=terminal):
        train(d, model)
    text = terminal.getvalue()
    assert "step 4/4" in text
    assert "since step 3" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert d.chart.listeners == []
    assert d.notes == []


def test_a_terminal_is_given_back_after_an_error() -> None:
    model = Stack(Attention())
    d, terminal = watch(model), Terminal()
    with pytest.raises(KeyError), live(d, 0, file=terminal):
        train(d, model)
        raise KeyError("out of memory, say")
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")
    assert d.chart.listeners == []


def test_an_error_in_the_table_is_no_error_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Attention())
    d, terminal = watch(model), Terminal()
    monkeypatch.setattr(Live, "table", lambda *given: 1 / 0)
    with live(d, 0, file=terminal):
        train(d, model)
    assert d.steps == 4
    assert d.notes == ["Live: stopped: ZeroDivisionError: division by zero"]
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Attention())
    d, log = watch(model), io.StringIO()
    monkeypatch.setattr(d, "findings", lambda: [finding(), finding()], raising=False)
    with live(d, 0, total=4, file=log):
        train(d, model)
    said = log.getvalue().splitlines()
    assert said[0] == "✗ failure: the logits grow at layers.0 head 1, since step 3"
    assert len([line for line in said if line.startswith("step")]) == 2  # the first and the last
    assert said[-1].startswith("step 4/4")


def test_it_looks_no_oftener_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Attention())
    d = watch(model)
    looks = []
    monkeypatch.setattr(Live, "look", lambda self: looks.append(self.doctor.steps))
    with live(d, 1e6, file=io.StringIO()):
        train(d, model)
        assert looks == []
    assert looks == [4]


def test_no_table_in_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_terminal(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    assert not is_terminal(Terminal())


@pytest.mark.parametrize("width", [60, 80])
def test_many_calls_fit_the_screen(width: int) -> None:
    """In 60 columns, 8 of them were left for the names."""
    d = watch(Stack(), every=1)
    for i in range(200):
        site = d.chart.site_of(f"layer.{i}", "sdpa")
        d.chart.step = 1
        d.chart._put(site, torch.full((2, len(d.vitals)), float(i)))
    screen = Live(d, 1.0, None, Terminal())
    screen.findings = [finding("layer.7"), finding("layer.8", title="too many words " * 9)]
    from regard.doctor.report.reading import glance

    drawn = screen.table(glance(d, screen.vitals), width, 24)
    text = lines.plain_text(drawn)
    assert len(drawn) <= 24
    assert "layer.7 " in text
    assert "layer.199 " in text
    assert "the logits grow at layer.7 head 1" in text
    assert "more, with lower numbers" in text
    assert max(map(cells, text.splitlines())) <= width
    assert "words…\n" in text or "many…\n" in text or "too…\n" in text


def test_the_doctor_has_them(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    d = examined()
    d.table()
    assert "layers.1" in capsys.readouterr().out
    assert d.report(tmp_path / "out.html", name="mine").read_text().count("mine:") > 0
    attacked = probe(d.model, tokens())
    page = d.report(tmp_path / "out.html", probe=attacked).read_text()
    assert "A query is captured when" in page  # for readers without scripts
    data = json.loads(d.report(tmp_path / "out.json", probe=attacked).read_text())
    assert data["probe"] == attacked.as_dict()
    assert isinstance(d.live(), Live)


@pytest.mark.parametrize(("value", "said"), [(208.5, "209"), (-208.5, "-209"), (100.49, "100")])
def test_halves_round_as_the_page_rounds_them(value: float, said: str) -> None:
    """The terminal said 208 where the page said 209."""
    assert shown(value) == said
