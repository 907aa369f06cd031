"""Errors, options and consoles that several commands share. Importing it does not import torch."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from regard.choosing.cost.shape import DTYPES, EXAMPLE, KEYS, Shape, ShapeError, parse_shape

if TYPE_CHECKING:
    import torch
    from rich.console import Console

INTERRUPTED = 130  # the exit code after Ctrl-C
VALUES = {"dtype": DTYPES, "causal": ("0", "1")}  # keys of a shape with a few possible values


class Mistake(click.ClickException):
    """A mistake that the user can correct: one message, exit code 2, no traceback."""

    exit_code = 2


class Amount(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number; an error if it is out of range, infinite or NaN, which click lets pass."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


class ShapeType(click.ParamType):
    """`key=value,key=value` as a `Shape`."""

    name = "shape"

    def convert(self, value: Any, param: Any, ctx: Any) -> Shape:
        """The parsed shape; a mistake raises the parser's own message."""
        if isinstance(value, Shape):
            return value
        try:
            return parse_shape(value)
        except ShapeError as error:
            raise Mistake(str(error)) from None

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Completions of the next key, or of the value if the key has only a few."""
        before, comma, last = incomplete.rpartition(",")
        head = before + comma
        name, equals, _ = last.partition("=")
        if equals:
            offered = [f"{name}={value}" for value in VALUES.get(name, ())]
            return [CompletionItem(head + x) for x in offered if x.startswith(last)]
        given = {item.partition("=")[0] for item in before.split(",")}
        return [
            CompletionItem(f"{head}{key}=", help=meaning)
            for key, meaning in KEYS.items()
            if key.startswith(last) and key not in given
        ]


def offering(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """A completion of one of these names; upper and lower case match alike."""

    def complete(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        typed = incomplete.lower()
        return [CompletionItem(name) for name in names() if name.lower().startswith(typed)]

    return complete


def offering_lists(names: Iterable[str]) -> Callable[..., list[CompletionItem]]:
    """A completion of the last name in a list with commas; names already given are left out."""

    def complete(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        left = (name for name in names if name not in before.split(","))
        found = (name for name in left if name.lower().startswith(last.lower()))
        return [CompletionItem(before + comma + name) for name in found]

    return complete


def offering_files(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """A completion of a file, for an option that also takes other values."""
    return [CompletionItem(incomplete, type="file")]


def console(*, stderr: bool = False) -> Console:
    """A rich console for tables and colours; with NO_COLOR it prints no escape codes, not even bold."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    colours, width = None if plain else "auto", None
    columns = os.environ.get("COLUMNS")
    # A terminal of unknown size may say COLUMNS=0, with which rich would print nothing.
    if columns and not columns.strip("0"):
        width = shutil.get_terminal_size().columns
    return Console(highlight=False, stderr=stderr, color_system=colours, width=width)


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU if there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise Mistake("--device cuda: torch sees no GPU here. Use --device cpu")
    return torch.device(name)


def keys_help() -> str:
    """The list of a shape's keys, for `--help`."""
    lines = [f"  {name:<10} {meaning}" for name, meaning in KEYS.items()]
    return "\b\nKeys of --shape:\n" + "\n".join(lines)


def need_shape(ctx: Any, param: Any, value: Shape | None) -> Shape:
    """The shape; if it is missing, an error with an example, which click's own message lacks."""
    if value is None:
        raise Mistake(f"--shape is missing. Example: regard {ctx.info_name} --shape {EXAMPLE}")
    return value


shape_option = click.option(
    "--shape",
    type=ShapeType(),
    callback=need_shape,
    metavar="KEY=N,...",
    help="Sizes; the keys are listed above.  [required]",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device to run on; auto takes the GPU if there is one.",
)
seed_option = click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Random seed of inputs and weights.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
