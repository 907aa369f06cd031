"""`regard doctor MODEL --check`: test the attention of a model by laws."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from regard.cli.common import INTERRUPTED, Mistake, console
from regard.cli.progress import progress

if TYPE_CHECKING:
    import torch

    from regard.doctor.laws.result import Checked
    from regard.doctor.patients.patient import Patient


class CheckRequest(NamedTuple):
    """The arguments of the command that concern a check."""

    model: str
    data: Path | None
    causal: bool | None
    size: int
    seed: int
    where: torch.device
    report: Path | None
    as_json: bool
    strict: bool


def run_check(asked: CheckRequest) -> int:
    """Check the first batch of a model and print the result; returns the exit status."""
    from regard.doctor.patients import Unusable, open_patient

    try:
        # Whatever the user's code prints goes to stderr, so that stdout holds JSON alone.
        with redirect_stdout(sys.stderr) if asked.as_json else nullcontext():
            patient = open_patient(asked.model, asked.data, seed=asked.seed, size=asked.size)
            result = checked(patient, asked.causal, asked.where)
    except Unusable as error:
        raise Mistake(str(error)) from None
    except KeyboardInterrupt:
        click.echo("Interrupted: the model was not changed.", err=True)
        return INTERRUPTED
    if not result.sites:
        raise Mistake(f"{asked.model}: no attention was seen, so there is nothing to check")
    result = result._replace(model=asked.model)
    if asked.as_json:
        found = {"schema": 1, "seed": asked.seed, "said": patient.said, "check": result.as_dict()}
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        result.show()
    saved = asked.report is None or save(result, asked.report, quiet=asked.as_json)
    alarms = ("failure", "warning", "note") if asked.strict else ("failure", "warning")
    ill = any(str(x.severity) in alarms for ruling in result.rulings for x in ruling.findings)
    return 0 if saved and not ill else 1


def checked(patient: Patient, causal: bool | None, where: torch.device) -> Checked:
    """The result for a patient's first batch, with what its vitals show in one evaluation."""
    import torch

    from regard.doctor.checkup import batch_at, run
    from regard.doctor.laws.checking import check
    from regard.doctor.running import undisturbed
    from regard.doctor.vitals import Level
    from regard.doctor.watch import watch

    for sentence in patient.said:
        click.echo(f"{patient.name}: {sentence}", err=True)
    patient.model.to(where)
    batch = batch_at(patient, 0, where)
    doctor = watch(patient.model, Level.EXACT)
    with undisturbed(patient.model), torch.no_grad(), doctor:
        run(patient, batch)  # an error of the model becomes one sentence here
    with progress(console(stderr=True)) as step:
        result = check(patient.model, batch, causal=causal, on_law=step)
    return result._replace(vitals=tuple(doctor.findings()))


def save(result: Checked, path: Path, quiet: bool) -> bool:
    """Write the report and print where it is; return whether that worked."""
    try:
        result.report(path)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        click.echo(f"Error: --report: cannot write the report to {path}: {said}", err=True)
        return False
    click.echo(f"Report: {path}", err=quiet)
    return True
