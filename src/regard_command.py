"""The command `regard`, which begins without the package of that name: importing it loads torch.

That takes seconds: too long for a help text, a version, a Tab, or the message that an option is
misspelt. So the package first stands in `sys.modules` as Python found it, its `__init__` not
yet run, and the parsers of `regard.cli` are imported from it. A verb calls `load_library` when its
arguments are read: then `__init__` runs in that same module, and all is as after `import regard`.

This is a module beside the package and not in it, because Python imports a package before any of its
modules; `python -m regard` is the same command, and waits for torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys


def main() -> None:
    """Run the command line; the entry point of `regard`."""
    without_torch()
    from regard.cli import main

    main()


def without_torch() -> None:
    """Let `regard.cli` be imported without `import regard`."""
    if "regard" in sys.modules:
        return
    spec = importlib.util.find_spec("regard")
    if spec is not None:  # else the first import from it says that it is missing
        sys.modules["regard"] = importlib.util.module_from_spec(spec)


def load_library() -> None:
    """Run what `import regard` would have run; nothing where it has been imported.

    Raises:
        click.ClickException: torch is missing or broken; the message is one line.
    """
    package = sys.modules["regard"]
    if hasattr(package, "__version__"):  # which is set behind the imports
        return
    try:
        importlib.import_module("torch")
    except Exception as error:  # of a driver, a library that it links to, or its own
        from click import ClickException  # a verb has asked: the package is there

        why = " ".join(str(error).split()) or type(error).__name__
        raise ClickException(f"torch cannot be loaded: {why}") from None
    importlib.reload(package)  # for the first time: it keeps the module, and runs its code
