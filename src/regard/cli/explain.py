"""`regard explain`: the plan of `regard.explain` for a score at a shape."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap

import click

from regard.choosing.cost.shape import Shape
from regard.cli import names
from regard.cli.common import (
    Mistake,
    device_option,
    json_option,
    keys_help,
    offering,
    pick_device,
    seed_option,
    shape_option,
)
from regard_command import load_library

LABEL, REASON = 8, 12  # columns before the text of a plan
HELP = f"""Show which engine would run a score at a shape, its error bound, and why others refuse.

\b
Examples:
  regard explain --shape d_q=64,len=512,heads=8 --score additive
  regard explain --shape d_q=32,d_k=16,len=99 --score projected_cosine --json

{keys_help()}

Exit codes: 0 done; 2 a mistake in the arguments, or a shape that the score refuses; 130 interrupted.
"""


@click.command(help=HELP)
@shape_option
@click.option(
    "--score",
    metavar="NAME",
    default="scaled_dot",
    show_default=True,
    shell_complete=offering(lambda: names.SCORES),
    help="Name of the score.",
)
@json_option
@device_option
@seed_option
def explain(shape: Shape, score: str, as_json: bool, device: str, seed: int) -> None:
    """Print the plan; the help text is above."""
    load_library()
    from regard.choosing.cost.candidates import candidates
    from regard.choosing.cost.need import inputs_need
    from regard.choosing.cost.workload import Workload, make_inputs
    from regard.measuring import memory
    from regard.measuring.times import finite

    where = pick_device(device)
    known = {c.key: c for c in candidates(shape) if not c.textbook}
    if score not in known:
        raise Mistake(f"--score {score}: unknown score. Scores at this shape: {', '.join(known)}")
    need, free = inputs_need(shape), memory.available(where)
    if need.bytes > memory.SHARE * free:
        raise Mistake(f"--shape: {need.arithmetic}, with {memory.show(free)} free")
    try:
        plan = Workload(known[score], make_inputs(shape, where, seed), seed).plan()
    except ValueError as error:
        raise Mistake(str(error)) from None
    if as_json:
        found = dataclasses.asdict(plan) | {"error_bound": finite(plan.error_bound)}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo("\n".join(map(wrapped, str(plan).splitlines())))


def wrapped(line: str) -> str:
    """A line of a plan wrapped to the terminal's width, with its text aligned."""
    width = shutil.get_terminal_size((80, 24)).columns
    indent = REASON if line.startswith(" ") else LABEL
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
