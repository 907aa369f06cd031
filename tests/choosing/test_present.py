"""What a person sees: nothing is cut at 80 columns, the chart is a chart, files are whole."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
from functools import cache
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

from regard.choosing.cost import chart, files, present
from regard.choosing.cost.answer import QUESTION
from regard.choosing.cost.candidates import candidates
from regard.choosing.cost.results import CostReport, CostRow
from regard.choosing.cost.shape import parse_shape
from regard.figures import render as drawing
from regard.measuring.files import write_atomic
from regard.measuring.times import Times
from regard.measuring.words import number, seconds

MACHINE = {
    "device": "cpu",
    "name": "a processor",
    "cores": 2,
    "threads": 2,
    "load": 0.1,
    "torch": "2.13.0+cpu",
    "regard": "0.1.0",
}


DEMO = "d_q=256,d_k=128,len=1024,heads=8"


def made_up(text: str = DEMO, slow: float = 1.0) -> CostReport:
    """A report with times of the kind that occur, so that nothing needs to be measured."""
    shape = parse_shape(text)
    rows = []
    for i, candidate in enumerate(candidates(shape)):
        row = CostRow(candidate, parameters=candidate.parameters)
        rows.append(row)
        if shape.d_q != shape.d_k and i < 4:
            row.status = "refused"
            row.reason = f"score {candidate.key!r} needs query dim == key dim"
            continue
        row.status, row.engine = "measured", "eager" if candidate.textbook else "cpu"
        row.error, row.plain_error = 3.2e-7, 3.3e-7
        row.gradient_error, row.plain_gradient_error = 4e-7, 5e-7
        base = slow * 0.0123 * 1.7**i
        row.forward = Times([base, 1.1 * base, 0.9 * base])
        row.both = Times([3 * base, 3.3 * base, 2.7 * base])
        row.forward_memory, row.both_memory = 7 * 2**20, (16 + 1500 * candidate.textbook) * 2**20
    return CostReport(shape, dict(MACHINE), 0, rows, notes=["A note."], seconds=42.0)


@cache
def drawn(text: str) -> dict[str, bytes]:
    """The chart of a report that is made up."""
    return chart.draw(made_up(text))


def shown(report: CostReport, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    present.show_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined] # it is a StringIO


@pytest.mark.parametrize("slow", [1e-3, 1.0, 1e3], ids=["fast", "usual", "slow"])
@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_column_is_cut(width: int, slow: float) -> None:
    report = made_up(slow=slow)
    text = shown(report, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for row in report.of("measured"):
        (line,) = re.findall(rf"^{re.escape(row.candidate.label)} +\S.*$", text, re.MULTILINE)
        assert line.rstrip().endswith(row.engine or "")
        assert number(1e3 * row.both.median) in line
        assert "3e-07" in line


def test_each_line_of_the_table_has_as_many_cells() -> None:
    report = made_up()
    text = shown(report, 80)
    header = next(line for line in text.splitlines() if line.startswith("score "))
    assert header.split() == ["score", "params", "ms", "ms", "ratio", "MiB", "error", "engine"]
    line = next(line for line in text.splitlines() if line.startswith("textbook additive"))
    assert re.fullmatch(
        r"textbook additive +49\.3k +\S+ ±\d+% +\S+ ±\d+% +[\d.]+x +1516 +3e-07 +eager *", line
    )


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_gets_fewer_columns(width: int) -> None:
    text = shown(made_up(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "ratio" in text and "engine " not in text


def test_the_answer_comes_before_the_table() -> None:
    text = shown(made_up(), 80)
    order = [
        QUESTION,
        "Start with projected scaled dot",
        "score  ",
        "Scores that refuse this shape",
        "When each",
        "How",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "scaled dot, dot, cosine and gaussian: score 'scaled_dot' needs query dim" in text


def test_a_failed_row_shows_its_error_and_no_time() -> None:
    report = made_up()
    row = report.find("bilinear")
    assert row is not None
    row.status, row.reason, row.error = "failed", "its error is large", 0.25
    line = next(x for x in shown(report, 80).splitlines() if x.startswith("bilinear "))
    assert line.split() == ["bilinear", "262k", "-", "-", "-", "16.0", "2e-01", "cpu"]
    assert "bilinear: its error is large" in shown(report, 80)


def test_an_interrupted_run_says_how_far_it_came() -> None:
    report = made_up()
    report.interrupted = True
    for row in report.rows[6:]:
        row.status, row.forward, row.both = "pending", Times(), Times()
    assert "Interrupted: 2 of 9 scores have times" in shown(report, 80)


def test_a_run_with_nothing_measured_can_be_shown() -> None:
    report = made_up()
    for row in report.rows:
        row.status = "pending"
    assert "Nothing can be said" in shown(report, 80)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (99.96, "100"), (12.34, "12.3"), (0.5, "0.50"), (0.0123, "0.012")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_times_have_units() -> None:
    assert [seconds(x) for x in (2.5, 0.0123, 4.2e-5)] == ["2.50 s", "12.3 ms", "42.0 µs"]


@pytest.mark.parametrize("text", [DEMO, "d_q=64,len=512,causal=1"])
def test_the_chart_is_a_picture_with_both_colours(text: str) -> None:
    report, images = made_up(text), drawn(text)
    pixels = image.imread(io.BytesIO(images["png"]), format="png")[..., :3]
    height, width, _ = pixels.shape
    assert width >= 1800 and height >= 800
    assert (pixels[0, 0] == 1).all()  # light background
    for colour in (drawing.OURS, drawing.TEXTBOOK):
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (abs(pixels - wanted).max(-1) < 0.01).sum() > 200
    svg = images["svg"].decode()
    for row in report.of("measured"):
        assert row.candidate.label in svg
    assert "time of one call" in svg and "peak memory" in svg and " ms" in svg and "MiB" in svg


@pytest.mark.parametrize("slow", [1e-4, 1.0, 1e4])
def test_no_text_leaves_the_chart(slow: float) -> None:
    report = made_up("d_q=2048,d_k=1024,len_q=16384,len_k=32768,heads=64,causal=1", slow)
    with mpl.rc_context(drawing.STYLE):
        figure = chart.compose(report)
        renderer = FigureCanvasAgg(figure).get_renderer()
        texts = [*figure.texts, *(t for axes in figure.axes for t in axes.texts)]
        texts += figure.axes[0].get_yticklabels()
        for text in texts:
            extent = text.get_window_extent(renderer)
            assert extent.x0 >= 0 and extent.x1 <= figure.bbox.x1, text.get_text()


def test_the_chart_is_the_same_every_time() -> None:
    assert chart.draw(made_up()) == drawn(DEMO)


def test_json_holds_everything_and_no_nan(tmp_path: Path) -> None:
    report = made_up()
    report.rows[-1].error = math.nan
    files.save(report, tmp_path / "new" / "folder")
    found = json.loads((tmp_path / "new" / "folder" / "cost.json").read_text(encoding="utf-8"))
    assert found["schema"] == "regard.choose/1"
    assert found["baseline"] == "projected_scaled_dot"
    rows = {row["name"]: row for row in found["results"]}
    assert rows["gatv2"]["error"] is None
    assert rows["projected_scaled_dot"]["forward_backward_ratio"] == 1.0
    assert rows["additive"]["forward_seconds"]["samples"] == report.rows[-3].forward.samples
    assert rows["dot"]["status"] == "refused" and "needs query dim" in rows["dot"]["reason"]


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choose.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["choose.json"]


def test_a_link_is_followed_and_what_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "there").read_bytes() == b"new" and (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="no file"):
        write_atomic(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").is_fifo()


def test_files_can_be_read_by_others_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
