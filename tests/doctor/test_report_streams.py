"""JSON lines, TensorBoard and loggers: fed now and then while a model trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.doctor.report import JsonLines, LinesError, LogTo, TensorBoard, listening, read_lines
from regard.doctor.report.log import numbers
from regard.doctor.watch import Doctor, watch

from .reporting import HOSTILE, constant, examined
from .watching import Attention, Stack, tokens


def step(d: Doctor, count: int) -> None:
    for _ in range(count):
        d.model(tokens()).sum().backward()


@pytest.fixture
def watched() -> Doctor:
    with watch(Stack(Attention(), Attention()), every=2, window=16) as d:
        yield d


def same(path: Path, d: Doctor) -> bool:
    found = read_lines(path)
    return list(found.sites) == d.sites and all(
        found.sites[name].steps == d.history(name).steps
        and torch.allclose(found.sites[name].values, d.history(name).values, 1e-5, equal_nan=True)
        for name in d.sites
    )


def test_lines_hold_the_whole_history(watched: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    step(watched, 2)  # before it began
    with JsonLines(watched, path, every=3):
        step(watched, 8)
    assert same(path, watched)
    first, second = path.read_text().splitlines()[:2]
    assert json.loads(first)["vitals"] == list(watched.vitals)
    assert json.loads(second)["site"] == "layers.0"
    assert read_lines(path).model == "Stack"


def test_lines_are_written_every_so_many_steps(watched: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with JsonLines(watched, path, every=3):
        step(watched, 3)
        assert len(path.read_text().splitlines()) == 1
        step(watched, 1)
        assert len(path.read_text().splitlines()) == 1 + 3 * 2
    assert len(path.read_text().splitlines()) == 1 + 4 * 2


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_file_is_gone_on_with(watched: Doctor, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "history.jsonl"
    with JsonLines(watched, path):
        step(watched, 3)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])  # a crash in the middle of the last line
    assert read_lines(path).sites["layers.0"].steps == [1, 2, 3]
    assert len(read_lines(path).sites["layers.1"].steps) == (3 if cut < 2 else 2)
    with JsonLines(watched, path):
        step(watched, 2)
    assert read_lines(path).sites["layers.0"].steps == [1, 2, 3, 4, 5]
    # Another process that takes the training up again.
    with watch(Stack(Attention(), Attention())) as d, JsonLines(d, path):
        step(d, 1)
    assert read_lines(path).sites["layers.0"].steps[-1] == 6
    # From a checkpoint of step 4: what is written last counts.
    with watch(Stack(Attention(), Attention())) as d, JsonLines(d, path, start=4):
        step(d, 1)
        mine = d.history("layers.0").values[0]
    after = read_lines(path).sites["layers.0"]
    assert after.steps == [1, 2, 3, 4, 5, 6]
    assert torch.allclose(after.values[4], mine, 1e-5, equal_nan=True)


def test_a_file_cut_in_its_first_line(watched: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with JsonLines(watched, path):
        step(watched, 1)
    path.write_bytes(path.read_bytes()[:20])
    with JsonLines(watched, path):
        step(watched, 1)
    assert read_lines(path).sites["layers.0"].steps == [1, 2]


def test_infinite_and_missing_numbers_and_names_survive(tmp_path: Path) -> None:
    d = watch(Stack(), window=4)
    for name in HOSTILE:
        site = d.chart.site_of(name, "sdpa")
        for value in (torch.nan, torch.inf, -torch.inf, 1e-30):
            d.chart.step = site.ring.count + 1 if site.ring else 1
            d.chart._put(site, constant(1, 2, value)[0])
    path = tmp_path / "history.jsonl"
    with JsonLines(d, path):
        pass
    assert same(path, d)


def test_other_files_are_refused(watched: Doctor, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("my thesis")
    with pytest.raises(LinesError, match="not a history of a doctor"), JsonLines(watched, other):
        pass
    assert other.read_text() == "my thesis"
    with pytest.raises(LinesError, match="not a history"):
        read_lines(other)
    path = tmp_path / "history.jsonl"
    path.write_text('{"format":"regard doctor","version":1,"model":"x","vitals":["a"]}\n')
    with pytest.raises(LinesError, match="other vitals"), JsonLines(watched, path):
        pass
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(LinesError, match="line 2"):
        read_lines(path)
    with pytest.raises(OSError, match="history"), JsonLines(watched, tmp_path / "no" / "history"):
        pass
    with pytest.raises(ValueError, match="at most the doctor's window of 16 steps"):
        JsonLines(watched, path, every=17)
    assert watched.chart.listeners == []


def test_a_full_disk_ends_the_writing_and_not_the_training(
    watched: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JsonLines(watched, tmp_path / "history.jsonl", every=1) as stream:
        step(watched, 2)
        monkeypatch.setattr(stream, "look", lambda: (_ for _ in ()).throw(OSError(28, "full")))
        step(watched, 3)
        assert watched.chart.listeners == []
    assert watched.steps == 5
    assert watched.notes == ["JsonLines: stopped: OSError: [Errno 28] full"]


def test_a_logger_gets_worst_and_mean(watched: Doctor) -> None:
    logged: list[tuple[dict, int]] = []
    with LogTo(watched, lambda found, step: logged.append((found, step)), every=4):
        step(watched, 9)
    assert [at for _, at in logged] == [4, 8, 9]
    found = logged[-1][0]
    last = watched.history("layers.1").values[-1, :, watched.vitals.index("entropy")]
    assert found["attention/layers.1/entropy/worst"] == pytest.approx(float(last.min()))
    assert found["attention/layers.1/entropy/mean"] == pytest.approx(float(last.mean()))
    assert not any(value != value for value in found.values())


def test_it_reads_the_numbers_only_when_it_logs(
    watched: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    whole = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: reads.append(x.shape) or whole(x))
    with LogTo(watched, lambda found, step: None, every=4):
        step(watched, 4)
        assert reads == []
        step(watched, 1)
        assert len(reads) == 1  # one copy for all sites and vitals


def test_nothing_is_read_while_a_graph_is_captured(
    watched: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = []
    with LogTo(watched, lambda found, step: logged.append(step), every=1):
        monkeypatch.setattr(listening, "capturing", lambda: True)
        step(watched, 3)
        assert logged == []
        monkeypatch.setattr(listening, "capturing", lambda: False)
        step(watched, 1)
    assert logged == [3, 4]


def test_chosen_vitals_and_mistakes(watched: Doctor) -> None:
    step(watched, 1)
    assert set(numbers(watched, ["entropy"], "a")) == {
        f"a/layers.{i}/entropy/{kind}" for i in (0, 1) for kind in ("worst", "mean")
    }
    with pytest.raises(ValueError, match="unknown vitals weight; known: logit_mean"):
        LogTo(watched, print, vitals=["weight"])
    with pytest.raises(TypeError, match="add_scalar"):
        TensorBoard(watched, object())
    with pytest.raises(TypeError, match="log must be a function called"):
        LogTo(watched, None)
    with pytest.raises(ValueError, match="every must be"):
        LogTo(watched, print, every=0)


def test_a_logger_that_fails_does_not_stop_training(watched: Doctor) -> None:
    def broken(found: dict, step: int) -> None:
        raise ConnectionError("no network")

    with LogTo(watched, broken, every=1):
        step(watched, 3)
    assert watched.notes == ["LogTo: stopped: ConnectionError: no network"]


def test_tensorboard_itself(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    d = watch(Stack(Attention()), every=2)
    with SummaryWriter(str(tmp_path)) as writer, d, TensorBoard(d, writer, every=2):
        step(d, 4)
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("attention/layers.0/logit_max/worst")
    assert [event.step for event in scalars] == [2, 4]
    column = d.history("layers.0").values[2, :, d.vitals.index("logit_max")]
    assert scalars[-1].value == pytest.approx(float(column.max()))


def test_examining_on_the_side_is_no_step() -> None:
    d = examined()
    logged = []
    with LogTo(d, lambda found, step: logged.append(step), every=1):
        d.examine(tokens())
    assert logged == []
