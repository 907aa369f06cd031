"""Which claims there are, how they are found, and what each has to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regard.claims import Text, UnknownClaim, all_claims, experiments, find
from regard.claims.absent import ABSENT
from regard.claims.registry import survey

# The plan: statements of each group. Every one of them is tested, or absent with a reason.
PLANNED = {"A": 6, "B": 6, "C": 11, "D": 3, "E": 6, "F": 2, "G": 6, "H": 6, "I": 2}
IDS = [f"{group}{n + 1}" for group, count in PLANNED.items() for n in range(count)]
CLOSING = ')）"”'
TEXTS = ("statement", "criterion", "meaning", "caption", "control")
WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from regard.claims import Run, all_claims
claim = all_claims()["A1"]
print(claim.judge(claim.measure(Run())).verdict.value)
"""
SAME_ID = """
from regard.claims.experiments.a1_three_steps import ThreeSteps
class Again(ThreeSteps): ...
"""


def test_every_claim_is_there_in_order() -> None:
    assert list(all_claims()) == [name for name in IDS if name not in ABSENT]


def test_statements_without_an_experiment_are_listed() -> None:
    assert len(IDS) == 48 and set(ABSENT) < set(IDS)
    assert all(one.topic.en and one.topic.zh and one.recipe for one in ABSENT.values())


def test_a_claim_says_everything_in_both_languages() -> None:
    for name, claim in all_claims().items():
        for kind in TEXTS:
            text = getattr(claim, kind)
            assert isinstance(text, Text), (name, kind)
            assert text.en.rstrip(CLOSING).endswith((".", "?")), (name, kind)
            assert text.zh.rstrip(CLOSING).endswith(("。", "？")), (name, kind)
        quick, full = claim.seconds
        assert 0 < quick <= full, name


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["c1"], ["C1"]),
        (["D"], ["D1", "D2", "D3"]),
        (["F2", "a1", "F"], ["A1", "F1", "F2"]),
    ],
)
def test_ids_and_groups_are_found_in_order(names: list[str], found: list[str]) -> None:
    assert [claim.id for claim in find(names)] == found


def test_the_nearest_ids_are_suggested() -> None:
    with pytest.raises(UnknownClaim, match=r"no claim 'C12'\. Did you mean .*C11"):
        find(["C12"])


def test_a_broken_file_takes_no_other_claim_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"x1_raises": "1 / 0", "x2_same_id": SAME_ID}.items():
        (tmp_path / f"{name}.py").write_text(text)
        # Set and taken away again at the end, as is what the import puts there.
        monkeypatch.setitem(sys.modules, f"{experiments.__name__}.{name}", None)
        monkeypatch.delitem(sys.modules, f"{experiments.__name__}.{name}")
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    claims, broken = survey()
    assert list(claims) == [name for name in IDS if name not in ABSENT]
    assert isinstance(broken["x1_raises.py"], ZeroDivisionError)
    assert str(broken["x2_same_id.py"]) == f"A1 is also in {type(claims['A1']).__module__}"
    with pytest.raises(ZeroDivisionError):
        all_claims()


def test_measuring_and_judging_need_no_matplotlib() -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert found.stdout == "holds\n", found.stderr
