"""Writes the verdicts in docs/choosing.md from committed results: `python benchmarks/choosing.py`.

A link to a claim gets the mark of its verdict, `[G1 ◐](claims.md#g1)`, and a table between
`<!-- claims: G1 G2 -->` and `<!-- /claims -->` is made of what was found. With --check nothing is
written, and the exit status says whether the page is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "choosing.md"
MARKS = {
    "holds": "✓",
    "holds with conditions": "◐",
    "does not hold here": "✗",
    "not decided at this size": "?",
}
LINK = re.compile(r"\[([A-Z]\d+)(?: [^\]]*)?\]\(claims\.md#\w+\)")
TABLE = re.compile(r"<!-- claims: ([^>]*?) -->\n.*?<!-- /claims -->", re.DOTALL)


def result(name: str) -> dict:
    path = ROOT / "benchmarks" / "claims" / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"error: docs/choosing.md names {name}, which has no result")
    return json.loads(path.read_text())


def link(name: str) -> str:
    return f"[{name} {MARKS[result(name)['verdict']]}](claims.md#{name.lower()})"


def table(names: list[str]) -> str:
    rows = ["| the claim | verdict | because |", "|---|---|---|"]
    for name in names:
        found = result(name)
        texts = [found["statement"]["en"], found["verdict"], found["because"]["en"]]
        rows.append(" | ".join([f"| {link(name)} {texts[0]}", f"*{texts[1]}*", f"{texts[2]} |"]))
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with every mark and every table as the results say."""
    page = LINK.sub(lambda match: link(match[1]), page)
    return TABLE.sub(
        lambda m: f"<!-- claims: {m[1]} -->\n{table(m[1].split())}\n<!-- /claims -->", page
    )


def main() -> None:
    before = PAGE.read_text()
    after = written(before)
    if "--check" in sys.argv[1:]:
        raise SystemExit(after != before and "docs/choosing.md is not up to date")
    PAGE.write_text(after)


if __name__ == "__main__":
    main()
