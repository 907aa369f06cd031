"""`regard claims`: list, run, show and report the tested statements about attention."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from regard.cli import names
from regard.cli.common import (
    INTERRUPTED,
    Mistake,
    console,
    json_option,
    offering,
    pick_device,
    seed_option,
)
from regard_command import load_library

if TYPE_CHECKING:
    from regard.claims.claim import Claim
    from regard.claims.registry import Survey
    from regard.claims.running.runner import ClaimRunner, RunOrder
    from regard.claims.running.store import ResultStore
    from regard.text import Language

Command = TypeVar("Command", bound=Callable[..., Any])
NEEDS = ("scipy", "statsmodels", "jinja2")
INSTALL = "pip install 'regard[claims]'"
FOLDER = Path("regard-claims")
LIST_HELP = """List statements about attention, each tested by an experiment.

The list shows the last verdict of each. The criterion of an experiment is written before the run, and the
verdict is computed from the measured numbers.

\b
Examples:
  regard claims
  regard claims run --quick
  regard claims run C1 E --full --seed 1
  regard claims show C1
  regard claims report --lang zh
  regard claims --json

Exit codes: 0 done; 1 the output could not be written; 2 a mistake in the arguments, or a folder that
cannot be read; 130 interrupted.
"""
RUN_HELP = """Run claims: those with the given IDS (C1) or groups (C), or all.

Each claim is saved as ID.json, ID.svg and ID.png when it is finished. A claim that has already been run
with the same seed and code, at this size or at full size, is not run again. At the end a report is written
as one HTML file.

\b
Examples:
  regard claims run
  regard claims run C1 c2 E --seed 1
  regard claims run --full --jobs 8 --out full
  regard claims run C --json

Exit codes: 0 done; 1 a claim failed to run (ID.log in the folder says why), or a file could not be
written; 2 a mistake in the arguments, or a folder that cannot be used; 130 interrupted (the same command
continues the run).
"""
SHOW_HELP = """Show one claim: statement, criterion, verdict and what it means.

\b
Examples:
  regard claims show C1
  regard claims show b2 --lang zh --out full

Exit codes: 0 done; 1 the output could not be written; 2 there is no such claim, or its folder cannot
be read.
"""
REPORT_HELP = """Write the report of saved results as one HTML file, without running claims.

\b
Examples:
  regard claims report
  regard claims report --lang zh --to claims-zh.html

Exit codes: 0 done; 1 the report could not be written; 2 there are no results, or no such folder.
"""


class Verbs(click.Group):
    """A group whose error for an unknown command shows how to run a claim by its id."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that `args` name, or an error with an example."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise Mistake(
                f"there is no command {args[0]!r}; the commands are run, show and report. "
                f"Example: regard claims run C1"
            )
        return super().resolve_command(ctx, args)


def careful(command: Command) -> Command:
    """The command with its requirements checked, torch loaded, and user errors as one message."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        for package in NEEDS:
            if importlib.util.find_spec(package) is None:
                raise click.ClickException(f"regard claims needs {package}: {INSTALL}")
        load_library()
        from regard.claims.registry import UnknownClaim
        from regard.claims.running.store import ResultStoreError

        # Statements have characters that some terminals cannot encode.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            return command(*arguments, **options)
        except (ResultStoreError, UnknownClaim) as error:
            raise Mistake(str(error)) from None

    return run  # type: ignore[return-value] # the same arguments


def named_folder(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """The folder, unless it is empty: an unset shell variable would fill the current folder."""
    if value == Path():
        raise Mistake('--out is empty; give a folder, or --out "$PWD" for the current one')
    return value


out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    callback=named_folder,
    default=FOLDER,
    show_default=True,
    metavar="DIR",
    help="Folder with the results.",
)
language_option = click.option(
    "--lang",
    "language",
    type=click.Choice(names.LANGUAGES),
    default="en",
    show_default=True,
    help="Language of statements, verdicts and figures.",
)


@click.group(
    cls=Verbs,
    help=LIST_HELP,
    invoke_without_command=True,
)
@json_option
@out_option
@language_option
@click.pass_context
def claims(ctx: click.Context, as_json: bool, out: Path, language: Language) -> None:
    """List all claims; the help text is above."""
    if ctx.invoked_subcommand is None:
        list_all(as_json, out, language)
        return
    if as_json:
        raise Mistake("put --json after the command: regard claims run --json, or show ID --json")
    # --out and --lang before the command apply to it too.
    ctx.default_map = {name: {"out": out, "language": language} for name in claims.commands}


@careful
def list_all(as_json: bool, out: Path, language: Language) -> None:
    """Print every claim with its last verdict."""
    from regard.claims.report import present
    from regard.claims.running.store import load_results

    known = load().claims
    if as_json:
        print_json(known.values(), out, language)
    else:
        results = load_results(out, known)
        present.show_list(list(known.values()), results, language, console())


def print_json(claims: Iterable[Claim], out: Path, language: Language) -> None:
    """Print claims with their last results as a JSON list."""
    from regard.claims.report import present
    from regard.claims.running.store import load_results

    known = {claim.id: claim for claim in claims}
    results = load_results(out, known)
    found = [present.as_json(claim, results.get(name), language) for name, claim in known.items()]
    click.echo(json.dumps(found, indent=2, ensure_ascii=False))


@claims.command(help=RUN_HELP, short_help="Run claims and write the report.")
@click.argument("ids", nargs=-1, shell_complete=offering(names.claims_and_groups))
@click.option("--quick", is_flag=True, help="Small sizes; minutes for all claims. [default]")
@click.option("--full", is_flag=True, help="Full sizes; about an hour for all claims.")
@seed_option
@out_option
@click.option("--again", is_flag=True, help="Also run finished claims again.")
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=None,
    help="Claims to run in parallel.  [default: one per core]",
)
# The default is the CPU: a seed gives the same numbers only on the same kind of device.
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to run on; auto takes the GPU if there is one.",
)
@language_option
@click.option("--no-report", is_flag=True, help="Do not write a report at the end.")
@json_option
@careful
def run(
    ids: tuple[str, ...],
    quick: bool,
    full: bool,
    seed: int,
    out: Path,
    again: bool,
    jobs: int | None,
    device: str,
    language: Language,
    no_report: bool,
    as_json: bool,
) -> None:
    """Run claims; the help text is above."""
    from regard.claims.registry import find
    from regard.claims.report import present
    from regard.claims.running.runner import RunOrder, default_jobs
    from regard.claims.running.store import ResultStore

    if quick and full:
        raise Mistake("--quick and --full exclude each other: give one of them")
    where = pick_device(device).type
    known = load()
    chosen = installed(find(ids, known.claims))
    order = RunOrder(full, seed, where, language, jobs or default_jobs(), again)
    with ResultStore(out).opened() as store:
        runner = carry_out(chosen, store, order)
        try:
            if as_json:
                print_json(chosen, out, language)
            else:
                present.show_run(runner, language, console())
        finally:  # an output that cannot be written, as on a full disk, must not cost the report
            if not no_report and (runner.ran or runner.kept):
                write(out, language, out / names.REPORT, quiet=as_json)
    for name in runner.failed:
        click.echo(f"{name} failed: {store.path(name, 'log')} has the details", err=True)
    if runner.failed or known.broken:
        raise SystemExit(1)


def installed(chosen: list[Claim]) -> list[Claim]:
    """The claims that can run with what is installed; the others are told, and an error if none is left."""
    from regard.claims.tools.recipes import RecipeClaim

    missing = {
        claim.id: sentence
        for claim in chosen
        if isinstance(claim, RecipeClaim) and (sentence := claim.missing())
    }
    left = [claim for claim in chosen if claim.id not in missing]
    if not left:
        raise click.ClickException("; ".join(dict.fromkeys(missing.values())))
    for name, sentence in missing.items():
        click.echo(f"{name} is left out: {sentence}", err=True)
    return left


def carry_out(chosen: list[Claim], store: ResultStore, order: RunOrder) -> ClaimRunner:
    """Run the claims with progress bars; Ctrl-C prints how many were finished."""
    from regard.claims.running.runner import ClaimRunner
    from regard.claims.running.store import ResultStoreError
    from regard.measuring.progress import progress

    runner = ClaimRunner(chosen, store, order)
    for sentence in runner.said:
        click.echo(sentence, err=True)
    titles = {claim.id: claim.statement.of(order.language) for claim in chosen}
    try:
        with progress(runner.shares(), titles) as shown:
            runner.run(shown)
    except (
        ResultStoreError
    ) as error:  # the folder was usable at the start: not a mistake in arguments
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo(
            f"Interrupted: {len(runner.ran)} of {len(runner.todo)} claims were finished and are kept "
            f"in {store.folder}; the same command continues.",
            err=True,
        )
        raise SystemExit(INTERRUPTED) from None
    return runner


@claims.command(help=SHOW_HELP, short_help="Show one claim and its last result.")
@click.argument("name", metavar="ID", shell_complete=offering(names.claims))
@json_option
@out_option
@language_option
@careful
def show(name: str, as_json: bool, out: Path, language: Language) -> None:
    """Show one claim; the help text is above."""
    from regard.claims.registry import find
    from regard.claims.report import present
    from regard.claims.running.store import load_results

    chosen = find([name], load().claims)
    if len(chosen) > 1:
        raise Mistake(f"{name!r} is a group; give one of {', '.join(c.id for c in chosen)}")
    (claim,) = chosen
    result = load_results(out, {claim.id: claim}).get(claim.id)
    if as_json:
        found = present.as_json(claim, result, language)
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        present.show_claim(claim, result, language, console())


@claims.command(help=REPORT_HELP, short_help="Write the report again.")
@out_option
@language_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help=f"Path of the HTML file.  [default: {names.REPORT} in --out]",
)
@careful
def report(out: Path, language: Language, to: Path | None) -> None:
    """Write the report; the help text is above."""
    from regard.claims.running.store import load_results

    if not load_results(out, load().claims):
        raise Mistake(f"there are no results in {out}: `regard claims run` makes them")
    path = to or out / names.REPORT
    if not path.parent.is_dir():
        raise Mistake(f"the report {path} could not be written: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise Mistake(f"the report {path} could not be written: this exists and is not a file")
    write(out, language, path)


def write(folder: Path, language: Language, path: Path, *, quiet: bool = False) -> None:
    """Write the report and print where it is."""
    from regard.claims.report import write_report

    try:
        written = write_report(folder, language, path)
    except OSError as error:
        raise click.ClickException(
            f"the report {path} could not be written: {error.strerror or error}"
        ) from None
    click.echo(f"Report: {written}", err=quiet)


def survey() -> Survey:
    """All claims. A function of this module, so that tests can replace it."""
    from regard.claims import registry

    return registry.survey()


def load() -> Survey:
    """All claims that can be loaded; the error of each other one is printed."""
    found = survey()
    for file, error in found.broken.items():
        why = " ".join(f"{type(error).__name__}: {error}".split())
        click.echo(f"regard claims: {file} cannot be loaded: {why}", err=True)
    return found
