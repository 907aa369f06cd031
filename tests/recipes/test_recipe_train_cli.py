"""`regard recipe NAME train|predict|show` over a recipe of milliseconds, and over a real one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from regard import cli
from regard.cli import recipe_progress
from regard.cli.recipe_progress import TrainingBar, TrainingLines
from regard.recipes import catalog, training

from .fake_recipe import FakeRecipe, PointsJob
from .recipe_commands import full, stop_at, weights


def test_train_predict_and_show(run) -> None:
    result = run("fake train --epochs 6 --seed 2 --limit 150")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("accuracy, %: ")
    assert result.stdout.endswith("Saved: fake.safetensors\n")
    assert "points: 150 training rows, 60 validation, 80 test (generated)." in result.stderr
    assert [path.name for path in Path().iterdir()] == ["fake.safetensors"], "no checkpoint is left"
    assert FakeRecipe.load("fake.safetensors").get_params()["epochs"] == 6
    assert run("fake predict -- 1,2 -1,-2").stdout == "0\n1\n"
    assert run("fake predict", input="1,2\n-1,-2\n").stdout == "0\n1\n"
    Path("in.txt").write_text("1,2\n")
    assert run("fake predict --file in.txt --to out.txt --beam 2").stdout == "Saved: out.txt\n"
    assert Path("out.txt").read_text() == "0\n"
    assert run("fake show").exit_code == 0
    assert Path("fake.svg").read_text().startswith("<?xml")
    assert run("fake show 1,2 --to x.png --lang zh").exit_code == 0
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


MISTAKES = {
    "nope train": "there is no recipe 'nope'; the recipes are translate, letters, graph",
    "fake nope": "there is no command 'nope'; the commands are train, predict, compare, show",
    "--json fake train": "put --json at the end",
    "--lang zh fake train": "put --lang at the end",
    "fake train --set nope": "no such set; its sets are points, public",
    "fake train --set public": "public is missing: get https://example.org/x (sha256 0) or --data",
    "fake train --data .": "the set points needs none; give a public one by --set: public",
    "fake train --download": "the set points needs none",
    "fake train --data nowhere": "does not exist",
    "fake train --out .": "is a directory",
    "fake train --out nowhere/x": "there is no folder nowhere",
    "fake train --out /dev/null": "is not a file",
    "fake train --epochs 0": "not in the range",
    "fake predict": "there is no model fake.safetensors: `regard recipe fake train` makes one",
    "fake predict --model text 1,2": "text is not a model saved by a recipe",
    "fake predict 1,2 --best 2": "No such option '--best'. See regard recipe fake predict --help",
    "graph predict karate --length-penalty 1": "No such option '--length-penalty'. See regard recipe graph predict",
    "fake predict 1,2 --file text --model text": "not both",
    "fake predict --file latin --model text": "--file latin is no text in UTF-8",
    "fake show --to x.pdf --model text": "pictures are .svg or .png",
    "fake show --to nowhere/x.svg --model text": "there is no folder nowhere",
    "fake compare --quick --full": "exclude each other",
    "fake compare --only nope": "there is no contender 'nope'",
    "fake compare --out text": "is a file",
    "fake compare --seeds 0": "not in the range",
    "fake compare --set public": "public is missing",
    "fake compare --download": "the set points needs none",
}


@pytest.mark.parametrize(("line", "said"), MISTAKES.items(), ids=MISTAKES)
def test_mistake_is_one_line_and_leaves_nothing(run, line: str, said: str) -> None:
    Path("text").write_text("1,2\n")
    Path("latin").write_bytes(b"\xe4\xff")
    result = run(line, input="1,2\n" if line == "fake predict" else None)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    *before, last = result.stderr.splitlines()
    assert last.startswith("Error: ")
    assert said in last
    assert not before
    assert {path.name for path in Path().iterdir()} <= {"text", "latin", "regard-recipes"}


def test_prediction_of_nothing_and_of_nonsense(run) -> None:
    run("fake train --epochs 1")
    assert (
        "there is nothing to predict: give inputs as arguments or by --file"
        in run("fake predict").stderr
    )
    result = run("fake predict one")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: expected two numbers with a comma between, such as 1,2\n"
    result = run("fake predict", input=b"\xff\xfe\n")
    assert result.stderr == "Error: stdin is no text in UTF-8\n"


def test_ctrl_c_and_the_same_command_goes_on(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    assert run("fake train --out whole").exit_code == 0
    with monkeypatch.context() as patched:
        stop_at(patched, 3, KeyboardInterrupt)
        result = run("fake train")
    assert result.exit_code == 130
    told = "Interrupted; the same command goes on from fake.safetensors.checkpoint.\n"
    assert result.stderr.endswith(told)
    assert result.stdout == ""
    other = run("fake train --seed 1")
    assert other.exit_code == 2
    assert "fake.safetensors.checkpoint is the checkpoint of another training" in other.stderr
    result = run("fake train")
    assert result.exit_code == 0
    assert result.stderr.startswith("Going on from fake.safetensors.checkpoint.\n")
    ours, theirs = weights(), weights("whole")
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_ctrl_c_before_a_checkpoint(run, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, 2, KeyboardInterrupt)
    result = run("fake train")
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted.\n")


@pytest.mark.parametrize(("from_epoch", "saved"), [(0, False), (2, True)])
def test_divergence_is_a_failure(
    run, monkeypatch: pytest.MonkeyPatch, from_epoch: int, saved: bool
) -> None:
    known, batches = PointsJob.loss, PointsJob.batches
    epochs: list[int] = []
    monkeypatch.setattr(PointsJob, "batches", lambda job, n: epochs.append(n) or batches(job, n))
    monkeypatch.setattr(
        PointsJob,
        "loss",
        lambda job, x: known(job, x) * (1 if epochs[-1] < from_epoch else torch.nan),
    )
    result = run("fake train")
    assert result.exit_code == 1
    said = "the weights of epoch 2 were saved" if saved else "nothing was saved"
    assert (
        f"the training diverged: try another --seed, or a smaller rate= of the estimator in Python; {said}"
        in (result.stderr)
    )
    assert [path.name for path in Path().iterdir()] == ["fake.safetensors"] * saved
    if saved:
        assert all(one.isfinite().all() for one in weights().values())


def test_full_disk_keeps_the_training(run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FakeRecipe.save
    with monkeypatch.context() as patched:

        def save(model: FakeRecipe, path: Path) -> None:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr("os.fsync", full)
                whole(model, path)

        patched.setattr(FakeRecipe, "save", save)
        result = run("fake train")
    assert result.exit_code == 1
    assert "was not saved: No space left on device; the training is kept in fake" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["fake.safetensors.checkpoint"]
    assert run("fake train").exit_code == 0
    assert [path.name for path in Path().iterdir()] == ["fake.safetensors"]


@pytest.mark.filterwarnings("default")
def test_full_disk_during_training_warns_and_the_model_may_fit_later(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("regard.recipes.checkpoint.write_atomic", lambda *_: full(0))
        result = run("fake train")
    assert result.exit_code == 0, result.stderr
    assert "Warning: checkpoint='fake.safetensors.checkpoint' could not be written" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["fake.safetensors"]


@pytest.mark.filterwarnings("default")
def test_full_disk_to_the_end_promises_no_checkpoint(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", full)
    result = run("fake train")
    assert result.exit_code == 1
    assert result.stderr.endswith("the model was not saved: No space left on device\n")
    assert not list(Path().iterdir())


def test_doctor_says_what_it_watched(run) -> None:
    result = run("fake train --doctor")
    assert result.exit_code == 0
    assert "The doctor saw no attention that it can watch" in result.stdout
    assert not training.AROUND


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("line", ["fake train", "fake compare --seeds 1", "fake compare --json"])
def test_full_stdout_costs_no_file(run, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    with os.fdopen(os.open("/dev/full", os.O_WRONLY), "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as stopped:
            cli.main(["recipe", *line.split()])
        assert stopped.value.code == 1
        assert sys.stderr.getvalue().endswith("Error: No space left on device\n")
    kept = "fake.safetensors" if "train" in line else "regard-recipes/fake-points.html"
    assert Path(kept).is_file()


@pytest.mark.parametrize("line", ["fake train", "fake compare --seeds 1"])
def test_reader_that_leaves_changes_nothing(
    run, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit) as stopped:
            cli.main(["recipe", *line.split()])
        assert stopped.value.code == 0
        assert "Error" not in sys.stderr.getvalue()


def test_bar_shows_loss_and_time_left() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    with Progress(console=console) as bars:
        bar = TrainingBar(bars, FakeRecipe().criterion)
        bar.start(10, 4)
        bar.step(lambda: 0.25)
        assert bars.tasks[0].description == "loss 0.25"
        bar.validated(1, 50.0, 75.0)
        bar.last = -recipe_progress.PAUSE
        bar.step(lambda: 0.125)
    assert (bars.tasks[0].completed, bars.tasks[0].total) == (6, 10)
    assert bars.tasks[0].description == "loss 0.125, accuracy, % 50.0 (best 75.0)"


def test_progress_names_the_measure_of_the_result() -> None:
    """It was a number without a name: 6.7 for 93.3% wrong words, -0.57 for an RMSE of 0.57."""
    pytest.importorskip("torch_geometric", reason=f"needs {catalog.INSTALL}")
    pytest.importorskip("rdkit", reason=f"needs {catalog.INSTALL}")
    from regard.recipes.graph import NodeClassifier
    from regard.recipes.graph import load as load_graph
    from regard.recipes.letters import LettersToSounds
    from regard.recipes.molecules import MoleculePredictor

    assert LettersToSounds().criterion(6.7) == ("word error rate, %", "93.3")
    assert MoleculePredictor().criterion(-0.5679) == ("RMSE", "0.568")
    assert MoleculePredictor("classification").criterion(0.71) == ("ROC-AUC", "0.710")
    graph = NodeClassifier(epochs=3, device="cpu").fit_dataset(load_graph("karate"))
    for _, quality in graph.history_.validations:
        name, value = graph.criterion(quality)
        assert name == "accuracy, %" and 0 <= float(value) <= 100
    assert graph.criterion(0.123) == ("accuracy, %", "-"), "before the training was resumed"


def test_lines_in_a_pipe_are_few(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of a thousand short epochs wrote a thousand lines."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines = TrainingLines(FakeRecipe().criterion)
    lines.start(100, 50)
    for epoch in range(1, 51):
        now += 1.0
        lines.step(lambda: 0.0)
        lines.validated(epoch, epoch / 2, epoch)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == ("epoch 1: accuracy, %: 0.5 (best 1.0) on validation rows, at most 49 s left")
    assert len(told) == 10
    assert [recipe_progress.time_left("at most", x) for x in (0.0, 0.9, 5.2)] == [
        "less than 1 s", "less than 1 s", "at most 5 s",
    ]  # fmt: skip


def test_real_recipe_on_the_data_of_its_package(run) -> None:
    pytest.importorskip("torch_geometric", reason=f"needs {catalog.INSTALL}")
    result = run("graph train --epochs 30")
    assert result.exit_code == 0, result.output
    assert run("graph predict karate 0 33").stdout.count("\n") == 2
    assert run("graph show --to x.svg").exit_code == 0
    result = run("graph compare --only no_edges,logistic --seeds 1")
    assert "there is no contender 'no_edges'" in result.stderr
    result = run("graph train --score nope")
    assert result.exit_code == 2
    assert "unknown score 'nope'" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_real_training_that_is_stopped_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    # Of the recipes' defaults that of graph takes seconds, and may end before the signal arrives.
    pytest.importorskip("rdkit", reason=f"needs {catalog.INSTALL}")
    command = [sys.executable, "-m", "regard.cli", "recipe", "molecules", "train", "--out", "x"]
    checkpoint = tmp_path / "x.checkpoint"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 240
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted; the same command goes on from x.checkpoint." in said
    assert "Traceback" not in said
    whole = subprocess.run(
        [*command[:-1], "y"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert resumed.stdout.splitlines()[0] == whole.stdout.splitlines()[0]
    assert not checkpoint.exists()
    ours, theirs = weights(str(tmp_path / "x")), weights(str(tmp_path / "y"))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
