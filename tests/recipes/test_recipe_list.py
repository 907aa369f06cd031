"""`regard recipe`: the list, the help of each recipe, and the catalogue."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys

import click
import pytest

from regard.cli import recipe_help
from regard.cli.names import RECIPE_SCORES
from regard.cli.recipe import VERBS, OneRecipe
from regard.recipes import catalog

from .recipe_commands import FAKE


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
    inputs = {
        "translate": "SENTENCE",
        "letters": "WORD",
        "graph": "GRAPH",
        "molecules": "SMILES",
        "align": "SERIES",
        "anomaly": "POINT",
        "retrieve": "QUERY",
    }
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
        searches = recipe_help.USAGES[row.name].search if verb == "predict" else ()
        offered = {"beam": "--beam" in result.stdout, "n_best": "--best" in result.stdout}
        assert {name for name, shown in offered.items() if shown} == {*searches} - {
            "length_penalty"
        }


def test_options_of_a_search_are_those_of_the_estimators() -> None:
    assert list(recipe_help.USAGES) == list(catalog.NAMES)
    for row in catalog.RECIPES:
        if catalog.missing(row):
            pytest.skip(f"{row.name} needs {catalog.missing(row)}")
        kind = catalog.kit(row.name).estimator
        known = {*inspect.signature(kind).parameters, *inspect.signature(kind.predict).parameters}
        assert {*recipe_help.USAGES[row.name].search} == known & {*recipe_help.SEARCH}


@pytest.mark.parametrize("row", catalog.RECIPES, ids=catalog.NAMES)
def test_help_names_contenders_scores_and_files(row: catalog.Listed) -> None:
    if catalog.missing(row):
        pytest.skip(f"{row.name} needs {catalog.missing(row)}")
    kit, usage = catalog.kit(row.name), recipe_help.USAGES[row.name]
    full = kit.comparison(kit.load(kit.sets[0], limit=100), True, None)
    assert usage.contenders == tuple(one.name for one in full.contenders)
    helped = {
        (verb, one.name): one.help
        for verb, command in OneRecipe(row.name).commands.items()
        for one in command.params
        if isinstance(one, click.Option)
    }
    assert all("NAME." not in (text or "") for text in helped.values())
    assert all(name in helped["compare", "only"] for name in usage.contenders)
    assert all(name in helped["train", "score"] for name in RECIPE_SCORES)
    assert helped["train", "score"].endswith(f"[default: {usage.score}]")


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
