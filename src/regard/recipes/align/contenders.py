"""What is compared on a set of series: costs by four scores, the start without learning, and other distances.

On the archive one run is twelve trainings. Its quality is the mean of their accuracies, so that a large set weighs as
much as a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from regard.measuring.clock import worked
from regard.recipes.align.baselines import DISTANCES, DTW_RN, SetResult, by_distance
from regard.recipes.align.classifier import SeriesAligner
from regard.recipes.align.data import ARCHIVE, EMBEDDED, tasks
from regard.recipes.align.picture import captioned
from regard.recipes.align.windows import WINDOWS
from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import ShareDone
from regard.recipes.kit import Comparison, Contender, Evaluated, fixed_arguments
from regard.recipes.metrics import ACCURACY, PERCENT, Metric
from regard.text import Text

Report = Callable[[float], None]
REFERENCE = "scaled_dot"
SCORES = {
    REFERENCE: Text("scaled dot", "缩放点积"),
    "cosine": Text("cosine", "余弦"),
    "additive": Text("additive", "加性"),
    "gatv2": Text("GATv2", "GATv2"),
}
START = "not learned"
SEEDS = (0, 1, 2)
QUICK = (REFERENCE, "additive")
QUICK_EPOCHS = 2


def mean_over_sets(statistics: np.ndarray) -> float:
    """The mean over sets of the share that is right, in percent; statistics are (right, number of the set)."""
    right, number = statistics[:, 0], statistics[:, 1].astype(int)
    count = np.bincount(number)
    return 100 * float((np.bincount(number, right)[count > 0] / count[count > 0]).mean())


MEAN_ACCURACY = Metric(
    "mean accuracy",
    Text("accuracy, mean of 12 sets, %", "准确率（12 个数据集的平均），%"),
    mean_over_sets,
    bounds=PERCENT,
)


def learned(
    data: Dataset, fixed: Mapping[str, Any], seed: int, report: Report
) -> tuple[SetResult, SeriesAligner]:
    """Train on one set and judge it."""
    model = SeriesAligner(**fixed, seed=seed).fit_dataset(data, progress=ShareDone(report))
    begun = worked()
    right = model.statistics(data.test.x, data.test.y)[:, 0] > 0
    # A process chooses the start once for each set, but each row pays for it.
    seconds = model.start_seconds_ + model.history_.seconds, worked() - begun
    size = sum(one.numel() for one in model.model_.parameters())
    setting = {"window": model.window_, "slope": model.slope_, "learned": model.learned_}
    return SetResult(model.score_part(data.validation), right, setting, size, seconds), model


def run(
    data: Dataset,
    judge: Callable[[Dataset, int, Report], tuple[SetResult, SeriesAligner | None]],
    pictured: bool,
    setting: Mapping[str, Any],
    seed: int,
    report: Report,
) -> Evaluated:
    """Judge a method on every set that the set consists of."""
    own, picture = {}, None
    sets = tasks(data)
    for number, (name, one) in enumerate(sets.items()):
        own[name], model = judge(one, seed, lambda x, n=number: report((n + x) / len(sets)))
        if pictured and name == EMBEDDED and model is not None and seed == SEEDS[0]:
            picture = captioned(model, one)
    report(1.0)
    counts = [np.full(len(one.right), n) for n, one in enumerate(own.values())]
    right = np.concatenate([one.right for one in own.values()]).astype(np.float64)
    return Evaluated(
        float(np.mean([one.left_out for one in own.values()])),
        np.stack([right, np.concatenate(counts)], 1),
        sum(one.parameters for one in own.values()),
        *(float(sum(one.seconds[part] for one in own.values())) for part in (0, 1)),
        extra=numbers(sets, own) | ({} if picture is None else {"picture": picture}),
    )


def numbers(sets: Mapping[str, Dataset], own: Mapping[str, SetResult]) -> dict[str, Any]:
    """Accuracy on each set, and on how many it is above, level with and below DTW with a chosen window."""
    if len(sets) == 1:
        (one,) = own.values()
        return {k: float(v) for k, v in one.setting.items()}
    accuracy = {name: 100 * float(one.right.mean()) for name, one in own.items()}
    rival = {name: 100 * float(by_distance(one, DTW_RN).right.mean()) for name, one in sets.items()}
    lead = np.array([accuracy[name] - rival[name] for name in sets])
    counts = {"wins": (lead > 0).sum(), "ties": (lead == 0).sum(), "losses": (lead < 0).sum()}
    return {k: float(v) for k, v in counts.items()} | accuracy


def by_learning(fixed: Mapping[str, Any], data: Dataset, seed: int, report: Report) -> Any:
    """A trained recipe on one set."""
    return learned(data, fixed, seed, report)


def by_other(name: str, data: Dataset, seed: int, report: Report) -> Any:
    """A distance of aeon on one set."""
    found = by_distance(data, name)
    report(1.0)
    return found, None


def comparison(data: Dataset, full: bool, device: str | None) -> Comparison:
    """Every score, the start without learning, and the distances, on a set or on the archive."""
    more: dict[str, Any] = {} if full else {"epochs": QUICK_EPOCHS}
    more["device"] = device

    def row(
        name: str, title: Text, kind: Any, own: dict[str, Any], about: Text | None
    ) -> Contender:
        fixed = own | more
        given = fixed_arguments(SeriesAligner(**fixed))
        pictured = name == REFERENCE
        return Contender(
            name, title, kind, ({},), partial(run, data, partial(by_learning, fixed), pictured),
            about, given,
        )  # fmt: skip

    rows = [
        row(name, title, "score", {"score": name}, ABOUT.get(name))
        for name, title in SCORES.items()
        if full or name in QUICK
    ]
    rows.append(
        row(START, Text("not learned", "未训练"), "control", {"learn": False}, ABOUT[START])
    )
    for name, distance in DISTANCES.items():
        tried = {"tried": [dict(one) for one in distance.tried]}
        judge = partial(run, data, partial(by_other, name), False)
        rows.append(
            Contender(name, distance.title, "baseline", ({},), judge, ABOUT.get(name), tried)
        )
    title = Text(f"Alignment: {data.title.en}", f"对齐：{data.title.zh}")
    metric = MEAN_ACCURACY if data.name == ARCHIVE else ACCURACY
    return Comparison(
        f"align-{data.name}",
        title,
        metric,
        tuple(rows),
        REFERENCE,
        SEEDS if full else SEEDS[:2],
        (*NOTES, WINS) if data.name == ARCHIVE else NOTES,
    )


ABOUT = {
    "additive": Text(
        "Its cost is no squared distance: series of more than 48 steps are resampled to 48.",
        "其代价不是平方距离：超过 48 步的序列重采样到 48 步。",
    ),
    "gatv2": Text(
        "Its cost is a weighted sum of absolute differences; 48 steps at most.",
        "其代价是绝对差的加权和；最多 48 步。",
    ),
    START: Text(
        "The start of the training of scaled dot: DTW on values, on slopes or on both, with a chosen window.",
        "缩放点积训练的起点：对取值、斜率或两者做 DTW，窗口经选择。",
    ),
    DTW_RN: Text("DTW_Rn of the archive's tables.", "即档案表格中的 DTW_Rn。"),
}
NOTES = (
    Text(
        "The class of a test series is that of the nearest training series. Training and test series are those of the "
        "archive.",
        "测试序列取最近训练序列的类别。训练与测试划分取自档案。",
    ),
    Text(
        "Nothing is chosen on test rows. Every row chooses by the accuracy on the training series, each judged by the "
        f"others: DTW among {len(WINDOWS)} windows, MSM and TWE among {len(WINDOWS)} settings, a learned cost among the "
        "same windows, then among values, slopes and both, and whether to keep what was learned. Euclid and DTW have "
        "nothing to choose.",
        "测试行不参与任何选择。每一行都按训练序列的留一准确率来选择：DTW 有 "
        f"{len(WINDOWS)} 个窗口，MSM 与 TWE 各有 {len(WINDOWS)} 组参数，学习的代价先选同样的窗口，再选取值、斜率或两者，"
        "并决定是否保留所学。欧氏距离与 DTW 无可选择。",
    ),
    Text(
        "Dot, scaled dot, Gaussian, bilinear and low rank have the same kind of cost, a quadratic form of a difference of "
        "learned features; scaled dot stands for them. MSM and TWE have a window of 0.2.",
        "点积、缩放点积、高斯、双线性与低秩的代价同属一类：所学特征之差的二次型；以缩放点积为代表。MSM 与 TWE 的窗口为 0.2。",
    ),
)
WINS = Text(
    "Wins, ties and losses are counted against DTW with a chosen window, set by set.",
    "胜、平、负均逐个数据集与选定窗口的 DTW 相比。",
)
