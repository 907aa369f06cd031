"""`regard choose --recipe NAME`: which score for the task of a recipe, answered by the recipe's own comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from regard.cli.common import Mistake, offering
from regard.recipes import catalog

if TYPE_CHECKING:
    from regard.recipes.comparing import Compared

HELP = """With --recipe NAME: which score for a real task, such as classifying the nodes of a graph. It runs the quick
comparison of `regard recipe NAME compare`, or with --full the full one, and says which score to use, or that a model
without attention is better. --data is then the folder of public data for --set."""
EXAMPLES = """  regard choose --recipe graph
  regard choose --recipe graph --set cora --data DIR --full --json"""
# Options of `choose` that have a meaning with --recipe; the others would have no effect.
APPLY = ("recipe", "set_", "full", "data", "seeds", "minutes", "jobs", "out", "as_json", "device")


def every_set() -> list[str]:
    """The sets of all recipes."""
    return [name for row in catalog.RECIPES for name in catalog.sets(row)]


OPTIONS = [
    click.option("--recipe", metavar="NAME", shell_complete=offering(lambda: catalog.NAMES),
                 help="The task of a recipe; `regard recipe` lists them."),
    click.option("--set", "set_", metavar="NAME", shell_complete=offering(every_set),
                 help="Of --recipe: its data.  [default: those that need no folder]"),
    click.option("--full", is_flag=True, help="Of --recipe: the full comparison."),
]  # fmt: skip


def check_options(ctx: click.Context) -> None:
    """Refuse options that have no effect with --recipe, or without it."""
    for param in ctx.command.params:
        given = ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
        if not given:
            continue
        if ctx.params["recipe"] is not None and param.name not in APPLY:
            raise Mistake(f"{param.opts[0]} has no effect with --recipe; leave it out")
        if ctx.params["recipe"] is None and param.name in ("set_", "full"):
            raise Mistake(f"{param.opts[0]} belongs to a recipe: give --recipe NAME too")


def by_recipe(name: str, ctx: click.Context) -> None:
    """Run the comparison of a recipe, print the answer, and save it."""
    from regard.cli.choose import default_jobs
    from regard.cli.common import pick_device
    from regard.cli.recipe import load_kit, mistakes
    from regard.cli.recipe_compare import run_comparison

    options = ctx.params
    if name not in catalog.NAMES:
        raise Mistake(f"--recipe {name}: the recipes are {', '.join(catalog.NAMES)}")
    with mistakes():
        kit = load_kit(name)
        own_seeds = ctx.get_parameter_source("seeds") is ParameterSource.DEFAULT
        data = options["data"]
        run_comparison(
            kit,
            full=options["full"],
            language="en",
            as_json=options["as_json"],
            document=answer,
            set_=options["set_"],
            data=None if data is None else str(data),
            download=False,
            seeds=None if own_seeds else options["seeds"],
            only=None,
            jobs=options["jobs"] or default_jobs(pick_device(options["device"])),
            minutes=options["minutes"],
            again=False,
            out=options["out"],
            device=options["device"],
        )


def answer(found: Compared) -> dict[str, Any]:
    """What `--json` prints: the name of what to use, None while nothing is decided, the advice, and all numbers."""
    from regard.recipes.comparing.sentences import sentences, to_use

    return {
        "schema": 1,
        "use": to_use(found),
        "advice": [one._asdict() for one in sentences(found)],
        "compared": found.as_json(),
    }
