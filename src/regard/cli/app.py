"""The root command: the table of verbs, and the error messages and exit codes that all share.

A new verb is one row of `VERBS` and one file beside this one, with a command of the same name.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from regard.cli.common import INTERRUPTED


class Verb(NamedTuple):
    """A command: its name, which is also that of its file, its purpose, and an example."""

    name: str
    about: str
    example: str


VERBS = (
    Verb("choose", "Find the best score for your data, and its cost.", "choose --data mine.npz"),
    Verb(
        "explain",
        "Show which engine would run a score, and why.",
        "explain --shape d_q=64,len=512,heads=8 --score additive",
    ),
    Verb("bench", "Time additive attention here, beside other libraries.", "bench --quick"),
    Verb("claims", "Test statements about attention by experiment.", "claims run --quick"),
    Verb("doctor", "Check whether the attention in a model is healthy.", "doctor growing-logits"),
    Verb("recipe", "Train, use and compare models for real tasks.", "recipe letters train"),
    Verb("play", "Drag vectors in a browser and compare all scores.", "play"),
    Verb("completion", "Print a script for Tab completion in your shell.", "completion bash"),
)
# The similarity, by difflib, from which a name is suggested: "chose" suggests "choose", "run" nothing.
NEAR = 0.7
EXAMPLES = "\n".join(f"  regard {verb.example}" for verb in VERBS)
HELP = f"""Attention for PyTorch: which score to use, what it costs, how it runs.

\b
Examples:
{EXAMPLES}

Exit codes of every command: 0 done; 1 a check failed, or a result could not be saved; 2 a mistake in
the arguments or the data; 130 interrupted. `regard COMMAND --help` has the details.
"""


class Commands(click.Group):
    """A group that imports a command when it is called, and reports every mistake in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the table."""
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command in the file of that name."""
        for verb in VERBS:
            if verb.name == cmd_name:
                found = getattr(importlib.import_module(f"regard.cli.{cmd_name}"), cmd_name)
                found.short_help = verb.about
                return found
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` name; an unknown one raises an error that suggests a name.

        click's own suggestion does not work here: its table of commands is empty.
        """
        known = self.list_commands(ctx)
        if not (args[0] in known or args[0].startswith("-") or ctx.resilient_parsing):
            raise click.UsageError(f"No such command {args[0]!r}.{meant(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; a mistake prints one line, and Ctrl-C exits with status 130."""
        options["standalone_mode"] = False
        try:
            try:
                status = super().main(*arguments, **options)
            except SystemExit as end:
                status = end.code
            sys.stdout.flush()  # here: while Python exits, a full disk could not be reported any more
        except click.ClickException as error:
            click.echo(f"Error: {sentence(error)}", err=True)
            status = error.exit_code
        except OSError as error:  # a full disk behind stdout, or an impossible file name
            given = "" if error.filename is None else f": {printable(str(error.filename)[:80])}"
            click.echo(f"Error: {error.strerror or error}{given}", err=True)
            status = 1 if error.filename is None else 2
        except click.Abort:  # Ctrl-C; commands that have results to keep catch it before
            click.echo("Interrupted.", err=True)
            status = INTERRUPTED
        raise SystemExit(status if isinstance(status, int) else 0)


def printable(text: str) -> str:
    """The text with control characters spelled out, so that it cannot control the terminal."""
    return "".join(x if x.isprintable() else ascii(x)[1:-1] for x in text)


def sentence(error: click.ClickException) -> str:
    """The error message on one line; for a usage error with the help page to look at."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):  # click suggests up to three, even dissimilar ones
        params = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
        known = [name for param in params for name in (*param.opts, *param.secondary_opts)]
        text = f"No such option {error.option_name!r}.{meant(error.option_name, known)}"
    text = printable(" ".join(text.split()))
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return text
    stop = "" if text.endswith((".", "?", "?)")) else "."
    return f"{text}{stop} See {error.ctx.command_path} --help"


def meant(given: str, known: Iterable[str]) -> str:
    """The question "Did you mean ...?" with the nearest name; empty if none is near."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=NEAR)
    return f" Did you mean {near[0]}?" if near else ""


def say_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Print the versions of regard and torch, on which measurements depend."""
    if wanted and not ctx.resilient_parsing:
        versions = {"regard": "__init__.py", "torch": "version.py"}
        said = (f"{package} {version_in(package, file)}" for package, file in versions.items())
        click.echo(", ".join(said))
        ctx.exit()


def version_in(package: str, file: str) -> str:
    """`__version__` of a package, read from one of its files: importing torch takes seconds.

    The metadata of a wheel is not enough: for torch it may lack the build, such as +cu126.
    """
    try:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            text = Path(spec.origin).with_name(file).read_text(encoding="utf-8")
            if found := re.search(r"""^__version__ = ["'](.+)["']$""", text, re.MULTILINE):
                return found[1]
        return importlib.import_module(package).__version__
    except Exception:  # torch is missing, or its installation is broken
        return "not found"


@click.group(
    cls=Commands,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=say_version,
    help="Show the versions of regard and torch.",
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """The root of all commands; its help text is above."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
