"""The work of `regard recipe NAME train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.common import INTERRUPTED, Mistake, pick_device
from regard.cli.recipe_files import arguments_of, check_source
from regard.cli.recipe_progress import training_progress, watched_training
from regard.recipes.checkpoint import read_checkpoint
from regard.recipes.estimator import check_score
from regard.recipes.training import DivergedError

if TYPE_CHECKING:
    import torch

    from regard.doctor import Doctor
    from regard.recipes.datasets import Dataset
    from regard.recipes.estimator import Recipe
    from regard.recipes.kit import Kit

DIVERGED = (
    "the training diverged: try another --seed, or a smaller rate= of the estimator in Python"
)


def run_training(
    kit: Kit, set_: str | None, path: Path, watched: bool, options: dict[str, Any]
) -> None:
    """Train, or go on, and save; exits with 1 if the training diverged or the doctor found a failure."""
    name = set_ or kit.sets[0]
    check_source(kit, name, options)
    if set_ is not None:
        kit.check_set(set_)
    model = make_estimator(kit, name, options)
    check_score(model.chosen_score)  # before data are loaded
    data = kit.dataset(name, options["data"], options["download"], options["limit"])
    checkpoint = path.with_name(path.name + ".checkpoint")
    set_threads(model.chosen_device(), checkpoint)
    if checkpoint.exists():
        click.echo(f"Going on from {checkpoint}.", err=True)
    click.echo(
        f"{data.title.en}: {len(data.train):,} training rows, {len(data.validation):,} validation, "
        f"{len(data.test):,} test ({data.origin}).", err=True
    )  # fmt: skip
    try:
        with watching(watched) as doctors, training_progress(model.criterion) as shown:
            model.fit_dataset(data, checkpoint=checkpoint, progress=shown)
    except KeyboardInterrupt:
        kept = f"; the same command goes on from {checkpoint}" if checkpoint.exists() else ""
        click.echo(f"Interrupted{kept}.", err=True)
        raise SystemExit(INTERRUPTED) from None
    except DivergedError:  # no weights worth keeping
        checkpoint.unlink(missing_ok=True)
        raise click.ClickException(f"{DIVERGED}; nothing was saved") from None
    diverged = model.history_.stopped == "diverged"
    save(model, path, checkpoint)
    tell_quality(model, data)
    click.echo(f"Saved: {path}")
    failure = tell_findings(doctors) if watched else False
    if diverged:
        best = model.history_.best_epoch
        raise click.ClickException(f"{DIVERGED}; the weights of epoch {best} were saved")
    if failure:
        raise SystemExit(1)


def set_threads(device: torch.device, checkpoint: Path) -> None:
    """As many threads as run well now, or as the training had that goes on: else its last bits would differ."""
    import torch

    from regard.measuring.machine import calm_threads

    found = read_checkpoint(checkpoint)
    if found is not None and isinstance(found.facts.get("threads"), int):
        torch.set_num_threads(max(found.facts["threads"], 1))
    elif device.type == "cpu":
        torch.set_num_threads(calm_threads())


def make_estimator(kit: Kit, name: str, options: dict[str, Any]) -> Recipe:
    """The estimator at its default size for the set, with the user's options."""
    arguments = dict(kit.arguments(name)) | {"seed": options["seed"]}
    arguments["device"] = str(pick_device(options["device"]))
    for key in ("score", "epochs"):
        if options[key] is not None:
            if key not in arguments_of(kit):
                raise Mistake(f"--{key}: the recipe {kit.name} has no such argument")
            arguments[key] = options[key]
    return kit.estimator(**arguments)


@contextmanager
def watching(wanted: bool) -> Iterator[list[Doctor]]:
    """The doctor around every training in the block, if wanted."""
    if not wanted:
        yield []
        return
    with watched_training() as doctors:
        yield doctors


def tell_findings(doctors: list[Doctor]) -> bool:
    """Print what the doctor found; whether there is a failure among it."""
    from regard.doctor import Severity

    found = [one for doctor in doctors for one in doctor.findings()]
    for one in found:
        click.echo(str(one))
    count = sum(len(doctor.sites) for doctor in doctors)
    if not count:
        click.echo("The doctor saw no attention that it can watch, such as attention over edges.")
    elif not found:
        click.echo(
            f"The doctor watched {count} place{'s' * (count > 1)} of attention and found nothing."
        )
    return any(one.severity is Severity.FAILURE for one in found)


def tell_quality(model: Recipe, data: Dataset) -> None:
    """Print the quality on validation and test rows."""
    metric = model.metric
    parts = {"validation": data.validation, "test": data.test}
    told = [f"{metric.show(model.score_part(part))} on {name} rows" for name, part in parts.items()]
    click.echo(f"{metric.title.en}: {', '.join(told)}.")


def save(model: Recipe, path: Path, checkpoint: Path) -> None:
    """Save the model and remove the checkpoint; a failed write keeps the checkpoint, if one could be written."""
    try:
        model.save(path)
    except OSError as error:
        kept = f"; the training is kept in {checkpoint}" if checkpoint.exists() else ""
        raise click.ClickException(
            f"--out {path}: the model was not saved: {error.strerror or error}{kept}"
        ) from None
    checkpoint.unlink(missing_ok=True)
