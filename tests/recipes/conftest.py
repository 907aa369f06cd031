"""`run`: calls `regard recipe ...` with the fake recipe in the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from regard.cli import recipe_help
from regard.cli.app import group
from regard.recipes import catalog

from . import fake_recipe
from .recipe_commands import FAKE, USAGE


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
