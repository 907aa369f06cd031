"""The data file by which `regard choose` knows claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.choosing.claims import claim_summaries
from regard.claims import all_claims
from regard.claims.report import summary
from regard.claims.running.store import load_results

RESULTS = Path(__file__).parents[2] / "benchmarks" / "claims"


def test_the_file_agrees_with_the_registry_and_the_committed_run() -> None:
    claims = all_claims()
    made = summary.summary(claims, load_results(RESULTS, claims))
    assert json.loads(summary.FILE.read_text(encoding="utf-8")) == made


def test_the_chooser_reads_what_the_claims_say() -> None:
    known = claim_summaries()
    for name, claim in all_claims().items():
        assert known[name].statement == claim.statement
        assert known[name].meaning == claim.meaning
        assert known[name].verdict is not None


def test_without_a_folder_it_says_how_it_is_used() -> None:
    with pytest.raises(SystemExit, match="usage"):
        summary.main([])


def test_a_changed_statistic_makes_claims_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics moved out of `regard.claims`: what decides a verdict must not leave its digest."""
    from regard.claims.running import version

    claims = all_claims().values()
    honest, before = version.source, {x.id: version.code_version(x) for x in claims}

    def edited(name: str) -> version.Source | None:
        found = honest(name)
        return (
            found._replace(text="#") if found and name == "regard.measuring.statistics" else found
        )

    monkeypatch.setattr(version, "source", edited)
    old = [x.id for x in claims if version.code_version(x) != before[x.id]]
    assert len(old) > 25, old
