"""Run the Python examples of pages against the installed wheel, with torch and nothing else.

    python -I readme.py README.md docs/quickstart.md

Each block runs in a namespace of its own, as a reader would paste it. A block fenced as
`python continue` goes on in the namespace of the block before it. A block behind the comment
`<!-- needs regard[choose] -->` must stop at an import here, where the extra is missing; the tests of the
documentation run it. Warnings are errors.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import linecache
import re
import sys
import tempfile
import textwrap
import traceback
import warnings
from pathlib import Path

FENCE = re.compile(
    r"^(?P<needs><!-- needs regard\[\w+\] -->\n)?"
    r"^(?P<indent> *)```python\b(?P<flags>[^\n]*)\n(?P<code>.*?)^(?P=indent)```\s*$",
    re.MULTILINE | re.DOTALL,
)


def blocks(text: str) -> list[tuple[int, str, bool, bool]]:
    """(line of the first statement, code, whether it continues the block before, needs an extra)."""
    return [
        (
            text.count("\n", 0, match.start("code")) + 1,
            textwrap.dedent(match["code"]),
            "continue" in match["flags"],
            match["needs"] is not None,
        )
        for match in FENCE.finditer(text)
    ]


def check_import() -> None:
    """`import regard` works here, from the wheel, and brings only torch and the standard library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself warns when numpy is absent
        import torch  # noqa: F401 - loaded first, so that it is not counted below
    before = set(sys.modules)
    import regard

    brought = {name.partition(".")[0] for name in set(sys.modules) - before}
    foreign = brought - sys.stdlib_module_names - {"regard", "torch", "torchgen", "functorch"}
    if foreign:
        raise SystemExit(f"import regard also imported: {', '.join(sorted(foreign))}")

    package = Path(regard.__file__).parent
    if not package.is_relative_to(sys.prefix):
        raise SystemExit(f"regard was imported from outside this environment: {package}")
    if not (package / "py.typed").is_file():
        raise SystemExit("py.typed is missing from the wheel")
    if regard.__version__ != importlib.metadata.version("regard"):
        raise SystemExit("regard.__version__ is not the version of the wheel")
    for extra in ("click", "rich", "matplotlib", "numpy"):
        if importlib.util.find_spec(extra):
            raise SystemExit(f"{extra} is installed: this environment is not empty")


def run_block(
    page: str, number: int, line: int, code: str, namespace: dict[str, object], *, needs_extra: bool
) -> bool:
    """Run one block; on failure say which block and which line of the page."""
    try:
        # Empty lines in front make the traceback count as the page does.
        program = compile("\n" * (line - 1) + code, page, "exec")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(program, namespace)
        if needs_extra:
            raise SystemExit("this block runs with torch alone: it needs no extra")
    except ImportError as error:
        if not needs_extra:
            return failed_block(page, number, line, error)
    except (Exception, SystemExit) as error:
        return failed_block(page, number, line, error)
    return True


def failed_block(page: str, number: int, line: int, error: BaseException) -> bool:
    """Say where it went wrong; always False."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == page]
    at = lines[0] if lines else getattr(error, "lineno", line)
    print(f"\nFAILED: block {number}, {page} line {at}", file=sys.stderr)
    traceback.print_exception(error)
    return False


def run_page(page: str) -> int:
    """Run all blocks of a page and return the number of those that failed."""
    text = Path(page).read_text(encoding="utf-8")
    found = blocks(text)
    if not found:
        raise SystemExit(f"{page} has no ```python block")

    # Tracebacks and torch.compile look up the source of a block here.
    linecache.cache[page] = (len(text), None, text.splitlines(keepends=True), page)
    failed = 0
    namespace: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, (line, code, continues, needs) in enumerate(found, start=1):
            if not continues:
                namespace = {"__name__": "__main__"}
            failed += not run_block(page, number, line, code, namespace, needs_extra=needs)
    extra = sum(needs for *_, needs in found)
    print(
        f"{page}: {len(found) - failed} of {len(found)} examples passed, "
        f"{extra} of them by asking for an extra"
    )
    return failed


def main(pages: list[str]) -> int:
    """Run all blocks of all pages and return the number of those that failed."""
    check_import()
    return sum(run_page(page) for page in pages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
