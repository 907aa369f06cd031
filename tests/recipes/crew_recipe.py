"""The fake recipe with contenders that die, wait or find the disk full, for tests of processes.

The test names a folder in the environment variable CREW, in which contenders leave files.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path
from typing import Any

from recipes import fake_recipe
from recipes.fake_recipe import KIT as FAKE
from regard.recipes.kit import Comparison, Contender, Evaluated


def comparison(data: Any, full: bool, device: str | None) -> Comparison:
    """The comparison of the fake recipe with one contender more, which the variable names."""
    folder = Path(os.environ["CREW"])
    found = fake_recipe.comparison(data, full, device)

    def run(setting: Any, seed: int, report: Any) -> Evaluated:
        what = (folder / "what").read_text()
        if what == "die":
            os._exit(7)
        if what == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if what == "wait":
            (folder / f"waits-{os.getpid()}").touch()
            time.sleep(600)
        return found.contenders[0].run({"rate": 0.05}, seed, report)

    odd = Contender("odd", found.contenders[0].title, "score", (), run)
    return dataclasses.replace(found, contenders=(*found.contenders, odd))


KIT = dataclasses.replace(FAKE, comparison=comparison)
