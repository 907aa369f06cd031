"""`regard bench`: hands everything on to `regard.bench`, which also runs without click."""

from __future__ import annotations

import click

# `--help` is the other parser's, which knows the options.
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command(
    context_settings=PASSED_ON, short_help="Additive attention: ours and every peer, timed here."
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure ours and every peer on this machine."""
    from regard.bench import main

    raise SystemExit(main(ctx.args))
