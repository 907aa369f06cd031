"""`regard bench`: hands its arguments to the parser of `regard.bench`, which also runs without click."""

from __future__ import annotations

import argparse
from typing import Any

import click

from regard.cli import names
from regard.cli.common import offering_lists
from regard_command import load_library

OFFERED = {"peers": offering_lists((*names.PEERS, "all", "none"))}


class Bench(click.Command):
    """A command whose arguments argparse reads; click knows the options only for completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep all arguments, `--help` included, for the other parser."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        ctx.args = list(args)
        return []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the other parser."""
        from regard.bench.options import parser

        return [as_click(action) for action in parser()._actions]


def as_click(action: argparse.Action) -> click.Option:
    """The click option for an option of argparse, as completion needs it."""
    kind: Any = None
    if action.choices is not None:
        kind = click.Choice([str(choice) for choice in action.choices])
    elif action.metavar == "DIR":
        kind = click.Path(file_okay=False)
    return click.Option(
        list(action.option_strings),
        is_flag=action.nargs == 0,
        multiple=isinstance(action, argparse._AppendAction),
        type=kind,
        shell_complete=OFFERED.get(action.dest),
        metavar=action.metavar if isinstance(action.metavar, str) else None,
        help=action.help,
    )


@click.command(cls=Bench)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure our engines and every peer on this machine."""
    from regard.bench.options import parser

    options = parser().parse_args(ctx.args)
    load_library()
    from regard.bench.command import carry_out

    raise SystemExit(carry_out(options))
