"""The entry point of the command `regard`, which parses arguments before torch is loaded.

`import regard` loads torch, which takes seconds: too long for a help text, a version, a Tab, or a message
about a misspelt option. So `without_torch` puts the package into `sys.modules` without running its
`__init__`, and the parsers of `regard.cli` are imported from it. When a verb has read its arguments it calls
`load_library`. That runs `__init__` in the same module, and the state is as after `import regard`.

This module is beside the package and not in it, because Python imports a package before its modules.
`python -m regard` is the same command, but waits for torch.
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
    if spec is not None:  # otherwise the first import from it raises the error
        sys.modules["regard"] = importlib.util.module_from_spec(spec)


def load_library() -> None:
    """Run the package's `__init__`, as `import regard` does; nothing if it has already run.

    Raises:
        click.ClickException: torch is missing or broken; the message is one line.
    """
    package = sys.modules["regard"]
    if hasattr(package, "__version__"):  # `__init__` sets it after its imports
        return
    try:
        importlib.import_module("torch")
    except Exception as error:  # torch is missing, or it or a library that it links to is broken
        from click import ClickException  # installed, since a verb has called this

        why = " ".join(str(error).split()) or type(error).__name__
        raise ClickException(f"torch cannot be loaded: {why}") from None
    importlib.reload(package)  # runs `__init__` for the first time, and keeps the module object
