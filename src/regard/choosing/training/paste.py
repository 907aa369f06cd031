"""Code to paste: a score's expression with the imports that it needs."""

from __future__ import annotations

from collections.abc import Sequence

STABILIZER_CLASSES = ("ClippedKeys", "Normalized", "SoftCapped", "Tempered", "UnitKeys")


def imports(codes: Sequence[str]) -> str:
    """The import statements that these expressions need, each on its line."""
    names = [name for name in STABILIZER_CLASSES if any(f"{name}(" in code for code in codes)]
    stabilizers = f"from regard.stabilize import {', '.join(names)}\n" if names else ""
    return f"import regard\n{stabilizers}"


def runnable(code: str) -> str:
    """Python that runs as it stands; a comment, as for a user's own score, is left as it is."""
    return code if code.startswith("#") else f"{imports([code])}\nscore = {code}"
