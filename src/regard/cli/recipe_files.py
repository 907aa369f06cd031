"""Models, texts and pictures that `regard recipe` reads and writes."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from regard.cli.common import Mistake
from regard.recipes import catalog
from regard.text import encodable

if TYPE_CHECKING:
    from regard.recipes.estimator import Recipe
    from regard.recipes.kit import Kit

FOLDER = Path("regard-recipes")
PICTURES = (".svg", ".png")


def check_source(kit: Kit, name: str, options: dict[str, Any]) -> None:
    """Refuse --data and --download for a set that comes with a package: they would have no effect."""
    row = catalog.listed(kit.name)
    for key in ("data", "download"):
        if options[key] and name in row.own:
            raise Mistake(
                f"--{key}: the set {name} needs none; give a public one by --set: {', '.join(row.public)}"
            )


def writable(path: Path, option: str = "--out") -> Path:
    """The path, if a file can be written there, before anything that takes minutes."""
    if path.exists() and not path.is_file():
        raise Mistake(f"{option} {path}: this exists and is not a file")
    if not path.parent.is_dir():
        raise Mistake(f"{option} {path}: there is no folder {path.parent}")
    try:  # links are followed, as they are when the file is written
        with TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):  # noqa: PTH120
            return path
    except OSError as error:
        raise Mistake(f"{option} {path}: {error.strerror or error}") from None


def readable(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments, if all are texts: the shell passes on any bytes."""
    if not all(map(encodable, value)):
        raise Mistake("an input is no text in UTF-8")
    return value


def find_model(name: str, path: Path | None) -> Path:
    """The file of a trained model: here or where `make demo` and comparisons write. Imports no torch.

    Args:
        name: of the recipe.
        path: the file that was given; None for the one that `train` writes.
    """
    wanted = path or Path(f"{name}.safetensors")
    if wanted.exists():
        return wanted
    if path is None and (FOLDER / wanted).exists():
        click.echo(f"Model: {FOLDER / wanted}", err=True)
        return FOLDER / wanted
    raise Mistake(f"there is no model {wanted}: `regard recipe {name} train` makes one")


def load_model(kit: Kit, path: Path, device: str) -> Recipe:
    """A trained model."""
    import torch

    from regard.cli.common import pick_device
    from regard.measuring.machine import calm_threads

    where = pick_device(device)
    if where.type == "cpu":
        torch.set_num_threads(calm_threads())
    return kit.estimator.load(path, device=where)


def arguments_of(kit: Kit) -> list[str]:
    """The names of the estimator's arguments."""
    return list(inspect.signature(kit.estimator).parameters)


def read_lines(source: Path | None) -> list[str]:
    """The lines of a file, or of stdin if something is piped into it.

    Only a line feed ends a line, and what it is written with on other systems: `splitlines` also splits at the
    separators of Unicode, which stand inside sentences, so that results would not line up with inputs.
    """
    try:
        if source is not None:
            text = source.read_text(encoding="utf-8")
        else:
            text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
        text.encode()  # where the locale is C, bytes of stdin that are no UTF-8 pass until here
    except UnicodeError:
        named = "stdin" if source is None else f"--file {source}"
        raise Mistake(f"{named} is no text in UTF-8") from None
    text = text.removeprefix("\ufeff")  # the mark with which some editors begin a file
    return text.removesuffix("\n").split("\n") if text else []


def write_out(path: Path, content: bytes) -> None:
    """Write a result, or fail with one line."""
    from regard.measuring.files import write_atomic

    try:
        write_atomic(path, content)
    except OSError as error:
        raise click.ClickException(
            f"{path} could not be written: {error.strerror or error}"
        ) from None
    click.echo(f"Saved: {path}")


def writable_picture(path: Path) -> Path:
    """The path, if it names a picture that can be written."""
    if path.suffix not in PICTURES:
        raise Mistake(f"--to {path}: pictures are .svg or .png")
    return writable(path, "--to")
