"""What is compared on a set of series: scores, uses of their weights, controls and detectors without attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from regard.recipes.anomaly.baselines import (
    OnceScored,
    WindowScores,
    matrix_profile,
    median_distance,
    run_baseline,
    sub_pca,
    vus,
)
from regard.recipes.anomaly.data import EMBEDDED
from regard.recipes.anomaly.detector import AnomalyDetector
from regard.recipes.anomaly.measures import AVERAGE_PRECISION
from regard.recipes.datasets import Dataset
from regard.recipes.equal import MEAN
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated, fixed_arguments
from regard.text import Text

Report = Callable[[float], None]
REFERENCE = "gaussian"
SCORES = {
    REFERENCE: Text("Gaussian", "高斯"),
    "scaled_dot": Text("scaled dot", "缩放点积"),
    "cosine": Text("cosine", "余弦"),
    "additive": Text("additive", "加性"),
}
WINDOWS = {EMBEDDED: (64, 128), "daphnet": (32, 64), "nab": (64, 128)}
# All contenders choose the window and the moving mean among the same, and one more thing of their own between two.
SMOOTH = {EMBEDDED: (1, 0.01), "daphnet": (1, 0.03), "nab": (0.03, 0.06)}
SHARPNESS, REMOVED, NORMALISED = (1.0, 3.0), (0, 1), (True, False)
SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0, 1)
QUICK = (REFERENCE, "scaled_dot", "additive")
QUICK_EPOCHS = 3
FROZEN = {"rate": 1e-12, "epochs": 1}  # a training that changes nothing


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments at the default size for a set; it fits minutes on two cores."""
    # The series of NAB are of many kinds: what is strange in one says nothing about another.
    memory = "own" if name == "nab" else "fitted"
    return {"memory": memory, "window": WINDOWS[name][0], "smooth": SMOOTH[name][1]}


def settings(name: str, full: bool, **own: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """What a contender tries on a set: every window with every moving mean and every choice of its own."""
    tried = {"window": WINDOWS[name], "smooth": SMOOTH[name], **own}
    found = tuple(dict(zip(tried, one, strict=True)) for one in product(*tried.values()))
    return found if full else found[:1]


def comparison(data: Dataset, full: bool, device: str | None) -> Comparison:
    """Every score, use of its weights, control and baseline on the series of a set."""
    name = data.name

    def row(key: str, title: Text, kind: Any, about: Text | None = None, **own: Any) -> Contender:
        fixed: dict[str, Any] = {**own, "memory": "own", "device": device} | (
            {} if full or "epochs" in own else {"epochs": QUICK_EPOCHS}
        )
        run = partial(run_detector, data, fixed)
        given = fixed_arguments(AnomalyDetector(**fixed))
        tried = settings(name, full, sharpness=SHARPNESS)
        return Contender(key, title, kind, tried, run, about, given)

    rows = [
        row(key, title, "score", score=key) for key, title in SCORES.items() if full or key in QUICK
    ]
    rows += variants(row)
    rows += baselines(data, full)
    return Comparison(
        f"anomaly-{name}",
        Text(f"Anomalies: {data.title.en}", f"异常检测：{data.title.zh}"),
        AVERAGE_PRECISION,
        tuple(rows),
        REFERENCE,
        SEEDS[: 3 if name == "daphnet" else 5] if full else QUICK_SEEDS,
        notes(name),
    )


def run_detector(
    data: Dataset, fixed: Mapping[str, Any], setting: Mapping[str, Any], seed: int, report: Report
) -> Evaluated:
    """Train a detector on a set and judge its scores."""
    model = AnomalyDetector(**{**fixed, **setting}, seed=seed)
    found = fit_and_evaluate(model, data, report)
    return replace(found, extra=found.extra | vus(found.statistics))


def variants(row: Callable[..., Contender]) -> list[Contender]:
    """Other uses of the weights of the reference, and the controls."""
    return [
        row(
            "density",
            Text("Gaussian, weights as density", "高斯，权重作密度"),
            "score",
            Text(
                "The score of a window is how little weight other windows give to it.",
                "窗口的分数是其他窗口给它的权重有多小。",
            ),
            reading="density",
        ),
        row(
            "forecast",
            Text("Gaussian, forecast", "高斯，预测"),
            "score",
            Text(
                "Kernel regression: the last quarter of a window is predicted from what followed windows alike.",
                "核回归：由相似窗口之后的内容预测窗口的最后四分之一。",
            ),
            reading="forecast",
        ),
        row(
            "global query",
            Text("Gaussian, global query", "高斯，全局查询"),
            "score",
            Text(
                "One learned query for all windows, in place of one made from each.",
                "所有窗口共用一个学习到的查询，而非由各窗口生成。",
            ),
            asking="global",
        ),
        row(
            "untrained",
            Text("Gaussian, not trained", "高斯，未训练"),
            "score",
            Text(
                "Projections stay the random rotation that they start as.",
                "投影保持初始的随机旋转。",
            ),
            **FROZEN,
        ),
        row(
            "equal weights",
            Text("equal weights", "等权重"),
            "control",
            Text(
                "The same network with equal weights: the distance from the mean window.",
                "同一网络，权重相等：到平均窗口的距离。",
            ),
            score=MEAN,
            **FROZEN,
        ),
    ]


def baselines(data: Dataset, full: bool) -> list[Contender]:
    """Detectors of other kinds, with as many settings as the others."""
    tried = partial(settings, data.name, full)
    # A median has no window: in place of one, more moving means.
    means = tuple(
        {"window": 1, "smooth": one} for one in (1, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1)
    )
    return [
        baseline(
            data,
            "Sub-PCA",
            Text("Sub-PCA", "Sub-PCA"),
            sub_pca,
            tried(removed=REMOVED),
            Text(
                "Principal components of the windows (scikit-learn): Mahalanobis distance, or what is left without "
                "the first component.",
                "窗口的主成分（scikit-learn）：马氏距离，或去掉第一主成分后的剩余。",
            ),
        ),
        baseline(
            data,
            "matrix profile",
            Text("matrix profile", "矩阵剖面"),
            matrix_profile,
            tried(normalize=NORMALISED),
            Text(
                "Distance to the nearest window, by stumpy.", "到最近窗口的距离，用 stumpy 计算。"
            ),
        ),
        baseline(
            data,
            "median",
            Text("distance from the median", "到中位数的距离"),
            median_distance,
            means if full else means[:1],
            Text(
                "It knows nothing of time: how much of a result the moving mean alone brings.",
                "不使用时间信息：显示仅靠滑动平均能得到多少。",
            ),
        ),
    ]


def baseline(
    data: Dataset,
    name: str,
    title: Text,
    method: WindowScores,
    tried: tuple[dict[str, Any], ...],
    about: Text,
) -> Contender:
    """A row without a network. Its scores do not change with seeds and moving means, so that each is made once."""
    run = partial(run_baseline, data, OnceScored(method))
    return Contender(name, title, "baseline", tried, run, about)


def notes(name: str) -> tuple[Text, ...]:
    """What a reader must know about splits, labels and settings."""
    found = [
        Text(
            "Average precision over the points of a series, and its mean over series, without point adjustment; "
            "VUS-PR likewise.",
            "平均精确率按序列的各点计算，再对序列取平均，不做点调整；VUS-PR 同理。",
        ),
        Text(
            "Every contender scores a series by that series alone, without its labels, and its scores go through the "
            "same two moving means: over the windows that hold a point, and over `smooth` of the length of the series.",
            "每个参赛者只用该序列本身（不用标签）为其打分，分数经过相同的两次滑动平均：对包含该点的窗口，以及对序列长度的 "
            "`smooth` 份额。",
        ),
    ]
    if name == "nab":
        found += [
            Text(
                "Settings are chosen on the five series of NAB in TSB-AD's tuning list, which are no test rows. The "
                "networks train, without labels, on these and on the six series without an anomaly: a test series is "
                "seen when it is scored, not before.",
                "设置在 TSB-AD 调参列表中的五条 NAB 序列上选定，它们不是测试行。网络在这五条和六条无异常的序列上无标签训练："
                "测试序列只在打分时才被看到。",
            ),
            Text(
                "The first 15% of a series are not judged. NAB's windows around anomalies are a tenth of a series in "
                "all, far wider than the anomalies: a long moving mean gains from that, for every contender.",
                "每条序列的前 15% 不评判。NAB 的异常窗口合计占序列的十分之一，远宽于异常本身：较长的滑动平均因此受益，"
                "对所有参赛者都如此。",
            ),
        ]
    elif name == EMBEDDED:
        found.append(
            Text(
                "There is one test series with one anomaly of 12 points: intervals are for seeds alone and say "
                "nothing about other series. Settings are chosen on anomalies planted in the training part.",
                "测试只有一条序列，含一次 12 个点的异常：区间只针对种子，不说明其他序列。设置在训练部分植入的异常上选定。",
            )
        )
    else:
        found.append(
            Text(
                "All anomalies are planted: a spike, a level shift or a faster wave of 1.5 deviations on all "
                "channels. The excerpt in aeon has no labelled one.",
                "所有异常均为植入：在全部通道上加 1.5 个标准差的尖峰、电平偏移或更快的波。aeon 中的节选没有带标签的异常。",
            )
        )
    return tuple(found)
