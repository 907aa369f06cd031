"""`regard recipe`: list, train, use, compare and picture the recipes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.core import ParameterSource

from regard.cli import names
from regard.cli.common import (
    Amount,
    Mistake,
    device_option,
    json_option,
    offering,
    offering_files,
    seed_option,
)
from regard.cli.recipe_files import (
    FOLDER,
    find_model,
    load_model,
    read_lines,
    readable,
    writable,
    writable_picture,
    write_out,
)
from regard.cli.recipe_help import LIST, SEARCH, USAGES, help_of, option_help
from regard.recipes import catalog
from regard.text import Text
from regard_command import load_library

if TYPE_CHECKING:
    from regard.recipes.kit import Kit
    from regard.text import Language

Command = TypeVar("Command", bound=Callable[..., Any])
VERBS = ("train", "predict", "compare", "show")
TRAIN_ONE = Text("Train one: ", "训练一个：")


class Recipes(click.Group):
    """The group of recipes: each name in the catalogue is a group with the four commands.

    Attributes:
        alike: whether all groups have the same commands, and almost the same options, so that documentation shows
            those of one.
    """

    alike = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all recipes."""
        return list(catalog.NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The group of that recipe."""
        if cmd_name not in catalog.NAMES:
            return None
        return OneRecipe(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The recipe that `args` name; an unknown one raises an error with the names."""
        if args and not args[0].startswith("-") and args[0] not in catalog.NAMES:
            raise Mistake(
                f"there is no recipe {args[0]!r}; the recipes are {', '.join(catalog.NAMES)}"
            )
        return super().resolve_command(ctx, args)


class OneRecipe(click.Group):
    """The commands of one recipe; without a command its help."""

    def __init__(self, name: str) -> None:
        row = catalog.listed(name)
        super().__init__(
            name,
            commands={verb: command_of(verb, row) for verb in VERBS},
            callback=self.without_command,
            invoke_without_command=True,
            help=help_of(row),
        )

    @staticmethod
    @click.pass_context
    def without_command(ctx: click.Context) -> None:
        """Print the help, unless a command follows."""
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their use."""
        return list(VERBS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` name; an unknown one raises an error with the names."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise Mistake(
                f"there is no command {args[0]!r}; the commands are {', '.join(VERBS)}. "
                f"Example: regard recipe {ctx.info_name} train"
            )
        return super().resolve_command(ctx, args)


def careful(command: Command) -> Command:
    """The command with its packages checked, torch loaded, the recipe's kit given, and errors as one line."""

    @wraps(command)
    @click.pass_context
    def run(ctx: click.Context, **options: Any) -> Any:
        assert ctx.parent is not None and ctx.parent.info_name is not None
        name = ctx.parent.info_name
        check_packages(name)
        if "model" in options:  # before torch is loaded, which takes seconds
            options["model"] = find_model(name, options["model"])
        with mistakes():
            return command(load_kit(name), **options)

    return run  # type: ignore[return-value] # click gives the arguments


@contextmanager
def mistakes() -> Iterator[None]:
    """Errors that the user can correct, as one message; warnings without the place in our code."""
    load_library()
    from regard.recipes.checkpoint import CheckpointError
    from regard.recipes.estimator import RecipeError
    from regard.recipes.sources import DataError

    with warnings.catch_warnings():
        warnings.showwarning = tell_warning
        try:
            yield
        except (DataError, RecipeError, CheckpointError) as error:
            raise Mistake(str(error)) from None


def tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without the place in the code, in the place of `warnings.showwarning`."""
    click.echo(f"Warning: {message}", err=True)


def load_kit(name: str) -> Kit:
    """The recipe's kit, if its packages are installed."""
    check_packages(name)
    load_library()
    return catalog.kit(name)


def check_packages(name: str) -> None:
    """Refuse a recipe whose packages are not installed."""
    absent = catalog.missing(catalog.listed(name))
    if absent:
        raise Mistake(f"the recipe {name} needs {', '.join(absent)}: {catalog.INSTALL}")


def sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """A completion of the sets of the recipe that was named."""
    name = "" if ctx.parent is None else ctx.parent.info_name or ""
    known = catalog.sets(catalog.listed(name)) if name in catalog.NAMES else ()
    return offering(lambda: known)(ctx, param, incomplete)


set_option = click.option(
    "--set", "set_", metavar="NAME", shell_complete=sets,
    help="Set of data.",
)  # fmt: skip
data_option = click.option(
    "--data", type=click.Path(exists=True, file_okay=False), metavar="DIR",
    help="Folder of public data.  [default: REGARD_DATA]",
)  # fmt: skip
download_option = click.option(
    "--download", is_flag=True, help="Download the public set if no folder has it."
)
model_option = click.option(
    "--model", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    shell_complete=offering_files, help="A trained model.  [default: NAME.safetensors]",
)  # fmt: skip
language_option = click.option(
    "--lang", "language", type=click.Choice(names.LANGUAGES), default="en", show_default=True,
    help="Language of tables and figures.",
)  # fmt: skip


@click.group(cls=Recipes, help=LIST, invoke_without_command=True)
@json_option
@language_option
@click.pass_context
def recipe(ctx: click.Context, as_json: bool, language: Language) -> None:
    """List all recipes; the help text is above."""
    if ctx.invoked_subcommand is not None:
        for name in ("as_json", "language"):  # those of the commands are other options
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                option = "--json" if name == "as_json" else "--lang"
                raise Mistake(f"put {option} at the end: regard recipe NAME compare {option} ...")
        return
    if as_json:
        rows = [
            {"name": row.name, "about": row.about.of(language), "default": row.default.of(language),
             "own": list(row.own), "public": list(row.public), "missing": catalog.missing(row)}
            for row in catalog.RECIPES
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    wide = max(map(len, catalog.NAMES))
    for row in catalog.RECIPES:
        click.echo(f"{row.name:<{wide}}  {row.about.of(language)}")
    click.echo(f"\n{TRAIN_ONE.of(language)}regard recipe letters train")


@click.command(short_help="Train a model and save it.")
@set_option
@data_option
@download_option
@click.option(
    "--score",
    metavar="NAME",
    shell_complete=offering(lambda: names.RECIPE_SCORES),
    help="Attention score.",
)
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="At most so many epochs.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only so many training rows.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to save the model.  [default: NAME.safetensors]",
)
@click.option("--doctor", "watched", is_flag=True, help="Watch the attention while it trains.")
@device_option
@seed_option
@careful
def train(kit: Kit, set_: str | None, out: Path | None, watched: bool, **options: Any) -> None:
    """Train; the help text is `help_of`."""
    from regard.cli.recipe_train import run_training

    run_training(kit, set_, writable(out or kit.default_path()), watched, options)


@click.command(short_help="Predict with a trained model.")
@click.argument("text", nargs=-1, callback=readable)
@model_option
@click.option(
    "--file",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="IN",
    help="Read inputs from this file, one per line.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT",
    help="Write predictions to this file.",
)
@click.option("--beam", type=click.IntRange(1, 64), metavar="N", help="Width of the beam search.")
@click.option(
    "--best",
    "n_best",
    type=click.IntRange(1, 64),
    metavar="N",
    help="So many predictions for each input.",
)
@click.option("--length-penalty", type=Amount(0, 10), metavar="X", help="Of the beam search.")
@device_option
@careful
def predict(kit: Kit, text: tuple[str, ...], model: Path, source: Path | None, to: Path | None,
            device: str, **options: Any) -> None:  # fmt: skip
    """Predict; the help text is `help_of`."""
    from regard.cli.recipe_progress import predicted

    if text and source:
        raise Mistake("give inputs as arguments or by --file, not both")
    given = {k: v for k, v in options.items() if v is not None}
    if to is not None:
        writable(to, "--to")
    lines = list(text) or read_lines(source)
    if not lines:
        raise Mistake(
            "there is nothing to predict: give inputs as arguments or by --file. See regard recipe "
            f"{kit.name} predict --help"
        )
    found = load_model(kit, model, device)
    if "length_penalty" in given:  # an argument of the estimator, not of `predict`
        found.set_params(length_penalty=given.pop("length_penalty"))
    inputs = kit.read(lines)
    told = kit.write(inputs, predicted(kit, found, inputs, given))
    if to is None:
        click.echo("\n".join(told))
        return
    write_out(to, ("\n".join(told) + "\n").encode())


@click.command(short_help="Draw what a model attends to.")
@click.argument("text", nargs=-1, callback=readable)
@model_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PICTURE",
    help="An .svg or .png file.  [default: NAME.svg]",
)
@language_option
@device_option
@careful
def show(kit: Kit, text: tuple[str, ...], model: Path, to: Path | None, language: Language,
         device: str) -> None:  # fmt: skip
    """Draw; the help text is `help_of`."""
    from regard.figures.canvas import composed

    path = writable_picture(to or Path(f"{kit.name}.svg"))
    found = load_model(kit, model, device)
    inputs = kit.read(list(text)) if text else None
    suffix = path.suffix.removeprefix(".")
    write_out(path, composed(lambda: kit.show(found, inputs, language), [suffix])[suffix])


@click.command(short_help="Compare every score and baseline.")
@set_option
@data_option
@download_option
@click.option("--quick", is_flag=True, help="Fewer settings, seeds and epochs.  [default]")
@click.option("--full", is_flag=True, help="The full comparison.")
@click.option("--seeds", type=click.IntRange(1, 1000), metavar="N", help="How many seeds.")
@click.option("--only", metavar="NAME,...", help="Only these contenders.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    metavar="N",
    help="Parallel processes.",
)
@click.option("--minutes", type=Amount(0.01, 100000), metavar="M", help="Stop after this time.")
@click.option("--again", is_flag=True, help="Also repeat finished runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    default=FOLDER,
    show_default=True,
    help="Output folder.",
)
@language_option
@json_option
@device_option
@careful
def compare(kit: Kit, quick: bool, full: bool, **options: Any) -> None:
    """Compare; the help text is `help_of`."""
    from regard.cli.recipe_compare import run_comparison

    if quick and full:
        raise Mistake("--quick and --full exclude each other: give one of them")
    run_comparison(kit, full=full, **options)


COMMANDS: dict[str, click.Command] = {
    "train": train,
    "predict": predict,
    "compare": compare,
    "show": show,
}


def command_of(verb: str, row: catalog.Listed) -> click.Command:
    """The command of one recipe, with its own help, inputs, sets and options of a search."""
    found, usage = copy(COMMANDS[verb]), USAGES[row.name]
    found.help = help_of(row, verb)
    found.params = [
        copy(one) for one in found.params if one.name not in {*SEARCH} - {*usage.search}
    ]
    for one in found.params:
        if one.name == "text":
            one.metavar = usage.inputs
        if isinstance(one, click.Option):
            one.help = option_help(row, one.name or "", one.help or "")
            one.hidden = one.name == "download" and not usage.downloads
    return found
