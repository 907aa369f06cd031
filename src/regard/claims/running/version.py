"""Digests of the code that a result was measured with; a result of other code counts as outdated."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from regard.claims.claim import Claim

# Packages whose code decides what a claim measures: `claims` itself, and those that it shares with
# `regard choose` and `regard bench`. The library under test is not among them: a claim is about
# attention, and a faster kernel does not make its result outdated.
MEASURES = ("regard.claims", "regard.measuring", "regard.synthetic")
# Modules that only decide how a result looks: after a change here figures are redrawn, but nothing is
# measured again.
LOOKS = ("regard.figures.canvas", "regard.figures.render", "regard.text")


class ModuleSource(NamedTuple):
    """A module's code without comments and docstrings, and the modules in `MEASURES` that it imports."""

    text: str
    imports: frozenset[str]


def code_version(claim: Claim) -> str:
    """Digest of the claim's file and of all it imports from `MEASURES`, directly or indirectly."""
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
    """Digest of the modules that figures are drawn with."""
    return digest(LOOKS)


def digest(names: Iterable[str]) -> str:
    """16 hex digits of the SHA-256 of these modules' code, in the order of their names."""
    parts = (f"{name}\n{found.text}" for name in sorted(names) if (found := source(name)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def source(name: str) -> ModuleSource | None:
    """The source of a module, or None if there is no module of that name.

    `from a import b` may import a module or an attribute, so some names passed here are attributes.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the part before the last dot is not a package
        return None
    text = getattr(spec and spec.loader, "get_source", lambda _: None)(name)
    return None if text is None else ModuleSource(bare(text), frozenset(measuring_imports(text)))


def bare(text: str) -> str:
    """The code without comments and docstrings, so that rewording them makes no result outdated.

    A docstring becomes `pass`. Adding or removing one therefore does change the code.
    """
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def measuring_imports(text: str) -> Iterable[str]:
    """Names in `MEASURES` that the text imports, at the top of the module or inside functions."""
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
