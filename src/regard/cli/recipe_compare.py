"""The work of `regard recipe NAME compare` and of `regard choose --recipe`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.common import INTERRUPTED, Mistake, console, pick_device
from regard.cli.recipe_files import check_source

if TYPE_CHECKING:
    from regard.recipes.comparing import Compared
    from regard.recipes.kit import Kit
    from regard.text import Language


def run_comparison(
    kit: Kit,
    *,
    full: bool,
    language: Language,
    as_json: bool,
    document: Callable[[Compared], dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """Run, print and save; exits with 1 if a contender failed, and 130 if it was interrupted.

    Args:
        kit: the recipe.
        full: the full comparison, not the quick one.
        language: of the table.
        as_json: print a document in place of the table.
        document: makes the document; None for the summary itself.
        options: those of the command line.
    """
    from regard.measuring.files import json_bytes
    from regard.recipes.comparing.table import show_compared

    found = carried_out(kit, full, options)
    try:
        if as_json:
            shown = found.as_json() if document is None else document(found)
            click.echo(json_bytes(shown).decode(), nl=False)
        else:
            show_compared(found, language, console())
    finally:  # an output that cannot be written, as on a full disk, must not cost the files
        save_comparison(found, options["out"], quiet=as_json)
    if found.failed:
        raise SystemExit(1)


def carried_out(kit: Kit, full: bool, options: dict[str, Any]) -> Compared:
    """Run what is left of the comparison, with progress; Ctrl-C and the time limit say how to go on."""
    from regard.measuring.progress import progress
    from regard.recipes.comparing import compare
    from regard.recipes.comparing.results import ResultError
    from regard.recipes.comparing.runner import OutOfTime, picked
    from regard.recipes.comparing.work import WorkSource, all_labels, facts_of, seeds_of

    where = pick_device(options["device"])
    out: Path = options["out"]
    check_folder(out)
    check_source(kit, options["set_"] or kit.sets[0], options)
    source = WorkSource(
        kit.name, options["set_"], options["data"], options["download"], full, str(where)
    )
    comparison, data = source.load_from(kit)
    given = options["only"]
    only = None if given is None else [one.strip() for one in given.split(",")]
    if only is not None and comparison.reference not in only:
        only.append(comparison.reference)  # all others are compared with it
    labels = all_labels(picked(comparison, only), seeds_of(comparison, options["seeds"]))
    try:
        with progress(dict.fromkeys(labels, 1.0), dict.fromkeys(labels, ""), noun="runs") as shown:
            return compare(
                comparison,
                out,
                seeds=options["seeds"],
                jobs=options["jobs"],
                progress=shown,
                resume=not options["again"],
                source=source,
                only=only,
                minutes=options["minutes"],
                dataset=facts_of(data),
                full=full,
                device=where,
            )
    except ResultError as error:  # the reference failed: nothing can be compared
        raise click.ClickException(str(error)) from None
    except OutOfTime as error:
        click.echo(f"{str(error).capitalize()}; the same command continues.", err=True)
    except KeyboardInterrupt:
        click.echo(
            f"Interrupted: finished runs are kept in {out}; the same command continues.", err=True
        )
    raise SystemExit(INTERRUPTED)


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be used, before any training starts."""
    if out == Path():
        raise Mistake('--out is empty; give a folder, or --out "$PWD" for the current one')
    out.mkdir(parents=True, exist_ok=True)


def save_comparison(found: Compared, out: Path, *, quiet: bool) -> None:
    """Write the summary and the page, and print where they are."""
    from regard.recipes.comparing.report import write_report

    page = out / f"{found.name}.html"
    try:
        found.save(out / f"{found.name}.json")
        write_report(found, page)
    except OSError as error:
        raise click.ClickException(
            f"--out {out}: the results were not saved: {error.strerror or error}"
        ) from None
    click.echo(f"Saved in {out}: {found.name}.json\nOpen the page in a browser: {page}", err=quiet)
