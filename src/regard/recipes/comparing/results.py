"""`Compared`: the outcome of a comparison, as a value, as JSON, and from JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np

from regard.measuring.files import json_bytes, write_atomic
from regard.measuring.statistics import Estimate
from regard.recipes.comparing.intervals import Sampled, sample
from regard.recipes.comparing.store import RunRecord, plain
from regard.recipes.kit import Comparison, Contender, Kind
from regard.recipes.metrics import Metric
from regard.text import Text

COMPARED_SCHEMA = "regard.recipes.compared/1"
PICTURE = "picture"  # the entry of `Evaluated.extra` that holds a drawing


class ResultError(ValueError):
    """A summary that cannot be read or made; the message says why."""


@dataclass(frozen=True)
class ComparedRow:
    """One contender with its chosen setting.

    Attributes:
        name, title, kind, about: of the `Contender`.
        setting: the one with the best validation from the first seed, of `tried` settings.
        tried: number of settings.
        validation: quality of the chosen setting on validation rows, from the first seed.
        value: mean test quality over seeds, with its interval.
        difference: to the reference, in the metric's own direction, with an interval that holds for all rows of the
            table together; None for the reference.
        values: test quality of each seed.
        parameters, train_seconds, predict_seconds: of a run; means over seeds.
        extra: means over seeds of other numbers.
    """

    name: str
    title: Text
    kind: Kind
    setting: Mapping[str, Any]
    tried: int
    validation: float | None
    value: Estimate
    difference: Estimate | None
    values: tuple[float, ...]
    parameters: int
    train_seconds: float
    predict_seconds: float
    extra: Mapping[str, Any] = field(default_factory=dict)
    about: Text | None = None


@dataclass(frozen=True)
class MetricWords:
    """What tables need of a metric; a summary file has no function in it."""

    name: str
    title: Text
    greater: bool
    digits: int

    def show(self, value: float, *, sign: bool = False) -> str:
        """The value for a table, with a true minus sign; `sign` writes a plus too."""
        return f"{value:{'+' if sign else ''}z.{self.digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Picture:
    """A drawing of what a contender learned: SVG, and what it shows."""

    caption: Text
    svg: str


@dataclass(frozen=True)
class Compared:
    """The outcome of a comparison.

    Attributes:
        name, title, reference, notes: of the `Comparison`.
        metric: by which rows are ranked.
        rows: the contenders that finished, the best first.
        against: the best score beside the best row of another kind: names, and the score's lead (greater is
            better) with its interval; None if one of the two is missing.
        seeds: all rows have these.
        test_rows: of each seed.
        failed: contenders, and settings of those that have one, without a result, with the reason.
        machine: hardware and versions.
        dataset: name, title, origin and licence of the data.
        full: whether it was the full comparison.
        pictures: drawings of what was learned.
    """

    name: str
    title: Text
    metric: MetricWords
    reference: str
    rows: tuple[ComparedRow, ...]
    against: tuple[str, str, Estimate] | None
    seeds: tuple[int, ...]
    test_rows: tuple[int, ...]
    notes: tuple[Text, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)
    full: bool = False
    pictures: tuple[Picture, ...] = ()

    def row(self, name: str) -> ComparedRow:
        """The row of that name."""
        return next(one for one in self.rows if one.name == name)

    def gain(self, difference: Estimate) -> Estimate:
        """A difference turned so that greater is better."""
        if self.metric.greater:
            return difference
        return Estimate(-difference.value, -difference.high, -difference.low)

    def as_json(self) -> dict[str, Any]:
        """The content of the summary file."""
        return {"schema": COMPARED_SCHEMA} | plain(dataclasses.asdict(self, dict_factory=named))

    def save(self, path: Path) -> None:
        """Write the summary file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json_bytes(self.as_json()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a summary file.

        Raises:
            ResultError: there is no such file, or it is not a summary of a comparison.
        """
        try:
            return cls.of_json(json.loads(path.read_bytes()))
        except OSError as error:
            raise ResultError(f"{path} cannot be read: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError(f"{path} is no summary of a comparison ({error})") from None

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """The outcome in the content of a summary file."""
        if found["schema"] != COMPARED_SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, expected {COMPARED_SCHEMA!r}")
        own = {one.name: found[one.name] for one in dataclasses.fields(cls)}
        own["title"], own["notes"] = text(own["title"]), tuple(map(text, own["notes"]))
        metric = own["metric"]
        own["metric"] = MetricWords(**metric | {"title": text(metric["title"])})
        own["rows"] = tuple(map(row_of_json, own["rows"]))
        if own["against"] is not None:
            first, second, lead = own["against"]
            own["against"] = first, second, estimate(lead)
        own["seeds"], own["test_rows"] = tuple(own["seeds"]), tuple(own["test_rows"])
        own["pictures"] = tuple(Picture(text(x["caption"]), x["svg"]) for x in own["pictures"])
        return cls(**own)


def named(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Fields as a dict, with texts as objects of their languages: `asdict` keeps named tuples as tuples."""
    return {k: spelled(v) for k, v in pairs}


def spelled(value: Any) -> Any:
    """A `Text`, or tuple of such, as JSON objects; all else as it is."""
    if isinstance(value, Text):
        return value._asdict()
    if isinstance(value, tuple) and not isinstance(value, Estimate):
        return [spelled(one) for one in value]
    return value


def text(found: Mapping[str, str]) -> Text:
    """A `Text` from JSON."""
    return Text(str(found["en"]), str(found["zh"]))


def row_of_json(found: Mapping[str, Any]) -> ComparedRow:
    """A row from JSON."""
    own = dict(found)
    own["title"] = text(own["title"])
    own["about"] = None if own["about"] is None else text(own["about"])
    own["value"] = estimate(own["value"])
    own["difference"] = None if own["difference"] is None else estimate(own["difference"])
    own["values"] = tuple(map(number, own["values"]))
    return ComparedRow(**own)


def estimate(found: Sequence[float | None]) -> Estimate:
    """A value with its interval from JSON."""
    return Estimate(*map(number, found))


def number(found: float | None) -> float:
    """A number from JSON, which has no NaN: a training that diverged has None there."""
    return math.nan if found is None else found


def summed_up(
    comparison: Comparison,
    chosen: Mapping[str, Sequence[RunRecord]],
    *,
    failed: Mapping[str, str] | None = None,
    machine: Mapping[str, Any] | None = None,
    dataset: Mapping[str, Any] | None = None,
    full: bool = False,
) -> Compared:
    """The outcome from the runs with the chosen settings.

    Args:
        comparison: what was compared.
        chosen: for each contender its runs, of the same seeds in the same order.
        failed: contenders and settings without a result, with the reason.
        machine: facts to store beside the numbers.
        dataset: facts about the data.
        full: whether it was the full comparison.

    Raises:
        ResultError: the reference has no runs.
    """
    metric = comparison.metric
    if comparison.reference not in chosen:
        why = (failed or {}).get(comparison.reference, "it did not run")
        raise ResultError(f"there is no result of the reference {comparison.reference!r}: {why}")
    sampled = sample(
        {k: [one.statistics for one in own] for k, own in chosen.items()},
        metric,
        same_rows=comparison.same_test_rows,
    )
    known = {one.name: one for one in comparison.contenders}
    rows = [compared_row(known[name], own, sampled, comparison) for name, own in chosen.items()]
    rows.sort(key=lambda row: best_first(metric, row.value.value))
    runs = chosen[comparison.reference]
    return Compared(
        comparison.name,
        comparison.title,
        MetricWords(metric.name, metric.title, metric.greater, metric.digits),
        comparison.reference,
        tuple(rows),
        against(rows, sampled, metric),
        tuple(one.seed for one in runs),
        tuple(len(one.statistics) for one in runs),
        comparison.notes,
        dict(failed or {}),
        dict(machine or {}),
        dict(dataset or {}),
        full,
        pictures(chosen),
    )


def best_first(metric: Metric, value: float) -> float:
    """A sort key that puts the best first, and NaN last."""
    return math.inf if math.isnan(value) else -metric.gain(value)


def compared_row(
    contender: Contender,
    runs: Sequence[RunRecord],
    sampled: Mapping[str, Sampled],
    comparison: Comparison,
) -> ComparedRow:
    """One row of the outcome."""
    own, difference, reference = sampled[contender.name], None, comparison.reference
    if contender.name != reference:
        difference = own.minus(sampled[reference]).interval(
            several=len(sampled) - 1, bounds=comparison.metric.widest()
        )
    first = runs[0]
    return ComparedRow(
        contender.name,
        contender.title,
        contender.kind,
        first.setting,
        max(len(contender.settings), 1),
        first.validation if math.isfinite(first.validation) else None,
        own.interval(bounds=comparison.metric.bounds),
        difference,
        tuple(map(float, own.values)),
        first.parameters,
        float(np.mean([one.train_seconds for one in runs])),
        float(np.mean([one.predict_seconds for one in runs])),
        mean_extra(runs),
        contender.about,
    )


def mean_extra(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Further numbers, averaged over seeds; what is no number is that of the first seed."""
    found: dict[str, Any] = {}
    for name, value in runs[0].extra.items():
        own = [one.extra.get(name) for one in runs]
        if name == PICTURE:
            continue
        numbers = [x for x in own if is_number(x)]
        found[name] = float(np.mean(numbers)) if len(numbers) == len(own) else value
    return found


def is_number(value: object) -> TypeGuard[float]:
    """Whether a further number of a run is one, and so worth a column."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def against(
    rows: Sequence[ComparedRow], sampled: Mapping[str, Sampled], metric: Metric
) -> tuple[str, str, Estimate] | None:
    """The best score, the best row that is no score, and the lead of the score over it."""
    scores = [row.name for row in rows if row.kind == "score"]
    others = [row.name for row in rows if row.kind != "score"]
    if not scores or not others:
        return None
    lead = sampled[scores[0]].minus(sampled[others[0]]).times(1.0 if metric.greater else -1.0)
    several = len(scores) * len(others)  # the best of each kind was picked by these very rows
    return scores[0], others[0], lead.interval(several=several, bounds=metric.widest())


def pictures(chosen: Mapping[str, Sequence[RunRecord]]) -> tuple[Picture, ...]:
    """The drawings in `extra["picture"]` of the first seeds: {"en": ..., "zh": ..., "svg": ...} each."""
    found = [runs[0].extra.get(PICTURE) for runs in chosen.values()]
    return tuple(
        Picture(text(one), one["svg"])
        for one in found
        if isinstance(one, Mapping) and {"en", "zh", "svg"} <= one.keys()
    )
