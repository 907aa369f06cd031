"""What is compared on a set of molecules: every score, the control without attention, and forests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated
from regard.recipes.metrics import RMSE
from regard.recipes.molecules.baselines import run_forest
from regard.recipes.molecules.data import EMBEDDED, SETS, known_set, resplit
from regard.recipes.molecules.features import descriptors, fingerprints
from regard.recipes.molecules.net import MEAN
from regard.recipes.molecules.predictor import MoleculePredictor
from regard.recipes.molecules.ranking import ROC_AUC
from regard.text import Text

Report = Callable[[float], None]
SCORES = {
    "gatv2": Text("GATv2", "GATv2"),
    "gat": Text("GAT", "GAT"),
    "scaled_dot": Text("scaled dot", "缩放点积"),
    "additive": Text("additive", "加性"),
    "cosine": Text("cosine", "余弦"),
    "bilinear": Text("bilinear", "双线性"),
    "gaussian": Text("Gaussian", "高斯"),
    "dot": Text("dot", "点积"),
    "low_rank": Text("low rank", "低秩"),
}
# All contenders with a network try these, the forests as many of their own; validation decides.
SETTINGS = (
    {"dropout": 0.1, "rate": 1e-3},
    {"dropout": 0.2, "rate": 1e-3},
    {"dropout": 0.1, "rate": 3e-4},
)
FOREST_SETTINGS = (
    {"max_features": 1 / 3},
    {"max_features": "sqrt"},
    {"max_features": 1 / 3, "min_samples_leaf": 3},
)
SEEDS = (0, 1, 2, 3, 4)
MEMBERS = 5
# The quick look: of the scores these, with fewer epochs and the first setting only.
QUICK = ("gatv2", "scaled_dot", "additive")
QUICK_EPOCHS = 15


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments at the default size for a set; it fits minutes on two cores."""
    known = known_set(name)
    found: dict[str, Any] = {"task": known.task, "epochs": 100}
    if name == EMBEDDED:
        return found | {"epochs": 60, "batch": 64}
    if name == "bbbp":
        return found | {"epochs": 30}
    return found


def full_arguments(name: str) -> dict[str, Any]:
    """The arguments of a full comparison: wider and longer than the default."""
    return arguments(name) | {"width": 128, "epochs": 60 if name == "bbbp" else 200}


def run_network(
    split: Callable[[int], Dataset],
    fixed: Mapping[str, Any],
    setting: Mapping[str, Any],
    seed: int,
    report: Report,
) -> Evaluated:
    """Train a predictor on the split of the seed and evaluate it."""
    model = MoleculePredictor(**{**fixed, **setting}, seed=seed)
    return fit_and_evaluate(model, split(seed), report)


def forest(
    split: Callable[[int], Dataset],
    inputs: Any,
    classify: bool,
    setting: Mapping[str, Any],
    seed: int,
    report: Report,
) -> Evaluated:
    """Train a forest on the split of the seed and evaluate it."""
    found = run_forest(split(seed), inputs, classify, setting, seed)
    report(1.0)
    return found


def comparison(data: Dataset, full: bool, device: str | None) -> Comparison:
    """Every score and baseline on the rows of a set.

    A set that is split at random is split anew by each seed, so that seeds have test rows of their own; BBBP has
    one split by scaffold, and seeds differ in the training only.
    """
    fixed = full_arguments(data.name) if full else arguments(data.name) | {"epochs": QUICK_EPOCHS}
    fixed |= {"device": device}
    split = lru_cache(maxsize=len(SEEDS))(partial(resplit, data))
    classify = fixed["task"] == "classification"
    settings = SETTINGS if full else SETTINGS[:1]

    def row(
        name: str, title: Text, kind: Any, more: dict[str, Any], about: Text | None = None
    ) -> Contender:
        run = partial(run_network, split, {**fixed, **more})
        return Contender(name, title, kind, settings, run, about)

    rows = [
        row(name, title, "score", {"score": name})
        for name, title in SCORES.items()
        if full or name in QUICK
    ]
    rows += variants(row, full)
    for name, title, inputs in (
        ("forest descriptors", Text("forest on descriptors", "描述符随机森林"), descriptors),
        ("forest fingerprints", Text("forest on fingerprints", "指纹随机森林"), fingerprints),
    ):
        run = partial(forest, split, inputs, classify)
        tried = FOREST_SETTINGS[: len(settings)]
        rows.append(Contender(name, title, "baseline", tried, run))
    return Comparison(
        f"molecules-{data.name}",
        Text(f"Molecules: {data.title.en}", f"分子：{data.title.zh}"),
        ROC_AUC if classify else RMSE,
        tuple(rows),
        "gatv2",
        SEEDS if full else SEEDS[:2],
        notes(data.name),
    )


def variants(row: Callable[..., Contender], full: bool) -> list[Contender]:
    """Equal weights in place of a score; the graph beside descriptors; an ensemble."""
    found = [
        row(
            "mean over neighbours",
            Text("mean over neighbours", "邻居平均"),
            "control",
            {"score": MEAN},
            Text(
                "The same network with equal weights in bonds and readout.",
                "同一网络，键与读出的权重相等。",
            ),
        ),
        row(
            "gatv2 + descriptors",
            Text("GATv2 + descriptors", "GATv2 + 描述符"),
            "score",
            {"score": "gatv2", "descriptors": True},
            Text(
                "RDKit's descriptors of the whole molecule go into the head.",
                "RDKit 的整分子描述符也送入输出层。",
            ),
        ),
    ]
    if full:
        for name, more, en, zh in (
            (f"gatv2 x {MEMBERS}", {}, "GATv2", "GATv2"),
            (f"gatv2 + descriptors x {MEMBERS}", {"descriptors": True}, "GATv2 + descriptors", "GATv2 + 描述符"),
        ):  # fmt: skip
            title = Text(f"{en}, ensemble of {MEMBERS}", f"{zh}，{MEMBERS} 个集成")
            about = Text(
                f"The mean of {MEMBERS} networks from different starting weights.",
                f"{MEMBERS} 个不同初值网络的平均。",
            )
            found.append(
                row(name, title, "score", {"score": "gatv2", "ensemble": MEMBERS} | more, about)
            )
    return found


def notes(name: str) -> tuple[Text, ...]:
    """What a reader must know about splits and settings."""
    random = name not in SETS or SETS[name].split == "random"
    return (
        Text(
            "Split 80/10/10 at random by molecule, anew for each seed: seeds differ in their test rows too."
            if random
            else "Split 80/10/10 by Bemis-Murcko scaffold, the largest groups into training; seeds differ in "
            "the training only.",
            "按分子随机划分 80/10/10，每个种子重新划分，因此测试行也不同。"
            if random
            else "按 Bemis-Murcko 骨架划分 80/10/10，最大的骨架用于训练；种子只影响训练。",
        ),
        Text(
            "A molecule that occurs twice, in whatever spelling, is on one side of the split.",
            "同一分子的不同写法总在划分的同一侧。",
        ),
        Text(
            "Settings and the epoch to stop at are chosen on validation rows.",
            "超参数与停止轮次都在验证行上选择。",
        ),
    )
