"""Imports point one way: every room of the library knows only the rooms below it.

The tables here are the rules that docs/architecture.md states. A room is a folder or a file of
`src/regard`. Imports under `if TYPE_CHECKING:` do not count: they load nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from regard.recipes.catalog import NAMES as RECIPES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# From the ground up. A room may import rooms of the layers below its own, and no others.
LAYERS: dict[str, tuple[str, ...]] = {
    "words": ("describe", "text", "page"),
    "basics": ("arguments", "activations", "precision", "norms"),
    "observers": ("observed",),
    "forms": ("mask", "forms", "sine"),
    "scores": ("scores", "stabilize", "problem"),
    "engines": ("engines",),
    "attention": ("attention", "checks", "prepare", "repeats"),
    "modules": ("nn",),
    "explaining": ("explaining",),
    "library": ("regard",),
    "integrations": ("integrations",),
    "measuring": ("measuring", "synthetic", "testing"),
    "figures": ("figures",),
    "tools": ("doctor", "plot", "play"),
    "recipes": ("recipes",),
    "answers": ("bench", "choosing", "claims"),
    "command": ("cli", "regard_command", "regard_pytest"),
}
# Rooms of one layer that know each other, in this direction only.
NEIGHBOURS = {
    ("norms", "arguments"),
    ("forms", "activations"),
    ("sine", "forms"),
    ("stabilize", "scores"),
    ("attention", "checks"),
    ("attention", "prepare"),
    ("prepare", "checks"),
    ("attention", "repeats"),
    ("regard_command", "cli"),
    ("cli", "regard_command"),  # the entry point is beside the package, and loads it when asked to
}
# Imports that point up. Each stands inside a function, so that importing the lower room loads nothing.
UPWARD = {
    ("scores", "attention"),  # `score(query, key)` is `regard.score` written as a call
    ("nn", "regard"),  # a saved file names the version
    ("regard", "choosing"),  # `regard.choose`, loaded when it is first used
    ("explaining", "doctor"),  # `regard.explain(module)` sees calls as the doctor does
}
# Engines never import one another; these are what they may share; `lineup` alone names them all, and `plan` asks it.
SHARED_BY_ENGINES = ("base", "drawing", "gpu", "hiding", "launching", "native", "sizes", "tiled")
ENGINE_PLAN = ("plan", "lineup", "edge_plan", "step_plan")
# Folders of `nn` are apart, but for what modules share and these.
SHARED_BY_MODULES = ("fit", "linear", "padding")
MODULE_NEIGHBOURS = {("transformer", "position")}
# Recipes are apart, but for what they share, and for words as sequences of letters.
RECIPE_NEIGHBOURS = {("letters", "translate")}
# In the doctor each part knows only those before it.
DOCTOR = (
    "seen", "vitals", "facts", "chart", "capture", "findings", "running", "sites", "signature", "watch",
    "remedies", "report", "probing", "laws", "patients", "checkup",
)  # fmt: skip
# `Doctor`'s methods reach for what is built on it when they are called.
DOCTOR_UPWARD = {("watch", "remedies"), ("watch", "report")}


class Import(NamedTuple):
    """One import of our own code. `late` is one inside a function."""

    importer: str
    imported: str
    late: bool


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: Path) -> list[Import]:
    """Every import of our own modules in a tree of sources."""
    paths = {module_name(path, source): path for path in sorted(source.rglob("*.py"))}
    return [
        Import(name, found, late)
        for name, path in paths.items()
        for found, late in imported(ast.parse(path.read_text(encoding="utf-8")), set(paths))
    ]


def imported(node: ast.AST, known: set[str], late: bool = False) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            late = True
        case ast.Import(names=names):
            yield from ((alias.name, late) for alias in names if alias.name in known)
        case ast.ImportFrom(module=str(module), names=names) if module in known:
            for alias in names:
                full = f"{module}.{alias.name}"
                yield full if full in known else module, late
    for child in ast.iter_child_nodes(node):
        yield from imported(child, known, late)


def room(module: str) -> str:
    """The folder or file of `src/regard` that a module is in; entry points belong to the command."""
    first, *rest = module.split(".")
    if rest[-1:] == ["__main__"]:
        return "cli"
    return rest[0] if rest else first


def height(layers: Mapping[str, tuple[str, ...]] = LAYERS) -> dict[str, int]:
    return {name: level for level, rooms in enumerate(layers.values()) for name in rooms}


def broken_walls(imports: list[Import]) -> list[str]:
    """A sentence for each import that points up, or sideways."""
    levels, found = height(), []
    for one in imports:
        pair = room(one.importer), room(one.imported)
        if pair[0] == pair[1] or pair in NEIGHBOURS or (one.late and pair in UPWARD):
            continue
        if levels[pair[1]] >= levels[pair[0]]:
            found.append(f"{one.importer} imports {one.imported}: {pair[0]} may not know {pair[1]}")
    return found


def within(imports: list[Import], folder: str) -> Iterator[tuple[str, str, Import]]:
    """Imports between two parts of a folder, with the names of the parts."""
    for one in imports:
        parts = [name.split(".")[:3] for name in (one.importer, one.imported)]
        if all(len(part) == 3 and part[1] == folder for part in parts):
            ours, theirs = parts[0][2], parts[1][2]
            if ours != theirs:
                yield ours, theirs, one


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(SOURCE)


def test_every_room_has_a_layer(imports: list[Import]) -> None:
    rooms = {room(name) for one in imports for name in one[:2]}
    assert rooms == set(height())


def test_imports_point_down(imports: list[Import]) -> None:
    assert not broken_walls(imports)


def test_engines_do_not_know_one_another(imports: list[Import]) -> None:
    bad = [
        one
        for ours, theirs, one in within(imports, "engines")
        if ours not in ENGINE_PLAN and theirs not in SHARED_BY_ENGINES
    ]
    assert not bad


def test_what_engines_share_knows_no_engine(imports: list[Import]) -> None:
    bad = [
        one
        for ours, theirs, one in within(imports, "engines")
        if ours in SHARED_BY_ENGINES and theirs not in SHARED_BY_ENGINES
    ]
    assert not bad


def test_folders_of_modules_are_apart(imports: list[Import]) -> None:
    bad = [
        one
        for ours, theirs, one in within(imports, "nn")
        if theirs not in SHARED_BY_MODULES and (ours, theirs) not in MODULE_NEIGHBOURS
    ]
    assert not bad


def test_recipes_are_apart_and_what_they_share_knows_none(imports: list[Import]) -> None:
    bad = [
        one
        for ours, theirs, one in within(imports, "recipes")
        if (theirs in RECIPES and (ours, theirs) not in RECIPE_NEIGHBOURS)
        or (theirs == "comparing" and ours not in RECIPES)
    ]
    assert not bad


def test_only_the_command_brings_a_doctor_to_a_recipe(imports: list[Import]) -> None:
    pairs = {(room(one.importer), room(one.imported)) for one in imports}
    assert ("recipes", "doctor") not in pairs
    assert ("cli", "doctor") in pairs


def test_parts_of_the_doctor_know_those_before_them(imports: list[Import]) -> None:
    order = {name: number for number, name in enumerate(DOCTOR)}
    bad = [
        one
        for ours, theirs, one in within(imports, "doctor")
        if order[theirs] > order[ours] and not (one.late and (ours, theirs) in DOCTOR_UPWARD)
    ]
    assert not bad


def test_experiments_know_tools_and_never_the_other_way_round(imports: list[Import]) -> None:
    order = {
        "claim": 0,
        "absent": 1,
        "tools": 1,
        "experiments": 2,
        "registry": 3,
        "running": 4,
        "report": 5,
    }
    bad = [one for ours, theirs, one in within(imports, "claims") if order[theirs] > order[ours]]
    assert not bad


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("choosing/api.py", "from regard.claims import all_claims"),
        ("claims/tools/timing.py", "import regard.choosing.api"),
        ("scores/dot.py", "from regard.attention import attention"),
        ("measuring/clock.py", "def f():\n    from regard.bench import runner"),
    ],
)
def test_a_broken_wall_is_found(tmp_path: Path, importer: str, line: str) -> None:
    """The rules are worth what they catch: a tree with one bad import in it."""
    targets = ("claims", "choosing/api", "attention", "bench/runner")
    for name in (*(f"{target}.py" for target in targets), importer):
        path = tmp_path / "regard" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        (path.parent / "__init__.py").touch()
    (tmp_path / "regard" / "__init__.py").touch()
    assert not broken_walls(imports_of(tmp_path))
    (tmp_path / "regard" / importer).write_text(line)
    assert len(broken_walls(imports_of(tmp_path))) == 1


def test_an_import_for_types_alone_counts_nothing() -> None:
    text = "if TYPE_CHECKING:\n    from regard.claims import Claim"
    assert not list(imported(ast.parse(text), {"regard.claims"}))
