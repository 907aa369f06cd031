"""`regard explain`: the library's plan for a shape."""

from __future__ import annotations

import dataclasses
import json

import click

from regard.choosing.cost.candidates import candidates
from regard.choosing.cost.need import inputs_need
from regard.choosing.cost.shape import Shape
from regard.choosing.cost.workload import Workload, make_inputs
from regard.cli.common import (
    Mistake,
    device_option,
    keys_help,
    pick_device,
    seed_option,
    shape_option,
)
from regard.measuring import memory
from regard.measuring.times import finite

HELP = f"""Which engine would run a score at a shape, its error bound, and why the others refuse.

\b
Examples:
  regard explain --shape d_q=64,len=512,heads=8 --score additive
  regard explain --shape d_q=32,d_k=16,len=99 --score projected_cosine --json

{keys_help()}
"""


@click.command(help=HELP)
@shape_option
@click.option("--score", default="scaled_dot", show_default=True, help="The name of a score.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@device_option
@seed_option
def explain(shape: Shape, score: str, as_json: bool, device: str, seed: int) -> None:
    """Print the plan; the help text is above."""
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
        click.echo(str(plan))
