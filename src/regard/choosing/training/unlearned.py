"""Sentences of a verdict without a recommendation: nothing was learned, or too little is known to tell."""

from __future__ import annotations

from regard.choosing.training.phrases import amount, metric_of, option, plural
from regard.choosing.training.rows import CandidateRow
from regard.choosing.training.verdict import Verdict
from regard.text import Text

# What to check where nothing was learned; a plain table has neither query nor key.
CHECK = Text(
    "Check that each target belongs to the inputs of its row.",
    "请检查每个 target 是否与同一行的输入对应。",
)


def too_few_to_tell(verdict: Verdict) -> Text:
    """The sentence that the best candidate seems to have learned, and rows or seeds are too few to show it."""
    quality, count = quality_named(verdict, best_row(verdict)), len(verdict.seeds)
    if verdict.beats_guessing:
        shuffled = control_named(verdict)
        above = Text(
            f"{shuffled.en} when the targets of the training rows are shuffled",
            f"把训练行的目标打乱后的 {shuffled.zh}",
        )
    else:
        guess = guessing(verdict)
        above = Text(f"{guess} of guessing", f"瞎猜的 {guess}")
    seeds = Text(f"{count} seed{plural(count)}", f"{count} 个种子")
    rows = tested_rows(verdict)
    if rows is not None:
        seeds = Text(f"{rows:,} test rows and {seeds.en}", f"{rows:,} 个测试行、{seeds.zh}")
    return Text(
        f"No recommendation: the best score has {quality.en}, above the {above.en}, but {seeds.en} are too "
        "few to be sure.",
        f"无法推荐：最好的打分函数是 {quality.zh}，高于{above.zh}，但 {seeds.zh}太少，不足以确定。",
    )


def more_to_tell(verdict: Verdict) -> Text:
    """The sentence on what would show that a score has learned."""
    known = verdict.over_control if verdict.beats_guessing else verdict.over_guessing
    counts = [count for one in known if (count := one.seeds_to_show) is not None]
    if not counts:
        return Text("Give more rows.", "请提供更多数据行。")
    seeds = option(verdict, "seeds", min(counts))
    return Text(
        f"Give more rows, or more seeds ({seeds}).", f"请提供更多数据行，或增加种子（{seeds}）。"
    )


def tested_rows(verdict: Verdict) -> int | None:
    """The number of test rows, or of groups of them; None if it is unknown."""
    tested = best_row(verdict).tested
    return min((one.units for one in tested.values()), default=None)


def control_named(verdict: Verdict) -> Text:
    """The mean quality on shuffled targets, with the lowest and highest of the seeds if they differ."""
    assert verdict.control
    mean = amount(verdict, sum(verdict.control) / len(verdict.control))
    low, high = (amount(verdict, end) for end in (min(verdict.control), max(verdict.control)))
    if low == high:
        return Text(mean, mean)
    return Text(f"{mean} ({low} to {high})", f"{mean}（{low} 到 {high}）")


def nothing_learned(verdict: Verdict) -> Text:
    """A sentence that compares the best candidate with guessing or the control, and says what to check."""
    best = best_row(verdict)
    quality = quality_named(verdict, best)
    if verdict.beats_guessing and verdict.control:
        shuffled = control_named(verdict)
        return Text(
            f"No recommendation: no score learned anything: the best has {quality.en}, and {shuffled.en} when "
            f"the targets of the training rows are shuffled. {CHECK.en}",
            f"无法推荐：没有任何打分函数学到东西：最好的是 {quality.zh}，把训练目标打乱后是 {shuffled.zh}。"
            f"{CHECK.zh}",
        )
    guess = guessing(verdict)
    last = baseline_named(verdict) if looks_above(verdict) else CHECK
    return Text(
        f"No recommendation: no score is shown to have learned more than guessing: the best has {quality.en}, "
        f"guessing gives {guess}. {last.en}".rstrip(),
        f"无法推荐：没有任何打分函数被证实比瞎猜学得更多：最好的是 {quality.zh}，瞎猜是 {guess}。{last.zh}",
    )


def looks_above(verdict: Verdict) -> bool:
    """Whether the best mean is above guessing by as much as matters, though that is not shown."""
    guess = verdict.chance
    return guess is not None and best_row(verdict).mean().value > guess.value + verdict.matters


def baseline_named(verdict: Verdict) -> Text:
    """The best model without attention and its quality, as a sentence after another; empty without one."""
    baseline = verdict.best_baseline
    if baseline is None:
        return Text("", "")
    reached, name = amount(verdict, baseline.mean().value), baseline.name
    return Text(
        f"A model without attention, {name.en}, has {reached}.",
        f"不用注意力的{name.zh}是 {reached}。",
    )


def after_nothing(verdict: Verdict) -> Text:
    """The sentence on what to do if nothing was learned."""
    more = longer(verdict)
    if looks_above(verdict):
        return Text(
            f"Give more rows or seeds; {more.en} may help too.",
            f"请提供更多数据行或种子；{more.zh}也可能有用。",
        )
    return Text(
        f"Differences between guesses are noise: more seeds do not decide them; {more.en} may help.",
        f"瞎猜之间的差异只是噪声，增加种子无法判定；{more.zh}可能有用。",
    )


def best_row(verdict: Verdict) -> CandidateRow:
    """The finalist with the highest mean."""
    return max(verdict.finalists, key=lambda row: row.mean().value)


def quality_named(verdict: Verdict, row: CandidateRow) -> Text:
    """The mean quality of a finalist, with the metric's name unless it is an accuracy."""
    shown = amount(verdict, row.mean().value)
    told = shown if verdict.metric == "accuracy" else f"{metric_of(verdict).en} {shown}"
    return Text(told, told)


def guessing(verdict: Verdict) -> str:
    """The quality of guessing as text."""
    assert verdict.chance is not None
    return "0" if verdict.metric == "r2" else amount(verdict, verdict.chance.value)


def longer(verdict: Verdict) -> Text:
    """Longer trainings, with the setting for them."""
    steps = verdict.facts.get("settings", {}).get("steps")
    if steps is None:
        return Text("longer trainings", "更长的训练")
    twice = option(verdict, "steps", 2 * steps)
    return Text(f"longer trainings ({twice})", f"更长的训练（{twice}）")
