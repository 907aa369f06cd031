"""`regard recipe NAME train|predict|compare|show` over a recipe of milliseconds, and over a real one."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from rich.progress import Progress

from regard import cli
from regard.cli import recipe_help, recipe_progress
from regard.cli.app import group
from regard.cli.recipe import VERBS, OneRecipe
from regard.cli.recipe_progress import TrainingBar, TrainingLines
from regard.recipes import catalog, training
from regard.recipes.comparing import Compared
from regard.recipes.comparing.sentences import sentences, to_use
from regard.recipes.estimator import read_saved
from regard.text import Text

from . import fake_recipe
from .fake_recipe import FakeRecipe, PointsJob

FAKE = catalog.Listed("fake", Text("Points.", "点。"), Text("a", "b"), ("points",), ("public",), ())
USAGE = recipe_help.Usage(
    "[POINT]...", "Classify.", "Draw.", {verb: (verb,) for verb in VERBS}, ("beam",)
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `regard recipe ...`, or `choose ...`, in a folder of its own; the catalogue has the fake recipe."""
    known = catalog.kit
    monkeypatch.setattr(catalog, "RECIPES", (*catalog.RECIPES, FAKE))
    monkeypatch.setattr(catalog, "NAMES", (*catalog.NAMES, "fake"))
    monkeypatch.setattr(
        catalog, "kit", lambda name: fake_recipe.KIT if name == "fake" else known(name)
    )
    monkeypatch.setitem(recipe_help.USAGES, "fake", USAGE)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests keep theirs
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)

    def invoke(line: str, **more: Any) -> Result:
        env = {"COLUMNS": "80"} | more.pop("env", {})
        line = line if line.startswith("choose") else f"recipe {line}"
        return CliRunner(env=env).invoke(group, line.split(), prog_name="regard", **more)

    return invoke


def weights(path: str = "fake.safetensors") -> dict[str, torch.Tensor]:
    return read_saved(Path(path))[1]


def stop_at(monkeypatch: pytest.MonkeyPatch, epoch: int, error: type[BaseException]) -> None:
    """Raise an error in the validation of that epoch."""
    known, count = PointsJob.validate, 0

    def validate(job: PointsJob, model: torch.nn.Module) -> float:
        nonlocal count
        count += 1
        if count == epoch:
            raise error
        return known(job, model)

    monkeypatch.setattr(PointsJob, "validate", validate)


def full(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
    "fake predict 1,2 --file text": "not both",
    "fake predict --file latin": "--file latin is no text in UTF-8",
    "fake show --to x.pdf": "pictures are .svg or .png",
    "fake show --to nowhere/x.svg": "there is no folder nowhere",
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


def test_full_disk_during_training_is_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", full)
    result = run("fake train")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: No space left on device"
    assert not list(Path().iterdir())


def test_doctor_says_what_it_watched(run) -> None:
    result = run("fake train --doctor")
    assert result.exit_code == 0
    assert "The doctor saw no attention that it can watch" in result.stdout
    assert not training.AROUND


def test_comparison_prints_a_table_and_saves_page_and_summary(run) -> None:
    result = run("fake compare --full --out out")
    assert result.exit_code == 0, result.output
    assert "no attention" in result.stdout
    assert re.search(r"accuracy, %.*\n(.*\n)*.*\d+\.\d (±|\+)\d", result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.endswith(
        "Saved in out: fake-points.json\nOpen the page in a browser: out/fake-points.html\n"
    )
    # Three contenders, two settings of two of them, three seeds.
    assert result.stderr.splitlines()[-1].startswith("[11/11] ")
    assert "left)" in result.stderr
    again = run("fake compare --full --out out --lang zh")
    assert again.exit_code == 0
    assert "参与者" in again.stdout
    assert again.stderr == "", "finished runs are kept, silently"
    assert len(run("fake compare --full --out out --again").stderr.splitlines()) == 11


def test_comparison_as_json_is_one_document(run) -> None:
    result = run("fake compare --seeds 1 --only additive --json")
    assert result.exit_code == 0, result.output
    found = Compared.of_json(json.loads(result.stdout, parse_constant=pytest.fail))
    assert {row.name for row in found.rows} == {"scaled_dot", "additive"}, "the reference, too"
    assert found.seeds == (0,)
    assert found == Compared.load(Path("regard-recipes/fake-points.json"))
    assert "Saved in regard-recipes" in result.stderr


def test_no_escape_codes_without_a_terminal(run) -> None:
    env = {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}
    for line in ("", "fake train --epochs 1", "fake compare --seeds 1 --only additive"):
        assert "\x1b" not in run(line, env=env).output


def test_failed_contender_is_an_exit_status(run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fake_recipe.comparison

    def broken(*given: Any) -> Any:
        found = known(*given)
        object.__setattr__(found.contenders[1], "run", lambda *_: 1 / 0)
        return found

    monkeypatch.setattr(fake_recipe, "KIT", dataclasses.replace(fake_recipe.KIT, comparison=broken))
    result = run("fake compare --seeds 1")
    assert result.exit_code == 1
    assert "Without a result: additive." in result.stdout
    assert "setting 2 of 2: ZeroDivisionError" in result.stdout
    assert Path("regard-recipes/fake-points.html").is_file()


def test_failed_reference_is_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointsJob, "loss", lambda *_: 1 / 0)
    result = run("fake compare --seeds 1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "Error: there is no result of the reference 'scaled_dot': setting 2 of 2: ZeroDivisionError: division by zero"
    )


def test_interrupted_comparison_says_how_to_go_on(run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_at(patched, 5, KeyboardInterrupt)
        result = run("fake compare")
    assert result.exit_code == 130
    told = "Interrupted: finished runs are kept in regard-recipes; the same command continues.\n"
    assert result.stderr.endswith(told)
    result = run("fake compare --minutes 0.01")
    assert result.exit_code == 0, "it takes less"
    assert result.stderr.splitlines()[-1].startswith("[8/8] ")
    assert len(result.stderr.splitlines()) == 7


def test_time_limit_of_a_comparison(run, monkeypatch: pytest.MonkeyPatch) -> None:
    known = PointsJob.validate
    monkeypatch.setattr(PointsJob, "validate", lambda *given: time.sleep(0.3) or known(*given))
    result = run("fake compare --minutes 0.01")
    assert result.exit_code == 130
    assert "Stopped at the time limit with" in result.stderr
    assert "the same command continues" in result.stderr


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


def test_list_and_help_of_a_recipe(run) -> None:
    assert "fake       Points." in run("").stdout
    assert "Train one: regard recipe letters train" in run("").stdout
    chinese = run("--lang zh").stdout
    assert "点。" in chinese and chinese.endswith("训练一个：regard recipe letters train\n")
    (*_, row) = json.loads(run("--json").stdout)
    assert row == {
        "name": "fake", "about": "Points.", "default": "a", "own": ["points"], "public": ["public"], "missing": [],
    }  # fmt: skip
    result = run("fake")
    assert result.exit_code == 0
    assert "regard recipe fake train" in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_recipe_is_its_own(run, verb: str) -> None:
    """Every recipe had the examples of the others and their options, and none said what its inputs are."""
    inputs = {"translate": "SENTENCE", "letters": "WORD", "graph": "GRAPH", "molecules": "SMILES"}
    for row in catalog.RECIPES[:-1]:
        result = run(f"{row.name} {verb} --help")
        assert result.exit_code == 0, result.output
        assert max(map(len, result.stdout.splitlines())) <= 80
        named = re.findall(r"regard recipe (\w+) (\w+)", result.stdout)
        assert set(named) == {(row.name, verb)} and len(named) >= 3
        if verb in ("predict", "show"):
            assert result.stdout.count(inputs[row.name]) >= 3
        else:
            assert f"[default: {row.own[0]}]" in " ".join(result.stdout.split())
        searches = verb == "predict" and row.name in ("translate", "letters")
        assert ("--beam" in result.stdout, "--best" in result.stdout) == (searches, searches)


def test_options_of_a_search_are_those_of_the_estimators() -> None:
    assert list(recipe_help.USAGES) == list(catalog.NAMES)
    for row in catalog.RECIPES:
        if catalog.missing(row):
            pytest.skip(f"{row.name} needs {catalog.missing(row)}")
        kind = catalog.kit(row.name).estimator
        known = {*inspect.signature(kind).parameters, *inspect.signature(kind.predict).parameters}
        assert {*recipe_help.USAGES[row.name].search} == known & {*recipe_help.SEARCH}


def test_examples_in_help_name_options_and_sets_that_exist() -> None:
    for row in catalog.RECIPES:
        for verb, lines in recipe_help.USAGES[row.name].examples.items():
            known = {opt for one in OneRecipe(row.name).commands[verb].params for opt in one.opts}
            for line in lines:
                given, *words = shlex.split(line)
                assert given == verb
                assert {one for one in words if one.startswith("--")} <= known, line
                if "--set" in words:
                    assert words[words.index("--set") + 1] in catalog.sets(row)


def test_missing_package_is_named_with_its_command(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "RECIPES", (FAKE._replace(packages=("nonexistent",)),))
    result = run("fake train")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: the recipe fake needs nonexistent: pip install 'regard[recipes]'\n"
    )
    assert json.loads(run("--json").stdout)[0]["missing"] == ["nonexistent"]


def test_catalogue_knows_the_sets_of_each_recipe() -> None:
    for row in catalog.RECIPES:
        if catalog.missing(row):
            pytest.skip(f"{row.name} needs {catalog.missing(row)}")
        kit = catalog.kit(row.name)
        assert (kit.name, kit.sets) == (row.name, catalog.sets(row))


def test_catalogue_names_the_packages_of_each_recipe() -> None:
    """A package that is missing and not listed would end in a traceback: each recipe loads with its own alone."""
    every = {name for row in catalog.RECIPES for name in row.packages}
    code = (
        "import sys; from regard.recipes import catalog\n"
        "name, *blocked = sys.argv[1:]\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "catalog.kit(name)"
    )
    for row in catalog.RECIPES:
        if catalog.missing(row):
            pytest.skip(f"{row.name} needs {catalog.missing(row)}")
        blocked = sorted(every - set(row.packages))
        done = subprocess.run(
            [sys.executable, "-c", code, row.name, *blocked],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_recipe_as_the_task_of_choose(run) -> None:
    result = run("choose --recipe fake --jobs 1")
    assert result.exit_code == 0, result.output
    assert "2 seeds decide nothing" in " ".join(result.stdout.split())
    assert "This was the quick comparison" in result.stdout
    assert Path("regard-choose/fake-points.html").is_file()
    result = run("choose --recipe fake --full --seeds 3 --jobs 1 --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    compared = Compared.of_json(found["compared"])
    assert found["use"] == to_use(compared)
    assert [one["en"] for one in found["advice"]] == [one.en for one in sentences(compared)]
    assert compared.seeds == (0, 1, 2)
    assert (compared.full, len(compared.rows)) == (True, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--recipe nope", "--recipe nope: the recipes are translate, letters, graph"),
        ("--recipe fake --tasks digits", "--tasks has no effect with --recipe; leave it out"),
        ("--recipe fake --shape d_q=4,len=3", "--shape has no effect with --recipe"),
        ("--recipe fake --resume", "--resume has no effect with --recipe"),
        ("--recipe fake --heads 4", "--heads has no effect with --recipe"),
        ("--recipe fake --target y", "--target has no effect with --recipe"),
        ("--recipe fake --seed 1", "--seed has no effect with --recipe"),
        ("--recipe fake --report x.html", "--report has no effect with --recipe"),
        ("--recipe fake --set nope", "its sets are points, public"),
        ("--recipe fake --set public --jobs 1", "public is missing: get https://example.org/x"),
        ("--recipe fake --data .", "the set points needs none"),
        ("--set cora", "--set belongs to a recipe: give --recipe NAME too"),
        ("--full", "--full belongs to a recipe"),
    ],
)
def test_options_of_choose_that_do_not_go_with_a_recipe(run, line: str, said: str) -> None:
    result = run(f"choose {line}")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_choose_by_a_recipe_is_interrupted_as_it_is(run, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, 5, KeyboardInterrupt)
    result = run("choose --recipe fake --jobs 1")
    assert result.exit_code == 130
    assert "the same command continues" in result.stderr


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
    from regard.recipes.letters import LettersToSounds
    from regard.recipes.molecules import MoleculePredictor

    assert LettersToSounds().criterion(6.7) == ("word error rate, %", "93.3")
    assert MoleculePredictor().criterion(-0.5679) == ("RMSE", "0.568")
    assert MoleculePredictor("classification").criterion(0.71) == ("ROC-AUC", "0.710")
    told = NodeClassifier().criterion(-0.2171)
    assert told == ("accuracy less cross-entropy", "-0.217")


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
