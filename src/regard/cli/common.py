"""What several commands share: their errors and the `--shape` and `--device` options."""

from __future__ import annotations

from typing import Any

import click
import torch

from regard.choosing.cost.shape import EXAMPLE, KEYS, Shape, ShapeError, parse_shape

INTERRUPTED = 130  # the exit code after Ctrl-C


class Mistake(click.ClickException):
    """Something the user can put right: one message, exit code 2, no traceback."""

    exit_code = 2


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


def pick_device(name: str) -> torch.device:
    """The device asked for; `auto` is the GPU where there is one."""
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
