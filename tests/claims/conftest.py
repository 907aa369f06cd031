"""Claims that are made up, with results of every verdict, for tests of what is written about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.claims import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run, Text
from regard.claims.report import compose
from regard.claims.running.store import Result
from regard.figures.canvas import Canvas
from regard.text import LANGUAGES, Language

# What a result file from a stranger might hold.
STRANGE = "<script>document.title = 'strange'</script><b onclick=x>&\"'"
COMMITTED = Path(__file__).parents[2] / "benchmarks" / "claims"


@dataclass(frozen=True)
class MadeUp(Claim):
    """A claim of any id whose figure has a line in each panel."""

    id: str = "A1"  # type: ignore[misc] # a class variable elsewhere
    panels: int = 1

    statement = Text("`score`s are <made up>, as | here.", "`score` 是 <编造> 的，如 | 此。")
    criterion = Text("The number is above 1.", "该数大于 1。")
    meaning = Text("Choose what you like.", "任选其一。")
    caption = Text('A line that is "straight".', "一条“直”线。")
    control = Text("The same for both.", "两者相同。")
    seconds = (1.0, 2.0)

    def measure(self, run: Run) -> Numbers:
        return {"x": [1, 2, 4], "y": [1.0, 2.0, 4.0], "name": STRANGE}

    def judge(self, numbers: Numbers) -> Judgement:
        raise NotImplementedError

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        for axes in canvas.panels(self.panels):
            canvas.line(axes, numbers["x"], numbers["y"], "dot", label=numbers["name"])
            canvas.label(axes, Text("dimension d", "维数 d"), Text("time, s", "时间（秒）"))
            canvas.legend(axes)


def result(claim: Claim, verdict: ClaimVerdict) -> Result:
    facts = (
        Fact(Text("slope", "斜率"), 1.00234, 0.9961, 1.0084),
        Fact(Text("lead", "领先"), -2.5, -3.4, -1.6, "points"),
    )
    return Result(
        id=claim.id,
        full=claim.id != "A2",
        seed=7,
        numbers=claim.measure(Run()),
        judgement=Judgement(verdict, Text("Because of `this`.", "因为 `this`。"), facts),
        seconds=12.3,
        versions={"regard": "0.1.0", "torch": "2.13.0"},
        hardware={"name": STRANGE, "cores": 2, "load": 0.25},
        finished="2026-01-02T03:04:05+00:00",
    )


@pytest.fixture(scope="session")
def claims() -> dict[str, Claim]:
    """Seven claims in three groups, of one to three panels."""
    names = ["A1", "A2", "C1", "C2", "C10", "C11", "G1"]
    return {name: MadeUp(name, 1 + number % 3) for number, name in enumerate(names)}


@pytest.fixture(scope="session")
def results(claims: dict[str, Claim]) -> dict[str, Result]:
    """Of every verdict; G1 was not run."""
    verdicts = [*ClaimVerdict, ClaimVerdict.HOLDS, ClaimVerdict.HOLDS]
    return {
        name: result(claims[name], verdict)
        for name, verdict in zip(list(claims)[:-1], verdicts, strict=True)
    }


@pytest.fixture(scope="session")
def reports(claims: dict[str, Claim], results: dict[str, Result]) -> dict[Language, str]:
    """The HTML of these, by language."""
    return {language: compose(claims, results, language) for language in LANGUAGES}


@pytest.fixture(scope="session")
def committed() -> Path:
    """The folder of the full run that the project shows."""
    if not list(COMMITTED.glob("[A-Z]*.json")):
        pytest.skip("no results are committed")
    return COMMITTED
