"""What several commands share: errors, consoles, and options. Nothing here loads torch by itself."""

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
VALUES = {"dtype": DTYPES, "causal": ("0", "1")}  # keys of a shape that are no sizes


class Mistake(click.ClickException):
    """Something the user can put right: one message, exit code 2, no traceback."""

    exit_code = 2


class Amount(click.FloatRange):
    """A number in a range, which "nan" is not, nor an infinity."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """As click does, and finite."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number", param, ctx)
        return found


class ShapeType(click.ParamType):
    """`key=value,key=value` as a `Shape`."""

    name = "shape"

    def convert(self, value: Any, param: Any, ctx: Any) -> Shape:
        """Parse, with the parser's own message on failure."""
        if isinstance(value, Shape):
            return value
        try:
            return parse_shape(value)
        except ShapeError as error:
            raise Mistake(str(error)) from None

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The next key, or the value of one that has only a few."""
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
    """Completes one of these names, in small or in large letters."""

    def complete(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        typed = incomplete.lower()
        return [CompletionItem(name) for name in names() if name.lower().startswith(typed)]

    return complete


def offering_lists(names: Iterable[str]) -> Callable[..., list[CompletionItem]]:
    """Completes the last of several of these names, between commas."""

    def complete(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        left = (name for name in names if name not in before.split(","))
        found = (name for name in left if name.lower().startswith(last.lower()))
        return [CompletionItem(before + comma + name) for name in found]

    return complete


def offering_files(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
    """Completes a file where the value may be something else too."""
    return [CompletionItem(incomplete, type="file")]


def console(*, stderr: bool = False) -> Console:
    """For tables and colours. NO_COLOR takes the bold away too: then there is no escape code."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    colours, width = None if plain else "auto", None
    columns = os.environ.get("COLUMNS")
    if columns and not columns.strip(
        "0"
    ):  # of a terminal that does not know: rich would print nothing
        width = shutil.get_terminal_size().columns
    return Console(highlight=False, stderr=stderr, color_system=colours, width=width)


def pick_device(name: str) -> torch.device:
    """The device asked for; `auto` is the GPU where there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise Mistake("--device cuda: torch sees no GPU here. Use --device cpu")
    return torch.device(name)


def keys_help() -> str:
    """The keys of a shape as a list for `--help`."""
    lines = [f"  {name:<10} {meaning}" for name, meaning in KEYS.items()]
    return "\b\nKeys of --shape:\n" + "\n".join(lines)


def need_shape(ctx: Any, param: Any, value: Shape | None) -> Shape:
    """Ask for a shape with an example, which click's own message lacks."""
    if value is None:
        raise Mistake(f"--shape is missing. Example: regard {ctx.info_name} --shape {EXAMPLE}")
    return value


shape_option = click.option(
    "--shape",
    type=ShapeType(),
    callback=need_shape,
    metavar="KEY=N,...",
    help="Sizes: see the keys above. [needed]",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run; auto takes the GPU if there is one.",
)
seed_option = click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Of the inputs and weights.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
