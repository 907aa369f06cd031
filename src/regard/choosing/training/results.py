"""The results of a comparison, read from the trials in its storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.choosing.training.intervals import read_record
from regard.choosing.training.rows import CandidateRow
from regard.choosing.training.stages import Settings, best_rates, curve, reached, tried_rates
from regard.choosing.training.storage import cell_of, finished
from regard.choosing.training.trainer import DIVERGED
from regard.text import Text

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def read_search(rows: dict[str, CandidateRow], trials: list[FrozenTrial]) -> None:
    """Fill in the best rate, the last step reached and the errors of the search."""
    for trial in trials:
        cell, why = cell_of(trial), trial.user_attrs.get("error")
        # "stopped" is the end of the time or of a process, not a failure of the candidate.
        if cell is not None and why and not why.startswith("stopped") and cell["candidate"] in rows:
            row = rows[cell["candidate"]]
            row.status, row.reason = "failed", why
    for name, trial in best_rates(trials).items():
        cell = cell_of(trial)
        if name in rows and cell is not None:
            row = rows[name]
            row.rate, row.searched = cell["rate"], reached(trial)
            row.curve = curve(trial)
            # One rate that worked is enough: errors at other rates do not fail the candidate.
            row.status, row.reason = "halved", ""


def read_final(rows: dict[str, CandidateRow], trials: list[FrozenTrial]) -> None:
    """Fill in qualities by seed, mean curves and vitals of the final; the control is not part of it."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for trial in trials:
        cell = cell_of(trial)
        if cell is None or cell["candidate"] not in rows or "shuffled" in cell:
            continue
        row = rows[cell["candidate"]]
        if (why := trial.user_attrs.get("error")) and not why.startswith("stopped"):
            row.status, row.reason = "failed", why
        if trial.value is None or "quality" not in trial.user_attrs:
            continue
        row.quality[cell["seed"]] = float(trial.user_attrs["quality"])
        read_record(row, cell["seed"], trial.user_attrs.get("tested"))
        row.vitals = trial.user_attrs.get("vitals", row.vitals)
        curves.setdefault(cell["candidate"], []).append(curve(trial))
    for name, found in curves.items():
        steps = [step for step, _ in found[0]]
        values = zip(*([value for _, value in one] for one in found), strict=True)
        means = [sum(at) / len(at) for at in values]
        rows[name].curve = list(zip(steps, means, strict=True))


def drop_diverged(row: CandidateRow) -> None:
    """Fail a candidate whose metric was not finite at some seed: there is no difference to pair."""
    lost = [seed for seed, value in sorted(row.quality.items()) if value <= DIVERGED]
    if lost:
        seeds = ", ".join(map(str, lost))
        row.status, row.quality = "failed", {}
        row.reason = f"it diverged: its metric was no number at seed {seeds}; try lower rates"


def read_control(name: str, trials: list[FrozenTrial]) -> list[float]:
    """Test qualities of a candidate that was trained on shuffled targets, by seed."""
    found = {}
    for trial in trials:
        cell = cell_of(trial)
        if cell is None or "shuffled" not in cell or cell["candidate"] != name:
            continue
        value = trial.user_attrs.get("quality", DIVERGED)
        if finished(trial) and value > DIVERGED:
            found[cell["seed"]] = float(value)
    return [found[seed] for seed in sorted(found)]


def best_finalist(trials: list[FrozenTrial]) -> tuple[str, float] | None:
    """The finalist with the most seeds and the best mean quality among those, with its rate."""
    found: dict[tuple[str, float], list[float]] = {}
    for trial in trials:
        cell, value = cell_of(trial), trial.user_attrs.get("quality", DIVERGED)
        if cell is not None and "shuffled" not in cell and finished(trial) and value > DIVERGED:
            found.setdefault((cell["candidate"], cell["rate"]), []).append(float(value))
    if not found:
        return None
    return max(found, key=lambda one: (len(found[one]), sum(found[one]) / len(found[one])))


def read_edges(
    rows: dict[str, CandidateRow], trials: list[FrozenTrial], settings: Settings
) -> list[Text]:
    """Mark finalists whose best rate is at an end of those tried; a note names them."""
    if len(settings.rates) < 2:
        return []
    ends = []
    for name, row in rows.items():
        tried = tried_rates(trials, name)
        if row.status == "final" and tried and row.rate in (min(tried), max(tried)):
            row.at_edge = True
            ends.append(row)
    if not ends:
        return []
    en = ", ".join(f"{row.candidate.label.en} ({row.rate:g})" for row in ends)
    zh = "、".join(f"{row.candidate.label.zh}（{row.rate:g}）" for row in ends)
    return [
        Text(
            f"The best learning rate is at the end of those tried for {en}: more minutes, or rates further "
            "out, may be better.",
            f"以下候选的最佳学习率位于所试范围的边缘：{zh}；更多时间或更远的学习率可能更好。",
        )
    ]
