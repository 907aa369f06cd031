"""Counts planted faults that are found, and healthy models that are accused: writes a result file.

`python -m tests.doctor.laws.matrix benchmarks/results/doctor-laws.json` from the root of the repository. It writes after
each group; names of groups after the file count only these anew.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.doctor.findings import Severity
from regard.doctor.laws.checking import check
from regard.doctor.laws.result import Checked

from .faults import FAULTS
from .healthy import HEALTHY, WIDE, Healthy
from .hosts import HOSTS, Host

# What was counted when hosts and models were looked at for the first time, before anything was changed.
FIRST_LOOK = {
    "hosts kept apart": {"planted": 269, "found": 265, "at_the_right_site": 265},
    "families of transformers": {"healthy": 55, "alarms": 2},
}


class Planted(NamedTuple):
    """One fault in one host."""

    host: Host
    fault: str
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        where = "all" if len(self.layers) == self.host.layers else f"layer {self.layers[0]}"
        return f"{self.host.name}: {self.fault}, {where}"


class Outcome(NamedTuple):
    """What a check said of a planted fault."""

    found: bool  # the law is broken,
    placed: bool  # and its first site is where the fault is,
    others: tuple[str, ...]  # and these laws are broken besides, which the fault does not break


def planted(apart: bool | None = None) -> Iterator[Planted]:
    """Each fault in one layer, and in all layers."""
    for host in HOSTS:
        if apart is not None and host.apart != apart:
            continue
        for fault in host.plantable():
            yield Planted(host, fault, (host.layers // 2,))
            if host.layers > 1:
                yield Planted(host, fault, tuple(range(host.layers)))


def examined(case: Planted) -> Checked:
    """The result for a planted fault."""
    torch.manual_seed(zlib.crc32(case.name.encode()))
    model = case.host.build(dict.fromkeys(case.layers, case.fault)).eval()
    return check(model, case.host.batch(), **case.host.options)


def outcome(case: Planted, result: Checked) -> Outcome:
    """Whether a fault was found, and where."""
    fault = FAULTS[case.fault]
    broken = {x.law: x for x in result.broken}
    ruling = broken.get(fault.law)
    wanted = case.host.site.replace("{}", str(min(case.layers)))
    if case.fault == "positions-lost":
        wanted = case.host.site.replace("{}", "0")
    placed = ruling is not None and ruling.findings[0].site.partition("#")[0] == wanted
    others = tuple(x for x in broken if x != fault.law and x not in fault.also)
    return Outcome(ruling is not None, placed, others)


def count_planted(apart: bool) -> dict[str, Any]:
    """Planted faults that are found in hosts that were kept apart, or in the others."""
    counts, missed = Counter(), []
    for case in planted(apart):
        said = outcome(case, examined(case))
        counts.update(planted=1, found=said.found, at_the_right_site=said.placed)
        counts.update(with_other_laws_broken=bool(said.others))
        if not (said.found and said.placed) or said.others:
            missed.append({"case": case.name, **said._asdict()})
    hosts = sorted({h.name for h in HOSTS if h.apart == apart})
    return {**counts, "hosts": hosts, "missed": missed}


def count_healthy(cases: list[Healthy]) -> dict[str, Any]:
    """Healthy models that are accused."""
    accused, notes = [], 0
    for case in cases:
        said = case.examined()
        if said.broken:
            accused.append({"case": case.name, "broken": [x.law for x in said.broken]})
        notes += any(x.severity is Severity.NOTE for x in said.findings)
    return {
        "healthy": len(cases),
        "alarms": len(accused),
        "with_notes": notes,
        "accused": accused,
    }


GROUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "hosts the laws were made with": lambda: count_planted(False),
    "hosts kept apart": lambda: count_planted(True),
    "healthy models": lambda: count_healthy([x for x in HEALTHY if not x.apart]),
    "healthy models kept apart": lambda: count_healthy([x for x in HEALTHY if x.apart]),
    "families of transformers": lambda: count_healthy(list(WIDE)),
}


def main(path: str, *names: str) -> None:
    """Count all groups, or those named, and write them beside what the file has."""
    file = Path(path)
    result: dict[str, Any] = json.loads(file.read_text()) if names else {}
    result.pop("seconds", None)
    result |= {"torch": str(torch.__version__), "command": "python -m tests.doctor.laws.matrix"}
    for name in names or GROUPS:
        result[name] = GROUPS[name]()
        print(name, {k: x for k, x in result[name].items() if isinstance(x, int)}, flush=True)
        result["at the first look"] = FIRST_LOOK
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
