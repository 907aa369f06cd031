"""Makes an environment that holds a wheel and what it requires, linked from the one that runs this.

    python tests/wheel/environment.py FOLDER WHEEL

The requirements are those of the wheel's own metadata and theirs in turn, no extras: whatever else is
installed here cannot be imported there. Installing torch anew instead copies about a gigabyte.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required(lines: Iterable[str]) -> list[Requirement]:
    """The requirements that hold on this machine without extras."""
    found = [Requirement(line) for line in lines]
    return [x for x in found if x.marker is None or x.marker.evaluate({"extra": ""})]


def closure(lines: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions that the requirements lead to, by canonical name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = required(lines)
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        installed = importlib.metadata.distribution(wanted.name)
        if not wanted.specifier.contains(installed.version, prereleases=True):
            raise SystemExit(f"error: {wanted} is required, and {installed.version} is installed")
        if name not in found:
            found[name] = installed
            waiting += required(installed.requires or [])
    return found


def link(installed: importlib.metadata.Distribution, site: Path) -> None:
    """Link every top-level file and folder of a distribution into `site`."""
    tops = {path.parts[0] for path in installed.files or []} - {"..", "__pycache__"}
    if not tops:
        raise SystemExit(f"error: {installed.name} does not list its files")
    for top in tops:
        if not (site / top).exists():  # folders that several distributions share
            (site / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


def main(folder: Path, wheel: Path) -> None:
    """Make the environment."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (own,) = importlib.metadata.distributions(path=[str(site)])
    linked = closure(own.requires or [])
    for installed in linked.values():
        link(installed, site)
    print(f"wheel-test: {own.name} with {', '.join(sorted(linked))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
