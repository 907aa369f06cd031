"""Rules that the project keeps about itself: sizes, imports, words, versions."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import regard

from .slow import unused

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "regard"
SOURCES = sorted(SRC.rglob("*.py"))

FILE_LINES, FUNCTION_LINES = 400, 60
KERNEL_FILE_LINES, KERNEL_FUNCTION_LINES = 600, 150

# Written in pieces, so that this file passes its own test.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["work", "home", "root", "Users"]) + r")/")
REGISTRY_HOST = re.compile(
    "|".join(re.escape(".".join(h)) for h in [("pypi", "org"), ("pythonhosted", "org")])
    + "|"
    + re.escape(".".join(["download", "pytorch", "org"]))
)
UNPICKLERS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}

IMPORT_PROBE = """
import json, sys
sys.modules.update(dict.fromkeys({blocked!r}))
import torch
before = set(sys.modules)
import regard
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def is_kernel(path: Path) -> bool:
    return path.is_relative_to(SRC / "engines" / "triton")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end without the docstring: maths is welcome there."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


def project_files() -> list[Path]:
    """Files that git tracks or would add; in an unpacked archive, the files that are there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        folders = ("src", "tests", "docs", "benchmarks")
        paths = [*ROOT.glob("*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]


def project_text() -> dict[str, str]:
    texts = {}
    for path in project_files():
        data = path.read_bytes()
        if b"\0" not in data:
            texts[name_of(path)] = data.decode("utf-8")
    return texts


def test_source_files_are_short() -> None:
    long = {}
    for path in SOURCES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > (KERNEL_FILE_LINES if is_kernel(path) else FILE_LINES):
            long[name_of(path)] = lines
    assert not long


def test_functions_are_short() -> None:
    long = {}
    for path in SOURCES:
        limit = KERNEL_FUNCTION_LINES if is_kernel(path) else FUNCTION_LINES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = body_lines(node)
                if lines >= limit:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines
    assert not long


def reads_tensors_alone(node: ast.AST) -> bool:
    """Whether it is a call with `weights_only=True`, which torch reads without running code."""
    match node:
        case ast.Call(keywords=keywords):
            return any(
                x.arg == "weights_only"
                and isinstance(x.value, ast.Constant)
                and x.value.value is True
                for x in keywords
            )
    return False


def test_nothing_is_unpickled() -> None:
    """A checkpoint or a report may come from a stranger: no code in it may run."""
    found = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tensors_alone = {id(node.func) for node in ast.walk(tree) if reads_tensors_alone(node)}
        for node in ast.walk(tree):
            match node:
                case ast.Attribute() if id(node) in tensors_alone:
                    continue
                case ast.Import(names=names):
                    modules = {alias.name.partition(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module), names=names):
                    modules = {module.partition(".")[0]}
                    if module == "torch" and any(alias.name == "load" for alias in names):
                        modules.add("torch.load")
                case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                    modules = {"torch.load"}
                case _:
                    continue
            if modules & (UNPICKLERS | {"torch.load"}):
                found.append(f"{name_of(path)}:{node.lineno}")
    assert not found


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["path", "registry"])
def test_no_file_names_a_machine_or_a_registry(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number} {line.strip()}"
        for name, text in project_text().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


def test_types_are_published() -> None:
    assert (SRC / "py.typed").is_file()


def test_public_names_exist_and_are_sorted() -> None:
    def order(name: str) -> tuple[int, str]:  # as ruff sorts: CONSTANTS, Classes, functions
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert [name for name in regard.__all__ if not hasattr(regard, name)] == []
    assert list(regard.__all__) == sorted(set(regard.__all__), key=order)


def test_version_is_the_same_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{regard.__version__}]" in changelog
    assert f"\nversion: {regard.__version__}\n" in citation


def test_torch_is_the_only_dependency_and_its_floor_is_the_tested_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (dependency,) = project["dependencies"]
    assert f"\nTORCH_FLOOR := {dependency.removeprefix('torch>=')}.0\n" in makefile


@pytest.mark.parametrize("blocked", [[], ["triton"]], ids=["plain", "without triton"])
def test_import_brings_torch_and_the_standard_library_alone(blocked: list[str]) -> None:
    command = [sys.executable, "-c", IMPORT_PROBE.format(blocked=blocked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    brought = set(json.loads(result.stdout))
    assert "regard" in brought
    assert brought - sys.stdlib_module_names - {"regard", "torch", "torchgen", "functorch"} == set()


@pytest.mark.slow
def test_every_pattern_of_slow_tests_still_names_one():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    own = {
        k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"
    }  # -v would change the lines
    found = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    names = [line for line in found.stdout.splitlines() if "::" in line]
    assert unused(names) == []
