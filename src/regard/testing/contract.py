"""The contract suite: what every engine promises for every score.

`check_score` runs the whole suite on a score of your own, `check_engine` on an engine of your own, and
`check_case` runs one case. Which cases an engine serves is written in `support.py`, from its
documentation. The engine itself is not asked. So an engine that refuses a case it should serve fails,
and so does one that accepts a case it should refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

import regard
from regard.testing.cases import (
    DTYPES,
    SIZES,
    TINY,
    Build,
    CaseSizes,
    Formula,
    ScoreRow,
)
from regard.testing.options import MASKS, OPTIONS
from regard.testing.poison import poisoned, small_tiles
from regard.testing.properties import check_derivatives, check_hidden, check_sides, lowered
from regard.testing.run import STATISTICS, Case, expect, measure, run_engine
from regard.testing.support import (
    ENGINES,
    QUICK_ENGINES,
    REFUSALS,
    EngineCall,
    activation_of,
    expected_support,
)
from regard.testing.tolerance import Measure
from regard.testing.wrappers import SCORES


@dataclass
class Report:
    """The result of a check: how many cases ran, how close errors came to the limit, what failed."""

    served: int = 0
    refused: int = 0
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, engine: str, case: object, measures: Iterable[Measure]) -> None:
        """Count the measures of one case."""
        self.served += 1
        for found in measures:
            text = f"engine {engine}, {case}: {found}"
            if found.ratio > self.worst.get(engine, (-1.0, ""))[0]:
                self.worst[engine] = (found.ratio, text)
            if not found.passed:
                self.failures.append(text)

    def merge(self, other: Report) -> None:
        """Add what another check found."""
        self.served += other.served
        self.refused += other.refused
        self.failures += other.failures
        for engine, worst in other.worst.items():
            self.worst[engine] = max(worst, self.worst.get(engine, worst))

    def raise_failures(self, most: int = 20) -> None:
        """Raise an AssertionError that lists what failed, if anything did."""
        if self.failures:
            shown = "\n".join(f"  {text}" for text in self.failures[:most])
            raise AssertionError(f"{len(self.failures)} failures, the first {most}:\n{shown}")

    def __str__(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.served} cases served, {self.refused} refused as documented"]
        for engine, (ratio, text) in self.worst.items():
            lines.append(f"closest to the limit, {ratio:.2f} of it: {text or engine}")
        return "\n".join(lines + self.failures)


def check_case(
    case: Case,
    engine: str,
    *,
    device: str = "cpu",
    expected: Callable[[str, EngineCall], bool] = expected_support,
) -> Report:
    """The report of one case on one engine: errors within the tolerance, refusals as documented.

    The most demanding call comes first, with all statistics and every gradient. If the engine refuses it
    as documented, a less demanding call follows.
    """
    report, inputs = Report(), expect(case).inputs
    wants = [inputs.statistics, ("weights",), ()] if inputs.statistics else [()]
    calls = [EngineCall(case, want, True, device) for want in wants]
    calls += [EngineCall(case, (), False, device)] if "bias" in inputs.tensors else []
    for call in calls:
        due = expected(engine, call)
        try:
            got = run_engine(inputs, engine, call.want, call.learn_bias, device)
        except regard.EngineRefused as refusal:
            report.refused += 1
            if due or not refusal.reasons:
                why = "; ".join(refusal.reasons) or "no reason"
                report.failures.append(f"engine {engine}, {case}: refuses unexpectedly: {why}")
            continue
        except Exception as error:  # whatever is raised is a failure of this case
            report.failures.append(f"engine {engine}, {case}: {type(error).__name__}: {error}")
            break
        if not due:
            report.failures.append(f"engine {engine}, {case}: serves what it should refuse")
        report.add(engine, case, measure(expect(case), got))
        break
    return report


# One mask of every kind. Visibility does not depend on the dtype, so all masks run in fp32 and only
# these in the other dtypes.
KINDS = ("none", "causal & lengths", "segments padded", "dense heads", "dense empty rows")


def cases(row: ScoreRow, dtype: torch.dtype, thorough: bool = False) -> Iterator[Case]:
    """The cases of one score in one dtype at tiny sizes.

    Every mask comes once without options. Every option comes under a mask that leaves some queries
    without keys, and in fp32 also without a mask. `thorough` pairs every mask with every option in fp32
    and bf16, which engines compute differently.
    """
    wide = dtype == torch.float32
    alone = MASKS if wide or thorough else KINDS
    paired = MASKS if thorough and dtype in (torch.float32, torch.bfloat16) else None
    for option in OPTIONS:
        usual = alone if option == "plain" else ("dense empty rows", "none")[: 1 + wide]
        for mask in paired or usual:
            if row.softcap is None or "softcap" not in EngineCall(Case(row, option=option)).options:
                yield Case(row, dtype, mask, option)


def border_cases(row: ScoreRow, dtype: torch.dtype, thorough: bool = False) -> Iterator[Case]:
    """The cases of one score at lengths around those of a tile, and with shared and grouped heads.

    Mistakes at tile borders do not depend on the dtype, so only fp32 runs unless `thorough`.
    """
    for sizes in SIZES.values() if thorough or dtype == torch.float32 else ():
        yield Case(row, dtype, "first blocks hidden", "plain", sizes)
        option = "everything" if row.softcap is None else "plain"
        yield Case(row, dtype, "causal & lengths", option, sizes)
        if thorough:
            yield Case(row, dtype, "none", "plain", sizes)


def check_cases(
    row: ScoreRow,
    engine: str,
    dtype: torch.dtype,
    *,
    thorough: bool = False,
    device: str = "cpu",
    expected: Callable[[str, EngineCall], bool] = expected_support,
) -> Report:
    """The report of all cases of a score on an engine in a dtype."""
    report = Report()
    for case in cases(row, dtype, thorough):
        expect(case)  # cached here, outside `poisoned`, so that only the engine runs inside it
        with poisoned():
            report.merge(check_case(case, engine, device=device, expected=expected))
    for case in border_cases(row, dtype, thorough):
        expect(case)
        with poisoned(), small_tiles(512 if case.sizes.keys < 100 else 4096):
            report.merge(check_case(case, engine, device=device, expected=expected))
    return report


def _described(row: ScoreRow, form: Literal["inner", "pairwise"] | None) -> ScoreRow:
    """The row with the name, form and soft cap of the score that it builds."""
    score = row.make(TINY)
    if form is None:
        form = "inner" if activation_of(row) is None else "pairwise"
    name = getattr(score, "name", type(score).__name__)
    return replace(row, name=name, form=form, softcap=score.softcap)


def check_score(
    build: Build,
    formula: Formula | None = None,
    *,
    form: Literal["inner", "pairwise"] | None = None,
    unequal: bool = False,
    one_input_head: bool = False,
    kinked: bool = False,
    engines: Iterable[str] = QUICK_ENGINES,
    dtypes: Iterable[str] = tuple(DTYPES),
    thorough: bool = False,
    device: str = "cpu",
) -> Report:
    """Run the whole contract on a score of your own, and return the report.

    It checks output, statistics and every gradient against fp64 on every engine, mask, option and dtype;
    the two sides lowered separately; NaN in padding; and first and second derivatives in fp64. The first
    of these groups with a failure raises an AssertionError that lists its failures.

    ```python
    class Laplace(regard.PairwiseScore):
        name, activation = "laplace", "minus_abs"

        def query(self, q):
            return PairwiseQuery(q, q.new_full((1, q.shape[-1]), 1 / q.shape[-1]))

        def key(self, k):
            return PairwiseKey(-k)


    def formula(score, q, k):  # the mean of -|q - k|
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        return -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().mean(-1)


    regard.Activation("minus_abs", value=lambda x, _: -x.abs(), slope=lambda x, y, _: -x.sign())
    print(check_score(lambda dq, dk, heads, key_heads: Laplace(), formula, kinked=True))
    ```

    Args:
        build: makes the score for (query_dim, key_dim, heads, key_heads); key heads divide heads.
        formula: `formula(score, q, k)`, the raw logits (B, heads, Q, L) from q (B, heads, Q,
            query_dim) and k (B, key_heads, L, key_dim) in plain PyTorch, written as you would
            explain it. Without it the score is compared with its own lowered form, which finds
            mistakes in dtypes, gradients and the activation, but not a wrong formula.
        form: of the lowered score; None to find it out.
        unequal: draw keys narrower than queries.
        one_input_head: draw inputs with one head, for a score that makes its own heads.
        kinked: the derivative jumps where entries of q and k sum to 0; inputs are drawn away from there.
        engines: which engines to run; "triton" takes hours unless other arguments narrow it down.
        dtypes: names of `DTYPES`.
        thorough: pair every mask with every option, which takes some minutes.
        device: where the engine runs.
    """
    row = ScoreRow("", build, formula or lowered, "inner", unequal, one_input_head, kinked=kinked)
    row = _described(row, form)
    report = Report()
    for dtype in dtypes:
        report.failures += check_sides(row, DTYPES[dtype])
        report.raise_failures()
        for engine in engines:
            report.merge(check_cases(row, engine, DTYPES[dtype], thorough=thorough, device=device))
        report.raise_failures()
    for engine in engines:
        for statistics in (True, False):
            call = EngineCall(Case(row), STATISTICS if statistics else (), device=device)
            if expected_support(engine, call):
                report.failures += check_hidden(row, engine, statistics=statistics, device=device)
    report.raise_failures()
    report.failures += check_derivatives(row, "reference", second=True)
    report.raise_failures()
    return report


def check_engine(
    engine: str,
    expected: Callable[[str, EngineCall], bool],
    *,
    scores: Iterable[str] = tuple(SCORES),
    dtypes: Iterable[str] = tuple(DTYPES),
    thorough: bool = False,
    device: str = "cpu",
) -> Report:
    """Run the whole contract on an engine of your own; return the report, or raise with what failed.

    Args:
        engine: its name; the engine must be in `regard.engines.plan.BY_NAME`.
        expected: `expected(engine, call)` says whether the engine should serve a call, according to
            its documentation.
        scores: names of `SCORES`.
        dtypes: names of `DTYPES`.
        thorough: pair every mask with every option.
        device: where it runs.
    """
    report = Report()
    for name in scores:
        for dtype in dtypes:
            report.merge(
                check_cases(
                    SCORES[name],
                    engine,
                    DTYPES[dtype],
                    thorough=thorough,
                    device=device,
                    expected=expected,
                )
            )
    report.raise_failures()
    return report


__all__ = [
    "ENGINES",
    "QUICK_ENGINES",
    "REFUSALS",
    "STATISTICS",
    "Case",
    "CaseSizes",
    "EngineCall",
    "Report",
    "border_cases",
    "cases",
    "check_case",
    "check_cases",
    "check_engine",
    "check_score",
    "expected_support",
]
