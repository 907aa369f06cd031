"""Docstrings of Python's standard library: the first line of each is a query, the rest of it the document.

They are those of the Python that runs, so that another Python has other rows. No module is imported: its source is
parsed.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from regard.recipes.sources import DataError

SKIPPED = {
    "ctypes",
    "curses",
    "dist-packages",
    "distutils",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
}
SKIPPED |= {"site-packages", "test", "tests", "tkinter", "turtledemo"}
LEAST = 60  # characters of a body: below it there is nothing to find
LARGEST = 60_000  # bytes of a source file


@lru_cache(1)
def docstrings() -> list[tuple[str, str, str]]:
    """(name, first line, body) of each function, class and module whose docstring has both, sorted by name.

    Raises:
        DataError: this Python comes without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).with_suffix("").parts
        if SKIPPED & set(inside) or path.stat().st_size > LARGEST:
            continue
        name = ".".join(one for one in inside if one != "__init__")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):  # an example of a mistake, or of another encoding
            continue
        found.update(split_docstrings(tree, name))
    if len(found) < 100:
        raise DataError(
            f"this Python has no sources of its standard library in {root}: take another set, --set digits"
        )
    once: dict[tuple[str, str], str] = {}
    for name, both in sorted(found.items()):  # the same text at two places is one row
        once.setdefault(both, name)
    titles: dict[str, int] = {}
    for first, _ in once:
        titles[first] = titles.get(first, 0) + 1
    return sorted((name, *both) for both, name in once.items() if titles[both[0]] == 1)


def split_docstrings(tree: ast.AST, name: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The first line and the rest of every docstring of two parts, under its name."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(tree, kinds):
        first, _, body = (ast.get_docstring(tree) or "").partition("\n")
        if len(first.split()) >= 3 and len(body.strip()) >= LEAST:
            yield name, (first.strip(), body.strip())
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from split_docstrings(child, f"{name}.{child.name}")
