"""`regard doctor`: run a model while the doctor watches, print the findings, save the report."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from regard.cli import names
from regard.cli.common import (
    INTERRUPTED,
    Amount,
    Mistake,
    console,
    device_option,
    json_option,
    offering,
    pick_device,
    seed_option,
)
from regard_command import load_library

if TYPE_CHECKING:
    import torch

    from regard.doctor.checkup import Checkup
    from regard.doctor.findings import Finding
    from regard.doctor.probing import Probe
    from regard.doctor.report.data import Record

HELP = """Is the attention in a model healthy, why not, and what helps?

MODEL is one of three: package.module:function, a function that returns a model, (model, batch) or
(model, batch, loss), looked up in the current folder too; a Hugging Face folder on disk; or a bundled
example. Weights in a folder are read from safetensors, or from pytorch_model.bin with weights_only. No
code in the folder is run, and nothing is unpickled.

\b
Examples:
  regard doctor growing-logits
  regard doctor mymodels.small:build --steps 200 --report doctor.html
  regard doctor ./my-bert --data lines.txt --probe
  regard doctor mymodels.small:build --check --causal
  regard doctor ./my-gpt2 --check --report check.html
  regard doctor mymodels.small:build --json --strict

With a loss, data and more than one step the model is trained. Otherwise it runs as it is, and its
weights do not change. No file is written except the report.

--check trains nothing. It runs the first batch a few times with tokens replaced and tests laws that hold
for every correct model: no output sees a token that it may not see, padding is not read, and so on.

Exit codes: 0 healthy, or only notes and warnings; 1 a finding is a failure (with --strict, a warning
too), a law is broken (with --strict, a note too), the loss is not a number, or the report could not be written; 2 a mistake in the arguments;
130 interrupted (the results so far are printed).
"""


def patients(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a bundled example or a folder."""
    bundled = offering(lambda: names.PATIENTS)(ctx, param, incomplete)
    return [*bundled, CompletionItem(incomplete, type="dir")]


@click.command(help=HELP)
@click.argument("model", required=False, shell_complete=patients)
@click.option("--list", "list_them", is_flag=True, help="List the bundled examples.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Arrays (.npz, .safetensors, .pt) with the names of the model's arguments, or text (.txt) "
    "for a folder with a tokenizer.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1, 10**9),
    help="Batches to run or train on. [default: 1; examples have their own]",
)
@click.option(
    "--train/--no-train",
    default=None,
    help="Train, or run the model as it is. [default: train if possible, see above]",
)
@click.option(
    "--rate",
    metavar="R",
    type=Amount(min=0, min_open=True),
    help="Learning rate of AdamW. [default: 0.001; examples have their own]",
)
@click.option(
    "--batch",
    "size",
    metavar="N",
    type=click.IntRange(1, 10**6),
    default=8,
    show_default=True,
    help="Batch size for --data.",
)
@click.option(
    "--level",
    type=click.Choice(["cheap", "sampled", "exact"]),
    help="How much to measure. [default: sampled in training, else exact]",
)
@click.option(
    "--probe", "attack", is_flag=True, help="Also attack the model, to see what it withstands."
)
@click.option(
    "--check",
    "by_laws",
    is_flag=True,
    help="Test laws of attention: masks, padding, axes, gradients.",
)
@click.option(
    "--causal/--no-causal",
    default=None,
    help="With --check: whether outputs may see earlier tokens only. [default: as the model says]",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report: JSON if the name ends in .json, else HTML.",
)
@json_option
@click.option("--strict", is_flag=True, help="Count warnings as failures; with --check, notes too.")
@device_option
@seed_option
def doctor(
    model: str | None,
    list_them: bool,
    data: Path | None,
    steps: int | None,
    train: bool | None,
    rate: float | None,
    size: int,
    level: str | None,
    attack: bool,
    by_laws: bool,
    causal: bool | None,
    report: Path | None,
    as_json: bool,
    strict: bool,
    device: str,
    seed: int,
) -> None:
    """Examine a model; the help text is above."""
    if list_them:
        show_examples(as_json)
        return
    if model is None:
        raise Mistake("MODEL is missing. Example: regard doctor healthy; --list names the others")
    check_report(report)
    check_options(by_laws, causal, steps=steps, train=train, level=level, probe=attack or None)
    load_library()
    where = pick_device(device)
    if by_laws:
        from regard.cli.doctor_check import CheckRequest, run_check

        raise SystemExit(
            run_check(CheckRequest(model, data, causal, size, seed, where, report, as_json, strict))
        )
    from regard.doctor.checkup import prepare
    from regard.doctor.patients import Unusable, open_patient
    from regard.doctor.report import record_of

    try:
        # Whatever the user's code prints goes to stderr, so that stdout holds JSON alone.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            patient = open_patient(model, data, seed=seed, size=size)
            patient.rate = rate or patient.rate
            checkup, count = prepare(patient, steps=steps, train=train, level=level, device=where)
            examine(checkup, count, where)
            probe = attack_it(checkup, where) if attack and not checkup.interrupted else None
    except Unusable as error:
        raise Mistake(str(error)) from None
    findings = checkup.doctor.findings()
    record = record_of(checkup.doctor, findings, name=model, probe=probe)
    try:
        show(checkup, record, probe, seed, as_json)
    finally:  # an output that cannot be written, as on a full disk, must not cost the report
        saved = report is None or save(checkup, findings, probe, report, quiet=as_json)
    if checkup.interrupted:
        raise SystemExit(INTERRUPTED)
    bad = ("failure", "warning") if strict else ("failure",)
    ill = any(str(finding.severity) in bad for finding in findings)
    if ill or checkup.stopped or not saved:
        raise SystemExit(1)


def examine(checkup: Checkup, steps: int, where: torch.device) -> None:
    """Run all steps, with a live table if stderr is a terminal."""
    from regard.doctor.checkup import carry_out
    from regard.doctor.patients import Unusable
    from regard.doctor.report.live import live

    patient, doctor = checkup.patient, checkup.doctor
    for sentence in patient.said:
        click.echo(f"{patient.name}: {sentence}", err=True)
    screen = live(doctor, total=steps, file=sys.stderr) if sys.stderr.isatty() else None
    carry_out(checkup, steps, where, screen)
    if not doctor.sites:
        raise Unusable(
            f"{patient.name}: no attention was seen, so there is nothing to examine. The doctor sees "
            "SDPA, FlexAttention, nn.MultiheadAttention, softmax attention written out, and regard's own"
        )


def attack_it(checkup: Checkup, where: torch.device) -> Probe | None:
    """The result of the attack on the first batch, or None if the model raised an error."""
    from regard.cli.progress import progress
    from regard.doctor.checkup import batch_at
    from regard.doctor.patients.function import worded
    from regard.doctor.probing import probe

    batch = batch_at(checkup.patient, 0, where)
    with progress(console(stderr=True)) as step:
        try:
            return probe(checkup.patient.model, batch, step)
        except Exception as error:  # raised by the user's code, on inputs that it was not made for
            click.echo(f"--probe: the model raised an error: {worded(error)}", err=True)
            return None


def show(checkup: Checkup, record: Record, probe: Probe | None, seed: int, as_json: bool) -> None:
    """Print the findings, as text or as JSON."""
    from regard.doctor.report.lines import width_of
    from regard.doctor.report.numbers import plain
    from regard.doctor.report.terminal import show as show_summary

    losses = checkup.losses
    if as_json:
        found = record.as_json() | {
            "schema": 1,
            "seed": seed,
            "trained": checkup.trained,
            "losses": [plain(loss) for loss in losses],
            "stopped": checkup.stopped,
            "said": checkup.patient.said,
        }
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    how = "trained" if checkup.trained else "run as it is"
    if len(losses) == 1:
        click.echo(f"{how}, one step: loss {losses[0]:.4g}; --steps asks for more")
    elif losses:
        click.echo(f"{how}: loss {losses[0]:.4g} at the first step, {losses[-1]:.4g} at the last")
    if checkup.stopped:
        click.echo(f"stopped: {checkup.stopped}")
    show_summary(record)
    if probe is not None:
        click.echo(f"\n{probe.summary(width_of())}")


def show_examples(as_json: bool) -> None:
    """List the bundled examples."""
    load_library()
    from regard.doctor.patients import EXAMPLES

    if as_json:
        click.echo(
            json.dumps({name: example.shows for name, example in EXAMPLES.items()}, indent=2)
        )
        return
    for name, example in EXAMPLES.items():
        click.echo(f"{name:<16} {example.shows}")


def check_options(by_laws: bool, causal: bool | None, **watching: object) -> None:
    """Refuse options that belong to the other way of examining."""
    if causal is not None and not by_laws:
        raise Mistake("--causal declares what --check tests; add --check")
    given = [f"--{name}" for name, value in watching.items() if value is not None]
    if by_laws and given:
        raise Mistake(f"--check trains and watches nothing; leave out {', '.join(given)}")


def check_report(path: Path | None) -> None:
    """Refuse a path that the report could not be written to, before the model runs."""
    if path is None:
        return
    if not path.name:
        raise Mistake("--report is empty; give a file, for example --report doctor.html")
    if not path.parent.is_dir():
        raise Mistake(f"--report {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise Mistake(f"--report {path}: this exists and is not a file")


def save(
    checkup: Checkup, findings: list[Finding], probe: Probe | None, path: Path, quiet: bool
) -> bool:
    """Write the report and print where it is; return whether that worked."""
    from regard.doctor.report import ReportError, write_report

    try:
        write_report(checkup.doctor, path, findings, name=checkup.patient.name, probe=probe)
    except ReportError as error:
        click.echo(f"Error: --report: {error}", err=True)
        return False
    click.echo(f"Report: {path}", err=quiet)
    return True
