"""The group of commands. A new verb is one file beside this one, added at the end."""

from __future__ import annotations

import click
import torch

import regard
from regard.cli.bench import bench
from regard.cli.choose import choose
from regard.cli.claims import claims
from regard.cli.doctor import doctor
from regard.cli.explain import explain
from regard.cli.play import play

HELP = """Attention for PyTorch: which score to use, what it costs, what runs.

\b
Examples:
  regard choose --data my.npz
  regard choose --shape d_q=256,d_k=128,len=1024,heads=8
  regard explain --shape d_q=64,len=512,heads=8 --score additive
  regard bench --quick
  regard claims run --quick
  regard doctor growing-logits
  regard play
"""


@click.group(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    regard.__version__,
    prog_name="regard",
    message=f"%(prog)s %(version)s, torch {torch.__version__}",
)
def group() -> None:
    """The root of all commands; its help text is above."""


group.add_command(choose)
group.add_command(explain)
group.add_command(bench)
group.add_command(claims)
group.add_command(doctor)
group.add_command(play)
