"""How often alarms of each disease are right: writes what `findings/calibration.py` holds.

`python -m tests.doctor.calibration benchmarks/results/doctor-sureness.json` from the root of the repository.

Every patient of the tests and every healthy model of the laws, from several seeds. An alarm is right if the patient
has this disease at this site; a model counts once for each seed and disease. The count of the laws is that of
`doctor-laws.json`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from regard.doctor.findings import DISEASES, Finding, Severity
from regard.doctor.findings.calibration import share
from regard.doctor.remedies.reaching import loss_of
from regard.doctor.running import call
from regard.doctor.watch import watch

from .laws.healthy import HEALTHY as WIRINGS
from .laws.healthy import WIDE
from .patients import HEALTHY, PLANTED

SEEDS, STEPS = (0, 1, 2), 3
LAWS = Path(__file__).parents[2] / "benchmarks" / "results" / "doctor-laws.json"
# Alarms of dead-gradient when the models of the laws were first watched: fresh encoders with queries and keys of next
# to nothing. They led to a change of the rule, so these models are no longer unseen.
FIRST_LOOK = {"wrong alarms": 16, "of alarms": 416, "disease": "dead-gradient"}


def examined() -> Iterator[tuple[set[str], set[str]]]:
    """For each model and seed the diseases that were rightly and wrongly said of it."""
    for patient in (*PLANTED, *HEALTHY):
        for seed in SEEDS if not patient.slow else SEEDS[:1]:
            torch.manual_seed(seed)
            model = patient.build()
            with watch(model, every=patient.every) as doctor:
                patient.run(model)
            found = alarms(doctor.findings())
            right = {x for x in found if x.disease == patient.disease and x.site in patient.sites}
            yield {x.disease for x in right}, {x.disease for x in found - right}
    for case in (*WIRINGS, *WIDE):
        for seed in SEEDS:
            torch.manual_seed(seed)
            model, batch = case.build()
            with watch(model, every=1) as doctor:
                for _ in range(STEPS):
                    loss = loss_of(call(model, batch))
                    if loss is not None:
                        loss.backward()
            yield set(), {x.disease for x in alarms(doctor.findings())}


def alarms(found: list[Finding]) -> set[Finding]:
    """The findings above a note."""
    return {x for x in found if x.severity > Severity.NOTE}


def counted() -> dict[str, Any]:
    """Right and all alarms by disease, and what follows."""
    right, wrong, models = Counter[str](), Counter[str](), 0
    for said_rightly, said_wrongly in examined():
        models += 1
        right.update(said_rightly)
        wrong.update(said_wrongly)
    names = [x.name for x in DISEASES if right[x.name] + wrong[x.name]]
    counts = {name: (right[name], right[name] + wrong[name]) for name in names}
    laws = json.loads(LAWS.read_text())
    groups = [x for x in laws.values() if isinstance(x, dict)]
    found = sum(x["found"] for x in groups if "missed" in x)
    false = sum(x["with_other_laws_broken"] for x in groups if "missed" in x)
    false += sum(x["alarms"] for x in groups if "accused" in x)
    return {
        "command": "python -m tests.doctor.calibration",
        "torch": str(torch.__version__),
        "models": models,
        "right_and_all": counts,
        "sure": {name: share(*found) for name, found in counts.items()},
        "laws_right_and_all": (found, found + false),
        "at the first look": FIRST_LOOK,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of transformers, about options of small models
    result = counted()
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    print(result)
