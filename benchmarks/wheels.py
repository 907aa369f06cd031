"""Unpacks the wheels of a folder that this Python lacks: `python benchmarks/wheels.py WHEELS FOLDER`.

For machines without a network. A wheel is a zip file; one whose modules can be imported already is left alone.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path


def modules_in(wheel: zipfile.ZipFile) -> set[str]:
    """The names by which the wheel's modules are imported."""
    found = set()
    for name in wheel.namelist():
        first, _, rest = name.partition("/")
        if rest == "__init__.py" or (not rest and first.endswith(".py")):
            found.add(first.removesuffix(".py"))
    return found


def main() -> None:
    """Unpack what is missing, and say what that was."""
    source, target = map(Path, sys.argv[1:])
    for path in sorted(source.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            absent = [one for one in modules_in(wheel) if importlib.util.find_spec(one) is None]
            if absent:
                wheel.extractall(target)
                print(f"{path.name}: unpacked, for there is no {', '.join(sorted(absent))}")


if __name__ == "__main__":
    main()
