"""The doctor's parts know one another in one direction, as docs/architecture.md has it."""

from __future__ import annotations

import ast
from pathlib import Path

import regard.doctor

FOLDER = Path(regard.doctor.__file__).parent
# Each knows only those before it. What a function or a type checker imports does not count: so
# `Doctor` offers what remedies and reports do.
LAYERS = (
    "seen",
    "vitals",
    "facts",
    "chart",
    "capture",
    "findings",
    "running",
    "sites",
    "signature",
    "watch",
    "remedies",
    "report",
    "probing",
    "laws",
    "patients",
    "checkup",
)


def test_imports_point_one_way() -> None:
    seen = set()
    for path in FOLDER.rglob("*.py"):
        part = path.relative_to(FOLDER).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        seen.add(part)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard.doctor"):
                known = (node.module or "").split(".")[2]
                assert LAYERS.index(known) <= LAYERS.index(part), f"{path} imports {node.module}"
    assert seen == set(LAYERS)
