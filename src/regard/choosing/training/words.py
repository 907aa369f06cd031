"""A verdict as sentences in English and Chinese.

Committed results hold the English sentences of `recommendation`.
"""

from __future__ import annotations

from regard.choosing.training.asking import named
from regard.choosing.training.intervals import LEAST_SEEDS, lead
from regard.choosing.training.judging import FEW_SEEDS, MOST_SEEDS, Finalists
from regard.choosing.training.phrases import (
    amount,
    cost_words,
    enough,
    led,
    metric_of,
    option,
    parameters,
    plural,
    seeds_named,
    sizes_differ,
    spread,
)
from regard.choosing.training.rows import CandidateRow, Outcome
from regard.choosing.training.unlearned import (
    after_nothing,
    best_row,
    longer,
    more_to_tell,
    nothing_learned,
    too_few_to_tell,
)
from regard.choosing.training.verdict import Verdict
from regard.text import Text


def opening(verdict: Verdict) -> list[Text]:
    """The recommendation, and below it what to know about the data."""
    notes = [
        Text(f"Note: {note.en}", f"注意：{note.zh}") for note in verdict.facts.get("notes", [])
    ]
    return [*recommendation(verdict), *notes]


def recommendation(verdict: Verdict) -> list[Text]:
    """The recommendation: the score to use and its lead, its cost, and if undecided how to decide.

    If nothing is shown to be learned, the first sentence says so and nothing is recommended. If no score
    beats a model without attention, the first sentence says that.
    """
    if verdict.learned is None:
        return [too_few_to_tell(verdict), more_to_tell(verdict)]
    if not verdict.learned:
        return [nothing_learned(verdict), after_nothing(verdict)]
    told = [first_sentence(verdict), second_sentence(verdict)]
    if undecided(verdict):
        told.insert(1, for_now(verdict))
    return told if verdict.beats_baselines else [without_attention(verdict), *told]


def without_attention(verdict: Verdict) -> Text:
    """The sentence that no score beats the best model without attention."""
    baseline, best = verdict.best_baseline, best_row(verdict)
    assert baseline is not None
    several = len(verdict.finalists)
    by = led(verdict, lead(best, baseline, verdict.seeds).estimate(several))
    reached, metric = amount(verdict, baseline.mean().value), metric_of(verdict)
    label, name = best.candidate.label, baseline.name
    if len(verdict.seeds) < LEAST_SEEDS:  # nothing is shown either way
        return Text(
            f"Too early to say whether a score beats {name.en}, which has no attention and {metric.en} "
            f"{reached}: the best, {label.en}, is {by.en}.",
            f"还不能断定是否有打分函数优于不用注意力的{name.zh}（{metric.zh} {reached}）：最好的{label.zh}{by.zh}。",
        )
    return Text(
        f"No score is shown to beat {name.en}, which has no attention and {metric.en} {reached}: the best, "
        f"{label.en}, is {by.en}. It may be all that you need.",
        f"没有打分函数被证实优于不用注意力的{name.zh}（{metric.zh} {reached}）：最好的{label.zh}{by.zh}。"
        "用它也许就够了。",
    )


def first_sentence(verdict: Verdict) -> Text:
    """The sentence that names the score to use and the evidence for it."""
    row, metric = verdict.row(verdict.winner), metric_of(verdict)
    label, count, matters = row.candidate.label, len(verdict.seeds), enough(verdict)
    if verdict.runner_up is None or verdict.margin is None or verdict.over_null is None:
        return Text(
            f"Use {label.en}: no alternative came through.",
            f"用{label.zh}：没有别的候选完成训练。",
        )
    other = verdict.row(verdict.runner_up).candidate.label
    if verdict.outcome is Outcome.ALTERNATIVE:
        ahead, null = spread(verdict, verdict.over_null), null_named(verdict, row)
        return Text(
            f"Use {label.en}: it is ahead of {null.en} by {ahead.en} of {metric.en} over {count} "
            f"seeds, more than noise and as much as matters ({matters.en}).",
            f"用{label.zh}：在 {count} 个种子上，{metric.zh}比{null.zh}高 {ahead.zh}，"
            f"超出噪声，并达到实质差异（{matters.zh}）。",
        )
    if verdict.outcome is Outcome.NULL:
        ahead = spread(verdict, verdict.margin)
        return Text(
            f"Use {label.en}: it is ahead of the best alternative, {other.en}, by {ahead.en} of "
            f"{metric.en} over {count} seeds.",
            f"用{label.zh}：在 {count} 个种子上，{metric.zh}比最好的替代者（{other.zh}）高 {ahead.zh}。",
        )
    if verdict.outcome is Outcome.SAME:
        best = best_alternative(verdict)
        return Text(
            f"Use {label.en}: there is no difference that matters ({matters.en} would); {best.en}.",
            f"用{label.zh}：无实质差异（{matters.zh}以上才算）；{best.zh}。",
        )
    return not_decided(verdict)


def null_named(verdict: Verdict, row: CandidateRow) -> Text:
    """The null of a finalist, with both numbers of parameters if they differ."""
    null = verdict.null_of(row)
    if null is None:
        return Text("scaled dot", "缩放点积")
    label, own, other = null.candidate.label, parameters(row), parameters(null)
    if sizes_differ(row, null) is None:
        return label
    return Text(
        f"{label.en} ({own:,} parameters against its {other:,})",
        f"{label.zh}（参数 {own:,} 个，后者 {other:,} 个）",
    )


def best_alternative(verdict: Verdict) -> Text:
    """The best alternative and its lead over its null."""
    row = verdict.best_alternative
    assert row is not None
    found = verdict.over(row)
    assert found is not None
    label, metric = row.candidate.label, metric_of(verdict)
    stands = led(verdict, found, null_named(verdict, row), metric)
    return Text(
        f"the best alternative, {label.en}, is {stands.en}",
        f"最好的替代者（{label.zh}）的{metric.zh}{stands.zh}",
    )


def not_decided(verdict: Verdict) -> Text:
    """The sentence that nothing was decided: how the best alternative stands, or where it was stuck."""
    count, matters = len(verdict.seeds), enough(verdict)
    stuck = held_back(verdict)
    if stuck is not None:
        return Text(f"Not decided: {stuck.en}.", f"未能判定：{stuck.zh}。")
    best = best_alternative(verdict)
    return Text(
        f"Not decided: {best.en} over {count} seed{plural(count)}, so a difference that matters "
        f"({matters.en}) is neither shown nor ruled out.",
        f"未能判定：在 {count} 个种子上，{best.zh}；实质差异（{matters.zh}）既未得到证实，也不能排除。",
    )


def held_back(verdict: Verdict) -> Text | None:
    """The best alternative that is surely ahead but for one or two outlying seeds, in words."""
    first = verdict.null_row()
    if first is None:
        return None
    field = Finalists(verdict.finalists, first.candidate.name, verdict.seeds, verdict.matters)
    name = next((name for name in field.others if field.held_back(name)), None)
    if name is None:
        return None
    row, null = verdict.row(name), field.rows[field.null_of(name)]
    better = sum(row.quality[seed] > null.quality[seed] for seed in verdict.seeds)
    odd = row if row.outlying(verdict.matters) else null
    which = seeds_named(verdict, odd.outlying(verdict.matters))
    count, label, other = len(verdict.seeds), row.candidate.label, null.candidate.label
    who = Text("", "") if odd is row else Text(f"{other.en} is ", other.zh)
    found = verdict.over(row)
    assert found is not None
    mean = led(verdict, found, metric=metric_of(verdict))
    many = len(odd.outlying(verdict.matters))
    stuck = "one" if many == 1 else str(many)
    return Text(
        f"{label.en} is better than {other.en} in {better} of {count} seeds, {who.en}stuck in {stuck} "
        f"({which.en}); on the mean it is {mean.en}",
        f"{count} 个种子中有 {better} 个{label.zh}比{other.zh}好，{who.zh}在 {many} 个种子上卡住（{which.zh}）；"
        f"平均{metric_of(verdict).zh}{mean.zh}",
    )


def for_now(verdict: Verdict) -> Text:
    """What to use while nothing is decided, and how to decide."""
    row, null = verdict.row(verdict.winner), verdict.null_row()
    label, how = row.candidate.label, how_to_decide(verdict)
    if null is None or row is null:
        return Text(
            f"Use {label.en} for now, since nothing is shown to be better. {how.en}.",
            f"暂时使用{label.zh}：还没有候选被证实比它更好。{how.zh}。",
        )
    several = max(len(verdict.finalists) - 1, 1)
    ahead = spread(verdict, lead(row, null, verdict.seeds).estimate(several))
    other = null.candidate.label
    if verdict.null_of(row) is null:
        return Text(
            f"Use {label.en} for now: its lead over {other.en}, {ahead.en}, is likely but not sure. {how.en}.",
            f"暂时使用{label.zh}：它比{other.zh}高 {ahead.zh}，很可能但不确定。{how.zh}。",
        )
    return Text(
        f"Use {label.en} for now: it is ahead of {other.en} by {ahead.en}, but the two differ in more than "
        f"the score. {how.en}.",
        f"暂时使用{label.zh}：它比{other.zh}高 {ahead.zh}，但两者不只打分函数不同。{how.zh}。",
    )


def how_to_decide(verdict: Verdict) -> Text:
    """The seeds, test rows or trainings that may decide the comparison, as a sentence without its stop."""
    more, need, now = longer(verdict), verdict.needs, len(verdict.seeds)
    asked = len(verdict.facts.get("settings", {}).get("seeds", ()))
    if now < asked:
        go_on = named("resume", True, verdict.asked_by)
        return Text(
            f"Only {now} of {asked} seeds {'is' if now == 1 else 'are'} finished, too few to decide; "
            f"{go_on} trains the rest",
            f"{asked} 个种子中只完成了 {now} 个，不足以判定；用 {go_on} 完成其余的",
        )
    if now < LEAST_SEEDS:
        few = option(verdict, "seeds", FEW_SEEDS)
        return Text(
            f"With {now} seed{plural(now)} nobody can tell a lead from noise; give {few}",
            f"只有 {now} 个种子，无法区分领先与噪声；请用 {few}",
        )
    if need.seeds is not None:
        seeds = option(verdict, "seeds", need.seeds)
        return Text(
            f"If leads and noise stay as they are, {need.seeds} seeds decide it ({seeds}); "
            f"{more.en} may, too",
            f"若领先幅度和噪声不变，{need.seeds} 个种子即可判定（{seeds}）；{more.zh}也可能有用",
        )
    if need.rows is not None:
        return Text(
            f"The test part is too small to decide it, whatever the seeds: about {need.rows:,} rows would do",
            f"测试部分太小，增加种子也无法判定：大约需要 {need.rows:,} 行",
        )
    return Text(
        f"More than {MOST_SEEDS} seeds would be needed to decide it; {more.en} may do",
        f"要判定需要 {MOST_SEEDS} 个以上的种子；{more.zh}可能有用",
    )


def undecided(verdict: Verdict) -> bool:
    """Whether the comparison did not decide."""
    return verdict.outcome is Outcome.UNDECIDED


def second_sentence(verdict: Verdict) -> Text:
    """The sentences on the winner's cost and the cheapest candidate that is as good."""
    winner, cheapest = verdict.row(verdict.winner), verdict.row(verdict.cheapest)
    name, cost = winner.candidate.label, cost_words(winner)
    step = Text(
        f"A training step with {name.en} takes {cost.en}", f"训练一步（{name.zh}）{cost.zh}"
    )
    if cheapest is winner or winner.cost is None or cheapest.cost is None:
        return Text(
            f"Nothing cheaper is shown to be as good. {step.en}.",
            f"没有确认同样好而更便宜的候选。{step.zh}。",
        )
    ratio = cheapest.cost.seconds / winner.cost.seconds
    if ratio > 0.95:
        return Text(
            f"Nothing cheaper by more than 5% is shown to be as good. {step.en}.",
            f"没有确认同样好而便宜 5% 以上的候选。{step.zh}。",
        )
    label = cheapest.candidate.label
    return Text(
        f"{step.en}; the cheapest that is not behind by as much as matters is {label.en}, at {ratio:.2f} "
        "times that.",
        f"{step.zh}；落后幅度小于实质差异的候选中，最便宜的是{label.zh}，耗时是前者的 {ratio:.2f} 倍。",
    )
