"""`regard choose`: parse, measure, print, save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from regard.choose import files
from regard.choose.measurement import Step, measure
from regard.choose.present import show_report
from regard.choose.results import Report
from regard.choose.shape import Shape, ShapeError
from regard.cli.common import (
    INTERRUPTED,
    Mistake,
    device_option,
    keys_help,
    pick_device,
    seed_option,
    shape_option,
)
from regard.measuring.machine import calm_threads

HELP = f"""Which attention score should you use, and what will it cost?

Measures every score on this machine at the shape you give: time, peak memory, parameters and
error against fp64, with the textbook's additive attention beside ours. Nothing is trained. Prints
the answer and a table; writes choose.json, choose.png and choose.svg.

\b
Examples:
  regard choose --shape d_q=256,d_k=128,len=1024,heads=8
  regard choose --shape d_q=64,len=2048,heads=8,key_heads=2,causal=1
  regard choose --shape d_q=512,d_k=256,len_q=1,len_k=8192 --json

{keys_help()}

Exit codes: 0 done, 1 a file could not be written or a score failed its error check, 2 a mistake
in the arguments, 130 interrupted (what was measured is printed).
"""


@click.command(help=HELP)
@shape_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("regard-choose"),
    show_default=True,
    metavar="DIR",
    help="Folder for the chart and the JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(min=0.1, max=86400),
    default=30,
    show_default=True,
    help="For the timing rounds together.",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=None,
    help="CPU threads; by default as many as are free.",
)
@device_option
@seed_option
def choose(
    shape: Shape,
    out: Path,
    as_json: bool,
    seconds: float,
    threads: int | None,
    device: str,
    seed: int,
) -> None:
    """Compare all scores at a shape; the help text is above."""
    where = pick_device(device)
    if where.type == "cpu":
        torch.set_num_threads(threads or calm_threads())
    with progress(Console(stderr=True)) as step:
        try:
            report = measure(shape, device=where, seed=seed, seconds=seconds, on_step=step)
        except ShapeError as error:
            raise Mistake(str(error)) from None
    saved = False
    try:
        if as_json:
            click.echo(files.to_json(report), nl=False)
        else:
            show_report(report, Console(highlight=False))
    finally:  # a pipe that was closed, as by `head`, must not cost the files
        saved = save(report, out, quiet=as_json)
    if report.interrupted:
        raise SystemExit(INTERRUPTED)
    if report.of("failed") or not saved:
        raise SystemExit(1)


@contextmanager
def progress(console: Console) -> Iterator[Step]:
    """A bar with the time left; nothing where stderr is not a terminal."""
    columns = (TextColumn("{task.description:<36}"), BarColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("preparing", total=None)

        def step(label: str, done: float, total: float) -> None:
            bar.update(task, description=label, completed=done, total=max(total, done))

        yield step


def save(report: Report, out: Path, quiet: bool) -> bool:
    """Write the files and say where; a folder that cannot be written loses only the files."""
    try:
        written = files.save(report, out)
    except OSError as error:
        why = error.strerror or str(error)
        click.echo(f"Error: --out {out}: the results were not saved: {why}", err=True)
        return False
    names = ", ".join(path.name for path in written)
    click.echo(f"Saved in {out}: {names}", err=quiet)
    return True
