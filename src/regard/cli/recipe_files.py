"""Models, texts and pictures that `regard recipe` reads and writes, and the doctor beside a training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.common import Mistake

if TYPE_CHECKING:
    from regard.recipes.estimator import Recipe
    from regard.recipes.kit import Kit

PICTURES = (".svg", ".png")


@contextmanager
def watching(wanted: bool) -> Iterator[Any]:
    """The doctor around a training, or None; it watches whatever model the training makes."""
    if not wanted:
        yield None
        return
    from regard.cli.recipe_progress import watched_training

    with watched_training() as doctors:
        yield doctors


def tell_findings(doctors: list[Any]) -> bool:
    """Print what the doctor found; whether there is a failure among it."""
    from regard.doctor import Severity

    found = [one for doctor in doctors for one in doctor.findings()]
    for one in found:
        click.echo(str(one))
    if not found:
        click.echo("The doctor found nothing.")
    return any(one.severity is Severity.FAILURE for one in found)


def save(model: Recipe, path: Path, checkpoint: Path) -> None:
    """Save the model and remove the checkpoint; a failed write keeps the checkpoint."""
    try:
        model.save(path)
    except OSError as error:
        raise click.ClickException(
            f"--out {path}: the model was not saved: {error.strerror or error}; the training is kept "
            f"in {checkpoint}"
        ) from None
    checkpoint.unlink(missing_ok=True)


def writable(path: Path) -> Path:
    """The path, if a file can be written there, before anything that takes minutes."""
    if path.is_dir():
        raise Mistake(f"--out {path} is a directory; give a file")
    if not path.parent.is_dir():
        raise Mistake(f"--out {path}: there is no folder {path.parent}")
    return path


def load_model(kit: Kit, path: Path | None, device: str) -> Recipe:
    """A trained model; without a file the error says how to make one."""
    from regard.cli.common import pick_device

    place = path or kit.default_path()
    if not place.exists():
        raise Mistake(f"there is no model {place}: `regard recipe {kit.name} train` makes one")
    return kit.estimator.load(place, device=pick_device(device))


def read_lines(source: Path | None) -> list[str]:
    """The lines of a file, or of stdin if something is piped into it."""
    if source is not None:
        try:
            return source.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise Mistake(f"--file {source} is no text in UTF-8") from None
    return [] if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().splitlines()


def write_out(path: Path, content: bytes) -> None:
    """Write a result, or fail with one line."""
    from regard.measuring.files import write_atomic

    try:
        write_atomic(path, content)
    except OSError as error:
        raise click.ClickException(
            f"{path} could not be written: {error.strerror or error}"
        ) from None
    click.echo(f"Saved: {path}", err=True)


def writable_picture(path: Path) -> Path:
    """The path, if it names a picture that can be written."""
    if path.suffix not in PICTURES:
        raise Mistake(f"--to {path}: pictures are .svg or .png")
    if not path.parent.is_dir():
        raise Mistake(f"--to {path}: there is no folder {path.parent}")
    return path
