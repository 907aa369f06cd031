"""What a person sees: ratios and bars from samples, 80 columns, charts, the table of the docs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from matplotlib import image

from regard.bench import charts, looks, present
from regard.bench.answer import answer
from regard.bench.bars import amount, outcomes
from regard.bench.candidate import BOTH, FORWARD
from regard.bench.results import BenchRow, Measured, Pass
from regard.bench.settings import Setting, bars, shapes, square
from regard.bench.store import BenchStore
from regard.measuring.times import Times
from regard.measuring.words import seconds

from .made import made_up

SETTING = Setting("tiny", 1, 2, 8, 8, 4, 4, "float32")
ROOT = Path(__file__).parents[2]


def row(name: str, family: str, *samples: float, scaled: int | None = None) -> BenchRow:
    def made() -> Pass:
        return Pass("measured", "", Times(list(samples)), 2**20, scaled, 1e-3)

    return BenchRow(name, family, name, {FORWARD: made(), BOTH: made()})


def test_a_ratio_is_the_median_over_rounds_of_paired_ratios() -> None:
    mine, eager = row("sine fast", "ours", 1.0, 10.0, 3.0), row("e", "textbook", 4.0, 20.0, 30.0)
    compiled, flash = row("c", "textbook", 5.0, 90.0, 90.0), row("dot flash", "dot", 0.5, 2.0, 1.0)
    found = Measured(SETTING, [mine, eager, compiled, flash], rounds=3)
    over = found.over(mine, FORWARD)
    assert over["textbook"]["of"] == "e" and over["textbook"]["ratio"] == 0.25
    assert over["dot"]["of"] == "dot flash" and over["dot"]["ratio"] == 3.0
    # Neither the ratio of medians, nor over a candidate that has no time.
    eager.passes[FORWARD].status = "failed"
    assert found.over(mine, FORWARD)["textbook"]["of"] == "c"
    mine.passes[FORWARD].status = "failed"
    assert found.over(mine, FORWARD) == {}


def test_tables_fit_80_columns_and_hide_nothing() -> None:
    results = made_up()
    found = results.measured.values()
    parts = [present.table(m) for m in found]
    parts += [
        present.legend(),
        present.left_out(found),
        present.bars_table(outcomes(found, "cuda")),
    ]
    text = "\n".join(parts)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "FlexAttention: its kernel unrolls every hidden unit" in text
    assert "CUDA out of memory" in text
    assert "scaled from 1 of 64 heads" in " ".join(text.split())


def test_scaled_rows_are_marked_and_failed_ones_show_no_time() -> None:
    scaled, failed = row("textbook eager", "textbook", 2.0, scaled=1), row("Keras", "peer", 7.0)
    for p in failed.passes.values():
        p.status, p.reason = "failed", "no time: it is wrong"
    text = present.table(Measured(SETTING, [scaled, failed], rounds=1))
    assert "~2000" in text and "7000" not in text
    assert "Keras: no time: it is wrong" in text


def test_every_column_is_better_when_smaller() -> None:
    mine, slow = row("exact", "ours", 1.0), row("textbook eager", "textbook", 20.0)
    dot = row("dot flash", "dot", 0.5)
    text = present.table(Measured(SETTING, [mine, slow, dot], rounds=1))
    assert "in every column smaller is better" in text
    cells = next(line for line in text.splitlines() if line.startswith("exact")).split()
    assert cells[1:4] == ["1000", "2.00x", "0.050x"]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.00001, "<.001x"),
        (0.0044, "0.004x"),
        (0.0999, "0.100x"),
        (0.1, "0.10x"),
        (12345, "12345x"),
    ],
)
def test_ratios_fit_their_column(ratio: float, text: str) -> None:
    assert present.ratio_cell({"ratio": ratio}) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("seconds", "word"),
    [(2.0, "is affordable here: "), (7.0, "affordable here at a price"), (11.0, "not affordable")],
)
def test_the_last_sentence_says_whether_additive_is_affordable(seconds: float, word: str) -> None:
    rows = [row("sine fast", "ours", 0.1), row("exact", "ours", seconds)]
    (short,) = square("cpu", [64], [16])
    (long,) = square("cpu", [128], [16])
    settings = [
        Measured(shapes("cpu")[0], [row("exact", "ours", 0.003)], rounds=1),
        Measured(short, [row("exact", "ours", 99.0), row("dot flash", "dot", 1.0)], rounds=1),
        Measured(long, [*rows, row("dot flash", "dot", 1.0)], rounds=1),
    ]
    said = answer(settings)
    assert word in said and "128 x 128" in said and "(exact)" in said
    assert "NMT decoder 512 takes 3.00 ms a step" in said
    both = answer([Measured(long, [*rows, row("sine matched", "ours", 1.5), row("d", "dot", 1.0)])])
    assert "1.50x" in both and f"(sine matched; exact {seconds:.1f}" in both[: both.index(")") + 1]
    assert "is open" in answer(settings[:1]) and "is open" in answer([])


def test_bars_say_met_or_missed() -> None:
    found = outcomes(made_up(bars("cuda")).measured.values(), "cuda")
    assert len(found) == 9 and {o.met for o in found} == {True, False}
    by_name = {o.name: o for o in found}
    fast = by_name["fast, hidden 16, forward"]
    assert fast.of == "cuDNN dot d=64" and fast.met == (fast.value <= 2.2)
    rate = by_name["exact pairwise tanh, hidden 64, forward, tanh/s"]
    assert rate.value == pytest.approx(64 * 4096**2 * 64 / 0.0837, rel=0.05)
    half = outcomes(made_up(bars("cuda")[:1]).measured.values(), "cuda")
    assert [o.met for o in half][-3:] == [False] * 3 and half[-1].measured_text == "-"
    assert half[-1].note == "not measured: its setting was not measured"
    assert outcomes(made_up(shapes("cuda")).measured.values(), "cuda") == []


def test_amounts() -> None:
    assert [amount(x, "x") for x in (2.2, 25.0, 1 / 40)] == ["2.20x", "25.0x", "1/40"]
    assert amount(3.5e12, "/s") == "3.5e12/s" and amount(3e-3, "") == "3.0e-3"


def test_charts_are_drawn(tmp_path: Path) -> None:
    results = made_up([*shapes("cuda"), *square("cuda", [512, 4096], [16, 64])])
    names = charts.save(results, tmp_path, "h200")
    kinds = ("time", "memory", "error", "shapes")
    assert names == [f"h200-{kind}.{suffix}" for kind in kinds for suffix in ("png", "svg")]
    for kind in kinds:
        pixels = image.imread(tmp_path / f"h200-{kind}.png")
        assert pixels.shape[1] > 1000 and pixels[..., :3].std() > 0.05
    text = (tmp_path / "h200-time.svg").read_text()
    for label in (
        "sine fast",
        "textbook compiled",
        "dot d=64, cuDNN",
        "FlexAttention",
        "hidden 64",
    ):
        assert f">{label}<" in text
    assert ">dot math<" in text and ">dot math<" not in (tmp_path / "h200-error.svg").read_text()


def test_charts_of_little(tmp_path: Path) -> None:
    """One length has no line to draw; nothing timed has no point."""
    results = made_up(bars("cuda")[:1])
    for made in results.measured[bars("cuda")[0].key].rows:
        for p in made.passes.values():
            p.status = "failed"
    assert charts.save(results, tmp_path, "x") == ["x-error.png", "x-error.svg"]


def test_one_legend_names_every_line_once_and_slow_ones_first() -> None:
    results = made_up(square("cuda", [512, 4096], [16, 64]))
    settings = list(results.measured.values())
    drawing = charts.by_length(settings, results, [FORWARD], charts.seconds_of, seconds, "times")
    (legend,) = drawing.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == sorted(set(names))
    assert names[0] == "FlexAttention" and names[-4:] == [
        "sine fast",
        "dot efficient",
        "dot flash",
        "dot d=64, cuDNN",
    ]


def test_the_yardstick_is_one_line_and_other_backends_are_lines_beside_it() -> None:
    """On a CPU, where cuDNN has no kernel, flash is the yardstick and not drawn twice."""
    (m,) = made_up(square("cuda", [512], [16])).measured.values()
    assert set(looks.other_dots(m, BOTH)) == {"dot flash", "dot efficient", "dot math"}
    assert looks.drawn(m, BOTH)["dot"] is m.find("dot cuDNN").passes[BOTH]
    m.find("dot cuDNN").passes[BOTH].status = "unavailable"
    assert set(looks.other_dots(m, BOTH)) == {"dot efficient", "dot math"}
    assert looks.drawn(m, BOTH)["dot"] is m.find("dot flash").passes[BOTH]
    assert looks.spelled("dot", [m]) == "dot d=64"  # cuDNN forward, flash with backward


def test_table_of_the_docs_says_what_each_ratio_is_of(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    readme = importlib.import_module("readme")
    monkeypatch.setattr(importlib.import_module("front"), "RESULTS", tmp_path)
    BenchStore(tmp_path, "h200").save(made_up(bars("cuda")))
    text = readme.gpu_table()
    assert "| on one NVIDIA H200 | a ratio over | device time | eager call | bar |" in text
    assert "| fast, hidden 16, forward | cuDNN dot d=64 | " in text
    assert "**missed**" in text and "≤ 1/40" in text
    found = json.loads((tmp_path / "h200.json").read_text())["bars"]
    assert text.count("\n| ") == len(found)
