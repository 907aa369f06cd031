"""`regard recipe NAME compare` and `regard choose --recipe` over a recipe of milliseconds."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from regard.recipes.comparing import Compared
from regard.recipes.comparing.sentences import sentences, to_use

from . import fake_recipe
from .fake_recipe import PointsJob
from .recipe_commands import stop_at


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
    result = run("fake compare --minutes 5")
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
