"""A browser for tests of HTML: the system's Chromium, or else one that it installs.

`python -m regard.testing.browser` finds or installs one and prints its path. Needs playwright.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# Two test processes may install it at once: with this timeout the second waits for the first.
APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq")
LONGEST_INSTALL, LONGEST_START = 600, 60  # seconds


class NoBrowser(RuntimeError):
    """No browser was found or installed; the message says what was tried."""


def provide() -> Path:
    """The path of a Chromium that starts; it is installed if there is none and we may.

    Raises:
        NoBrowser: with the reason why each way failed.
    """
    reasons = []
    for way in (system, own, from_packages, from_playwright):
        try:
            path = way()
            run([str(path), "--version"], LONGEST_START)
        except NoBrowser as error:
            reasons.append(str(error))
        else:
            return path
    raise NoBrowser(f"no browser for the tests: {'; '.join(reasons)}")


def system() -> Path:
    """The Chromium or Chrome on the path."""
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    raise NoBrowser(f"none of {', '.join(NAMES)} is on the path")


def own() -> Path:
    """The Chromium that Playwright downloaded earlier."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("playwright is not installed") from None
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    if not path.is_file():
        raise NoBrowser("Playwright has not downloaded one")
    return path


def from_packages() -> Path:
    """The Chromium that apt-get installs; only as root, since sudo could ask for a password."""
    if shutil.which("apt-get") is None:
        raise NoBrowser("there is no apt-get to install one with")
    if os.geteuid() != 0:
        raise NoBrowser("apt-get may install one for root alone")
    run([*APT, "update"], LONGEST_INSTALL)
    run([*APT, "install", "--yes", "--no-install-recommends", "chromium"], LONGEST_INSTALL)
    return system()


def from_playwright() -> Path:
    """The Chromium that Playwright downloads."""
    run([sys.executable, "-m", "playwright", "install", "chromium"], LONGEST_INSTALL)
    return own()


def run(command: list[str], seconds: float) -> None:
    """Run a command; if it fails, raise `NoBrowser` with the line that names the error."""
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        result = subprocess.run(  # noqa: S603 - our own commands
            command, capture_output=True, text=True, timeout=seconds, check=False, env=quiet
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBrowser(f"{command[0]}: {error}") from None
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines() or ["it said nothing"]
        why = next((line for line in said if re.search("error|^E:", line, re.IGNORECASE)), said[-1])
        raise NoBrowser(f"`{' '.join(command)}` failed: {why.strip()}")


if __name__ == "__main__":
    try:
        print(provide())
    except NoBrowser as error:
        raise SystemExit(f"error: {error}") from None
