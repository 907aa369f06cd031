"""The tables of docs/doctor.md, made from the code: `python -m tests.doctor.page_tables` writes them.

That of the patients is measured, which takes half a minute; all others are read off the code.

Thresholds are read off the rules themselves: each disease is asked about numbers of every kind
while the function that judges signs notes which ones it is given.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch

from regard.doctor.facts import Facts
from regard.doctor.findings import DISEASES, signs
from regard.doctor.findings.evidence import Declared, Evidence
from regard.doctor.findings.finding import Severity
from regard.doctor.remedies import REMEDIES
from regard.doctor.vitals import VITALS, SeenForm
from regard.doctor.vitals.table import BROKEN

from .patients import PLANTED
from .patients.treated import REFUSED, diagnosed, first_remedy

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
RESULTS = PAGE.parents[1] / "benchmarks" / "results"
MACHINES = {"2 CPU cores": "doctor_cpu.json", "one NVIDIA H200": "doctor_h200.json"}
STEPS, HEADS = 24, 4
# By vital and direction: the source by threshold and severity.
Signs = dict[tuple[str, bool], dict[tuple[float, Severity], str]]


def vitals_table() -> str:
    """Every vital."""
    rows = [
        (f"`{x.name}`", x.unit, "backward" if x.backward else x.level.value, x.meaning)
        for x in VITALS
    ]
    return table(("vital", "unit", "level", "what it says"), rows)


def diseases_table() -> str:
    """Every disease, with what advice begins with."""
    rows = [
        (f"`{x.name}`", x.title, ", ".join(f"`{advice.remedy}`" for advice in x.remedies) or "none")
        for x in DISEASES
    ]
    return table(("disease", "what is found", "what helps, the best first"), rows)


def remedies_table() -> str:
    """Every remedy."""
    rows = [
        (f"`{name}`", x.does if x.applies else f"(by hand) {x.does}", x.source)
        for name, x in REMEDIES.items()
    ]
    return table(("remedy", "what it does", "source"), rows)


def thresholds_table() -> str:
    """Every sign of every disease, the severities that it speaks for beside one another."""
    rows = []
    for disease in DISEASES:
        found = signs_of(disease.name)
        assert found, f"{disease.name} judged nothing"
        for (vital, above), levels in found.items():
            grades: dict[float, list[str]] = {}
            for threshold, severity in sorted(levels, key=lambda x: x[1]):
                grades.setdefault(threshold, []).append(str(severity))
            said = [f"{number(x)} ({', '.join(names)})" for x, names in grades.items()]
            sources = dict.fromkeys(levels.values())
            level = f"{'above' if above else 'below'} {', '.join(said)}"
            rows.append((f"`{disease.name}`", vital, level, "; ".join(sources)))
    return table(("disease", "sign", "speaks", "source"), rows)


def number(x: float) -> str:
    """A threshold; the largest number of a dtype was not chosen by hand."""
    return "the largest number" if x > 1e30 else f"{x:.4g}"


def signs_of(name: str) -> Signs:
    """The signs that a disease asks for, with their thresholds and sources."""
    found: Signs = {}
    disease = next(x for x in DISEASES if x.name == name)

    def note(disease, e, severity, needed, also=(), **options) -> None:
        for sign in (*needed, *also):
            levels = found.setdefault((sign.vital, sign.above), {})
            levels[sign.threshold, severity] = sign.source

    with judged_by(note):
        for sites in cases():
            for finding in disease.find(disease, sites):  # one that judges by itself
                note(disease, None, finding.severity, finding.signals)
    return found


@contextmanager
def judged_by(note) -> Iterator[None]:
    """With another function in place of `judge`, wherever it was imported."""
    with ExitStack() as undo:
        for module in list(sys.modules.values()):
            own = getattr(module, "__name__", "").startswith("regard.doctor.findings.")
            if own and getattr(module, "judge", None) is signs_judge:
                undo.enter_context(mock.patch.object(module, "judge", note))
        yield


signs_judge = signs.judge


def cases() -> Iterator[list[Evidence]]:
    """Sites of all kinds: numbers that grow, mixed ones, and sizes that every rule can ask about."""
    names = tuple(vital.name for vital in VITALS)
    shape = (STEPS, HEADS, len(names))
    numbers = torch.Generator().manual_seed(0)
    mixed = 0.05 + 0.9 * torch.rand(shape, generator=numbers)
    broken = mixed.clone()
    broken[..., [names.index(x) for x in BROKEN]] = 1.0
    broken[..., names.index("masked_rows")] = 0.0
    no_side = mixed.clone()
    no_side[..., [names.index("query_grad"), names.index("key_grad")]] = torch.nan
    no_rows = mixed.clone()
    no_rows[..., names.index("logit_max")] = torch.nan
    for values in (mixed, broken, no_side, no_rows):
        for kind in SeenForm:
            for frozen in (True, False):
                declared = Declared(True, frozen, True)
                facts = Facts(kind, 4, 128, 128, 64, 1.0, False)
                yield [
                    Evidence(f"h.{i}.attn", f"h.{i}.attn", "sdpa", list(range(1, STEPS + 1)),
                             values, names, facts, declared)
                    for i in range(4)
                ]  # fmt: skip


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """In Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def patients_table() -> str:
    """Every planted patient, treated: what its first remedy did to the number that counts."""
    rows = []
    for patient in PLANTED:
        case = diagnosed(patient)
        name, disease = f"`{patient.name}`", f"`{patient.disease}`"
        if patient.name in REFUSED:
            rows.append((name, disease, "none can be applied", "refused with the reason"))
            continue
        treatment, effect = first_remedy(patient, case)
        shown = effect.signal.vital if effect.direct else effect.signal.made_of
        numbers = f"{shown} {effect.before:.3g} -> {effect.after:.3g}"
        result = "healthy" if treatment.healed else "better"
        rows.append((name, disease, f"`{treatment.remedy.name}`", f"{numbers} ({result})"))
    return table(("patient", "disease", "first remedy", "before -> after, same batch"), rows)


def costs_table() -> str:
    """What each level adds, out of the committed results of benchmarks/doctor_overhead.py."""
    rows = []
    for machine, file in MACHINES.items():
        found = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        for case, row in found["costs"].items():
            batch, mask, step, level = case.split(", ")
            shown = (f"{100 * row[x]:+.1f}" for x in ("low", "high"))
            cost = f"{100 * row['cost']:+.1f}% ({' to '.join(shown)})"
            if "host_ms" in row:
                host = f"{row['host_ms']:.1f} and {row['watched_host_ms']:.1f} ms"
            else:
                host = ""
            cells = (f"{machine}, {batch}", f"{step}, {mask}", f"`{level}`", cost)
            rows.append((*cells, f"{row['unwatched_ms']:.1f} ms", host))
    head = (
        "where",
        "what",
        "level",
        "adds (half of the rounds)",
        "to",
        "of it the host, without and with",
    )
    return table(head, rows)


TABLES = {
    "costs": costs_table,
    "vitals": vitals_table,
    "diseases": diseases_table,
    "thresholds": thresholds_table,
    "remedies": remedies_table,
}
MEASURED = {"patients": patients_table}


def between(name: str) -> re.Pattern[str]:
    """What stands between the marks of a table."""
    return re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with these tables made anew."""
    for name, make in tables.items():
        found = make()
        page, count = between(name).subn(lambda m, text=found: f"{m[1]}{text}\n{m[2]}", page)
        assert count == 1, f"the page has {count} places for the table of {name}"
    return page


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(written(page, {**TABLES, **MEASURED}), encoding="utf-8")
