"""Arguments and rows that no recipe can use have one error that names them, in every recipe."""

from __future__ import annotations

import inspect
import json
import math
import time
from pathlib import Path
from typing import Any

import pandas
import pytest
import safetensors
import safetensors.torch
import torch

from regard import choose
from regard.arguments import checked_device
from regard.recipes import catalog
from regard.recipes.estimator import RECIPE_ENTRY, RecipeError, checked_validation

BAD: dict[str, tuple[Any, ...]] = {
    "epochs": (0, None, 1.5),
    "patience": (0, -1, 2.5),
    "minutes": (0, -1.0, math.nan),
    "warmup": (-1, 1.5, None),
    "average": (1.0, -0.1, "x", math.nan),
    "consistency": (-1.0, math.inf, None),
    "dropout": (1.0, -0.1, None),
    "weight_decay": (-1.0, math.nan, None),
    "embedding": (0, 1.5),
    "rate": (0.0, math.inf, None, "x"),
    "seed": (-1, 1.5, None, 2**32),
    "checkpoint_every": (0, None),
    "device": ("cudaa", "cuda:9999", "meta", 3),
}


def recipe(name: str) -> Any:
    """The estimator's class of that recipe, if its packages are here."""
    if absent := catalog.missing(catalog.listed(name)):
        pytest.skip(f"needs {absent}")
    return catalog.kit(name).estimator


@pytest.mark.parametrize("name", catalog.NAMES)
def test_argument_that_cannot_work_is_named(name: str) -> None:
    """Many trained for minutes and then failed, or were taken for something else."""
    kind = recipe(name)
    kind().check_arguments()
    for argument in BAD.keys() & inspect.signature(kind).parameters.keys():
        for value in BAD[argument]:
            with pytest.raises(RecipeError, match=argument):
                kind(**{argument: value}).check_arguments()


def test_device_that_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_device("cpu") == checked_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda': torch sees no GPU here"):
        checked_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checked_device("cuda:1").index == 1
    with pytest.raises(ValueError, match="device='cuda:2': torch sees 2 GPUs, cuda:0 to cuda:1"):
        checked_device("cuda:2")
    rows = torch.randn(60, 3, 2)
    for act in (
        lambda: checked_device("cudaa"),
        lambda: choose(lambda score: score, (rows, rows[:, 0, 0]), dims=2, device="cudaa"),
    ):
        with pytest.raises(ValueError, match=r"device must be 'cpu' or .*, got 'cudaa'"):
            act()


@pytest.mark.parametrize("given", ["ab", 3, (1,), ([], [], []), {"x": 1, "y": 2}])
def test_validation_that_is_no_pair_is_refused(given: Any) -> None:
    with pytest.raises(RecipeError, match=r"validation must be a pair \(x, y\)"):
        checked_validation(given)


@pytest.mark.parametrize("name", ["letters", "molecules", "translate"])
def test_tables_are_not_read_as_the_names_of_their_columns(name: str) -> None:
    kind, rows = recipe(name), {"CC": ["CC"], "CCO": ["CCO"]}
    for table in (rows, pandas.DataFrame(rows)):
        with pytest.raises(RecipeError, match=r"x must be a list of [^;]*; give one column"):
            kind(device="cpu").fit(table, ["a", "b"])


@pytest.mark.parametrize("facts", [{"layers": 100_000}, {"width": 400_000, "heads": 1}])
def test_file_that_asks_for_a_huge_network_is_refused_at_once(
    tmp_path: Path, facts: dict[str, int]
) -> None:
    """It was built for minutes before its weights were looked at."""
    kind, path = recipe("molecules"), tmp_path / "model.safetensors"
    kind(width=8, heads=2, layers=1, epochs=1, device="cpu").fit(["C", "CC"], [0.0, 1.0]).save(path)
    with safetensors.safe_open(path, "pt") as file:
        found = json.loads(file.metadata()[RECIPE_ENTRY])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    found["arguments"] |= facts
    safetensors.torch.save_file(weights, path, {RECIPE_ENTRY: json.dumps(found)})
    begun = time.monotonic()
    with pytest.raises(RecipeError, match="is damaged, or does not fit"):
        kind.load(path)
    assert time.monotonic() - begun < 20
