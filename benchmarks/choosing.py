"""Writes the verdicts and costs in docs/choosing.md from committed results: `python benchmarks/choosing.py`.

A link to a claim gets the mark of its verdict, `[G1 ◐](claims.md#g1)`. A table between
`<!-- claims: G1 G2 -->` and `<!-- /claims -->` lists those claims with their verdicts. The row of measured
costs is that of the README, from `front.costs`. With --check the script writes nothing, and its exit status
is 1 if the page is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import front

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
SCORES = re.compile(r"^\| \|(?: \*\*[^|]+<br>`\w+` \|)+$", re.MULTILINE)
COSTS = re.compile(r"^\| \*\*measured cost\*\* \|.*$", re.MULTILINE)


def result(name: str) -> dict:
    """The committed result of a claim."""
    path = ROOT / "benchmarks" / "claims" / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"error: docs/choosing.md names {name}, which has no result")
    return json.loads(path.read_text())


def link(name: str) -> str:
    """A link to a claim, with the mark of its verdict."""
    return f"[{name} {MARKS[result(name)['verdict']]}](claims.md#{name.lower()})"


def table(names: list[str]) -> str:
    """Statement, verdict and reason of these claims."""
    rows = ["| the claim | verdict | because |", "|---|---|---|"]
    for name in names:
        found = result(name)
        texts = [found["statement"]["en"], found["verdict"], found["because"]["en"]]
        rows.append(" | ".join([f"| {link(name)} {texts[0]}", f"*{texts[1]}*", f"{texts[2]} |"]))
    return "\n".join(rows)


def costs(header: str) -> str:
    """The row of costs and of peak memory, for each score of the header."""
    measured, cells = front.costs(), []
    for name in re.findall(r"`(\w+)`", header):
        # A class in the header, LowRank, is low_rank in the results.
        cost = measured.get(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        cells.append(f"{cost}, {cost.memory / 2**20:.0f} MiB" if cost else "not measured")
    return f"| **measured cost** | {' | '.join(cells)} |"


def written(page: str) -> str:
    """The page with every mark, cost and table taken from the results."""
    page = LINK.sub(lambda match: link(match[1]), page)
    page = COSTS.sub(costs(SCORES.search(page)[0]), page, count=1)
    return TABLE.sub(
        lambda m: f"<!-- claims: {m[1]} -->\n{table(m[1].split())}\n<!-- /claims -->", page
    )


def main() -> None:
    """Write the page, or check it."""
    before = PAGE.read_text()
    after = written(before)
    if "--check" in sys.argv[1:]:
        raise SystemExit(after != before and "docs/choosing.md is not up to date")
    PAGE.write_text(after)


if __name__ == "__main__":
    main()
