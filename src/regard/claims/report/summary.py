"""The data file that tells `regard choose` about claims: `python -m regard.claims.report.summary RESULTS`.

It holds the statements from the registry and the verdicts of a committed run. `choosing` reads it instead
of importing experiments. A test fails when the file differs from the registry or from the results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import regard
from regard.claims.claim import Claim
from regard.claims.registry import all_claims
from regard.claims.report.words import VERDICTS, key_of
from regard.claims.running.store import Result, ResultStoreError, load_results
from regard.measuring.files import json_bytes, write_atomic

USAGE = "usage: python -m regard.claims.report.summary RESULTS_FOLDER"
SCHEMA = "regard.claims.summary/1"
FILE = Path(regard.__file__).parent / "choosing" / "claims.json"


def main(arguments: list[str]) -> None:
    """Write the file from the results in a folder."""
    if len(arguments) != 1:
        raise SystemExit(USAGE)
    claims = all_claims()
    try:
        results = load_results(Path(arguments[0]), claims)
        write_atomic(FILE, json_bytes(summary(claims, results)))
    except (OSError, ResultStoreError) as error:
        raise SystemExit(f"error: {error}") from None


def summary(claims: Mapping[str, Claim], results: Mapping[str, Result]) -> dict[str, Any]:
    """Statement, criterion, meaning and verdict of every claim, by id."""
    return {
        "schema": SCHEMA,
        "claims": {
            name: {
                "statement": claim.statement._asdict(),
                "criterion": claim.criterion._asdict(),
                "meaning": claim.meaning._asdict(),
                "verdict": verdict_of(results.get(name)),
            }
            for name, claim in claims.items()
        },
    }


def verdict_of(result: Result | None) -> dict[str, str] | None:
    """The verdict of the claim's current code on the stored numbers; None if there is no result."""
    return None if result is None else VERDICTS[key_of(result.judgement.verdict)]._asdict()


if __name__ == "__main__":
    main(sys.argv[1:])
