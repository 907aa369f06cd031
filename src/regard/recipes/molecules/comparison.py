"""What is compared on a set of molecules: five scores, the control without attention, and forests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.kit import Comparison, Contender, Evaluated
from regard.recipes.metrics import RMSE
from regard.recipes.molecules.baselines import run_forest
from regard.recipes.molecules.data import EMBEDDED, SETS, known_set, resplit
from regard.recipes.molecules.drawing import DEFAULT, captioned
from regard.recipes.molecules.features import descriptors, fingerprints
from regard.recipes.molecules.net import MEAN
from regard.recipes.molecules.predictor import MoleculePredictor
from regard.recipes.molecules.ranking import ROC_AUC
from regard.text import Text

Report = Callable[[float], None]
REFERENCE = "gatv2"
SCORES = {
    REFERENCE: Text("GATv2", "GATv2"),
    "gat": Text("GAT", "GAT"),
    "scaled_dot": Text("scaled dot", "缩放点积"),
    "additive": Text("additive", "加性"),
    "cosine": Text("cosine", "余弦"),
}
# All contenders with a network try these, the forests as many of their own; validation decides. They hold all sizes
# too, by which results are kept: a run of another size is another run.
SETTINGS = tuple(
    {"dropout": dropout, "width": 32, "batch": 64, "rate": 3e-3} for dropout in (0.05, 0.2)
)
FOREST_SETTINGS = tuple({"n_estimators": 500, "max_features": share} for share in (1 / 3, "sqrt"))
QUICK_FOREST = {"n_estimators": 100, "max_features": 1 / 3}
SEEDS = (0, 1, 2, 3, 4)
MEMBERS = 3
# A full comparison trains 60 networks on each set. With these sizes that takes a quarter of an hour of one core; on
# validation rows of ESOL, width 64 gained less than 0.01 for half as much time again.
EPOCHS = {EMBEDDED: 30, "esol": 30, "freesolv": 50, "bbbp": 10}
# The quick look: of the scores these, with fewer epochs and the first setting only.
QUICK = (REFERENCE, "scaled_dot", "additive")
QUICK_EPOCHS = 15
ASPIRIN = Text("aspirin", "阿司匹林")


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments at the default size for a set; it fits minutes on two cores."""
    known = known_set(name)
    found: dict[str, Any] = {"task": known.task, "epochs": 100}
    if name == EMBEDDED:
        return found | {"epochs": 60, "batch": 64}
    if name == "bbbp":
        return found | {"epochs": 30}
    return found


def settings_of(name: str, full: bool) -> tuple[dict[str, Any], ...]:
    """What every network of a comparison tries on a set."""
    if not full:
        return (SETTINGS[0] | {"epochs": QUICK_EPOCHS},)
    return tuple(one | {"epochs": EPOCHS[name]} for one in SETTINGS)


def run_network(
    split: Callable[[int], Dataset],
    fixed: Mapping[str, Any],
    pictured: bool,
    setting: Mapping[str, Any],
    seed: int,
    report: Report,
) -> Evaluated:
    """Train a predictor on the split of the seed, evaluate it and, if wanted, draw the bonds it attends to."""
    model = MoleculePredictor(**{**fixed, **setting}, seed=seed)
    found = fit_and_evaluate(model, split(seed), report)
    if not pictured or seed != SEEDS[0]:
        return found
    return replace(found, extra=found.extra | {"picture": captioned(model, DEFAULT, ASPIRIN)})


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
    fixed: dict[str, Any] = {"task": known_set(data.name).task, "device": device}
    split = lru_cache(maxsize=len(SEEDS))(partial(resplit, data))
    classify = fixed["task"] == "classification"
    settings = settings_of(data.name, full)

    def row(
        name: str, title: Text, kind: Any, more: dict[str, Any], about: Text | None = None
    ) -> Contender:
        run = partial(run_network, split, {**fixed, **more}, name == REFERENCE)
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
        tried = FOREST_SETTINGS if full else (QUICK_FOREST,)
        rows.append(Contender(name, title, "baseline", tried, run))
    return Comparison(
        f"molecules-{data.name}",
        Text(f"Molecules: {data.title.en}", f"分子：{data.title.zh}"),
        ROC_AUC if classify else RMSE,
        tuple(rows),
        REFERENCE,
        SEEDS if full else SEEDS[:2],
        notes(data.name),
        same_test_rows=SETS[data.name].split != "random",
    )


def variants(row: Callable[..., Contender], full: bool) -> list[Contender]:
    """Equal weights in place of a score; the graph beside descriptors; an ensemble of the latter."""
    beside = Text(
        "RDKit's descriptors of the whole molecule go into the head.",
        "RDKit 的整分子描述符也送入输出层。",
    )
    equal = Text(
        "The same network with equal weights in bonds and readout.",
        "同一网络，键与读出的权重相等。",
    )
    name, title = "gatv2 + descriptors", Text("GATv2 + descriptors", "GATv2 + 描述符")
    more = {"score": "gatv2", "descriptors": True}
    found = [
        row(
            "mean over neighbours",
            Text("mean over neighbours", "邻居平均"),
            "control",
            {"score": MEAN},
            equal,
        ),
        row(name, title, "score", more, beside),
    ]
    if full:
        several = Text(f"{title.en}, ensemble of {MEMBERS}", f"{title.zh}，{MEMBERS} 个网络的集成")
        about = Text(
            f"The mean of {MEMBERS} such networks from different starting weights.",
            f"{MEMBERS} 个不同初值的此类网络的平均。",
        )
        found.append(
            row(f"{name} x {MEMBERS}", several, "score", more | {"ensemble": MEMBERS}, about)
        )
    return found


def notes(name: str) -> tuple[Text, ...]:
    """What a reader must know about splits and settings."""
    random = SETS[name].split == "random"
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
