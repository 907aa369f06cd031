"""Which code a result was measured with: results of other code are run again."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from regard.claims.claim import Claim

# Rooms whose code decides what a claim measures: its own, and the neutral ones it shares with
# `regard choose` and `regard bench`. The library under test is not among them: a claim is about
# attention, and a faster kernel does not make its result old.
MEASURES = ("regard.claims", "regard.measuring", "regard.synthetic")
# These say how a result looks, not what it is: a new colour costs no new run, only new figures.
LOOKS = ("regard.figures.canvas", "regard.figures.render", "regard.text")


class ModuleSource(NamedTuple):
    """The code of a module without its words, and the measuring modules that it imports."""

    text: str
    imports: frozenset[str]


def code_version(claim: Claim) -> str:
    """A digest of the claim's file and of everything in the rooms of `MEASURES` that it imports."""
    reached: set[str] = set()
    waiting = [type(claim).__module__, Claim.__module__]
    while waiting:
        name = waiting.pop()
        found = source(name)
        if found is not None and name not in reached:
            reached.add(name)
            waiting += found.imports.difference(LOOKS)
    return digest(reached)


def looks_version() -> str:
    """A digest of what figures are drawn with."""
    return digest(LOOKS)


def digest(names: Iterable[str]) -> str:
    """Of the sources of these modules, in the order of their names."""
    parts = (f"{name}\n{found.text}" for name in sorted(names) if (found := source(name)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def source(name: str) -> ModuleSource | None:
    """None where there is no such module: `from a import b` may name a module or a thing in one."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # what stands before the last dot is no package
        return None
    text = getattr(spec and spec.loader, "get_source", lambda _: None)(name)
    return None if text is None else ModuleSource(bare(text), frozenset(measuring_imports(text)))


def bare(text: str) -> str:
    """The code without comments and docstrings: better words cost no new run."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def measuring_imports(text: str) -> Iterable[str]:
    """Names in the rooms of `MEASURES` that the text imports, at its top or further in."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{alias.name}" for alias in names)]
            case _:
                continue
        yield from (
            name for name in found if name.startswith(tuple(f"{room}." for room in MEASURES))
        )
