"""Claims that train a recipe where the packages of the recipe are missing, and statements without a recipe."""

from __future__ import annotations

import importlib.util

import click
import pytest

from regard.claims import all_claims
from regard.claims.absent import ABSENT, absent_sentence
from regard.claims.tools.recipes import RecipeClaim
from regard.cli.claims import installed
from regard.recipes.catalog import NAMES


@pytest.fixture
def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch Geometric is not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch_geometric" else real(name)
    )


def test_each_names_a_recipe_that_there_is() -> None:
    found = [one for one in all_claims().values() if isinstance(one, RecipeClaim)]
    assert found and {one.recipe for one in found} <= set(NAMES)
    assert all(one.missing() == "" for one in found)


def test_a_claim_that_cannot_run_is_left_out_with_the_reason(without_graphs, capsys) -> None:
    known = all_claims()
    left = installed([known["A1"], known["H3"]])
    assert left == [known["A1"]]
    told = capsys.readouterr().err
    assert "H3 is left out: the recipe graph needs torch_geometric" in told
    assert "pip install 'regard[recipes]'" in told


def test_alone_it_is_an_error(without_graphs) -> None:
    with pytest.raises(click.ClickException, match="the recipe graph needs torch_geometric: pip"):
        installed([all_claims()["H3"]])


def test_statements_without_an_experiment_name_a_recipe_that_is_missing() -> None:
    assert not {one.recipe for one in ABSENT.values()} & set(NAMES)
    assert not set(ABSENT) & set(all_claims())
    for text in absent_sentence():
        assert all(name in text for name in ABSENT)
