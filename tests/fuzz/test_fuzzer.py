"""The fuzzer itself: it finds what is planted, repeats itself, shrinks, and goes on where it was stopped."""

from __future__ import annotations

import collections
import dataclasses
import io
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.engines import reference
from regard.nn import position
from regard.testing.cases import DTYPES
from regard.testing.fuzz import cases, mistakes, modules, op, report, runner, shrink
from regard.testing.fuzz.code import as_code
from regard.testing.fuzz.opcase import ENGINES, OpCase, draw_case
from regard.testing.fuzz.tally import State

CAUSAL = (("causal", "bottom_right"),)


def small(**changes: object) -> OpCase:
    sizes = {"queries": 3, "keys": 4, "heads": 2, "dim": 4, "engine": "reference"}
    return OpCase(**({"seed": 5} | sizes | changes))  # type: ignore[arg-type]


def problems(case: cases.AnyCase) -> tuple[str, ...]:
    return cases.judge_case(case).problems


def test_a_number_that_is_off_by_a_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only some calls have it: a soft cap."""
    case = small(softcap=0.5)
    assert problems(case) == ()
    monkeypatch.setattr(reference, "soft_capped", lambda x, cap: 1.001 * cap * torch.tanh(x / cap))
    assert any("output" in problem for problem in problems(case))
    assert problems(small()) == ()


def test_a_mask_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key too many for each query."""
    assert problems(small(mask=CAUSAL)) == ()
    monkeypatch.setattr(regard.Mask, "offset", lambda *_: 2)
    assert any("output" in problem for problem in problems(small(mask=CAUSAL)))


def test_nan_that_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden values that are multiplied by 0."""
    case = small(mask=(("dense", (True, True), 0.6),), poison="value")
    assert problems(case) == ()
    monkeypatch.setattr(reference, "select_matmul", lambda weights, value, _: weights @ value)
    assert any("NaN" in problem for problem in problems(case))


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right forward, and half of the gradient backward."""

    def halved(logits: Tensor, cap: float) -> Tensor:
        capped = cap * torch.tanh(logits / cap)
        return 0.5 * capped + 0.5 * capped.detach()

    case = small(softcap=0.5, grad=True)
    assert problems(case) == ()
    monkeypatch.setattr(reference, "soft_capped", halved)
    found = problems(case)
    assert found and all("gradient" in problem for problem in found)


# One key is visible, so that the gradient of every logit is exactly 0: rounding alone is left of it.
ZERO = 20261119000040821
# The direction of one hidden unit is constant, and the textbook's own gradient of it is rounding.
ONE_UNIT = 202611187000066582


@pytest.mark.parametrize("number", [ZERO, ONE_UNIT])
def test_rounding_is_no_mistake_where_the_gradient_is_zero(number: int) -> None:
    """The terms that cancel are sums themselves, and err by eps of their own terms."""
    assert problems(draw_case(number)) == ()


def test_a_wrong_gradient_is_found_where_it_should_be_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms cancel a hundredfold; of what they leave, a hundredth that is wrong is beyond the bound."""
    case = dataclasses.replace(draw_case(ZERO), engine="reference")
    assert problems(case) == ()
    right = reference.softmax

    def leaking(logits: Tensor, *others: Tensor | None) -> reference.SoftmaxRows:
        rows = right(logits, *others)
        still = torch.where(logits.isfinite(), logits, 0)
        return rows._replace(weights=rows.weights + 0.01 * (still - still.detach()))

    monkeypatch.setattr(reference, "softmax", leaking)
    assert any("gradient" in problem for problem in problems(case))


def test_an_error_from_inside_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of shapes an error of torch's comes through."""
    wrong = [n for n in range(200) if mistakes.draw_mistake(n).name == "bias has a wrong shape"]
    monkeypatch.setattr("regard.prepare.check_bias", lambda bias, *_: bias)
    found = [p for n in wrong for p in problems(mistakes.draw_mistake(n))]
    assert any("unclear error" in problem or "names none" in problem for problem in found)


def test_a_module_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary positions that begin at 1 are the same to all: not found; that turn too far are."""
    turned = position._angles
    monkeypatch.setattr(position, "_angles", lambda *given: 1.01 * turned(*given))
    drawn = (modules.draw_module_case(n) for n in range(400))
    rotary = [c for c in drawn if dict(c.options).get("position") == "rotary"]
    assert any(problems(case) for case in rotary)


def test_a_case_is_the_same_every_time() -> None:
    """From its number alone, whatever ran before."""
    first = op.library(op.build(draw_case(31)))
    runner.run_cases(range(100, 140))
    again = op.library(op.build(draw_case(31)))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_failure_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not matter is left out."""
    monkeypatch.setattr(reference, "soft_capped", lambda x, cap: 2 * cap * torch.tanh(x / cap))
    case = small(softcap=0.5, mask=CAUSAL, sink="heads", lead=(3,), size=3.0, dtype="fp64")
    smaller = shrink.shrink(case)
    assert isinstance(smaller, OpCase) and smaller.softcap == 0.5
    assert smaller.mask == () and smaller.sink == "" and smaller.lead == (1,)


def test_the_code_of_a_case_runs() -> None:
    """And gives what the case gave."""
    case = small(mask=CAUSAL, bias=(True, True), sink="one", temperature=("number", 0.5))
    names: dict = {}
    exec(as_code(case), names)  # noqa: S102 # our own code
    expected = op.library(op.build(case))["output"]
    torch.testing.assert_close(names["result"], expected)


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """With the same counts as a run that was not."""
    report = tmp_path / "fuzz.txt"
    whole = runner.run(State(3, 60, 20, "any"), None, 0, None, io.StringIO())
    part = State(3, 60, 20, "any")
    part.tally.add(runner.run_cases(range(3 * runner.NUMBERS, 3 * runner.NUMBERS + 20)))
    part.done.append(0)
    part.versions.append("Python 3.0, torch 9.9")  # it ran on another machine so far
    runner.write(part, report)
    loaded = State.load(report.with_suffix(".json"))
    assert "not finished" in report.read_text(encoding="utf-8")
    rest = runner.run(loaded, report, 0, None, io.StringIO())
    assert rest.tally == whole.tally and sorted(rest.done) == [0, 1, 2]
    text = report.read_text(encoding="utf-8")
    assert "60 of 60, finished" in text
    assert (
        f"Python 3.0, torch 9.9, then Python {platform.python_version()}, torch {torch.__version__}"
        in text
    )


def test_the_report_counts_engines_modules_and_dtypes() -> None:
    """Each alone, each engine and module in each dtype, the fewest, and engines that did not run."""
    state = runner.run(State(4, 300, 300, "any"), None, 0, None, io.StringIO())
    counts, text = state.tally.counts, report.as_text(state)
    for name in modules.KINDS:
        by_dtype = sum(counts.get(f"in {dtype} module {name}", 0) for dtype in DTYPES)
        assert by_dtype == counts.get(f"module {name}", 0)
    assert sum(counts[f"dtype {dtype}"] for dtype in DTYPES) == 300
    assert "fewest    engine " in text and "20,000 of each" in text
    assert any("triton" in line and "not run" in line for line in text.splitlines())


def test_a_million_calls_bring_twenty_thousand_of_each() -> None:
    """By the proportions of 20,000 draws, less three standard deviations of a million."""
    drawn, share = 20_000, collections.Counter()
    for number in range(drawn):
        share.update(cases.tags_of(cases.draw(number)))
    kinds = [tag for tag in share if tag.split()[0] in ("engine", "module", "dtype")]
    assert len(kinds) == len(ENGINES) + len(modules.KINDS) + len(DTYPES)
    # Of 18 modules the one that was drawn least has 2.2% less three deviations of the draw itself.
    deviation = (drawn * 0.4 / len(modules.KINDS)) ** 0.5
    assert min(share[tag] + 3 * deviation for tag in kinds) * 50 >= report.ENOUGH


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    """In workers, with a report; and one case."""
    command = [sys.executable, "-m", "regard.testing.fuzz"]
    report = tmp_path / "fuzz.txt"
    given = ["--calls", "40", "--seed", "2", "--report", str(report), "--jobs", "1"]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=True)
    assert "40 of 40" in done.stdout and "wrong     0" in report.read_text(encoding="utf-8")
    done = subprocess.run([*command, "--case", "7"], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("right")
