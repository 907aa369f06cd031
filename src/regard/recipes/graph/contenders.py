"""What a comparison of the graph recipe trains: scores, PyTorch Geometric's layers, and controls without attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from regard.recipes.datasets import Dataset
from regard.recipes.evaluating import fit_and_evaluate
from regard.recipes.graph.classifier import NodeClassifier
from regard.recipes.kit import Comparison, Contender, Evaluated, Kind
from regard.recipes.metrics import ACCURACY
from regard.text import Text

# For the look-up: one layer of 2 heads and a linear readout, no self-loops, so that only the edges from the
# sources tell anything.
LOOK_UP = {
    "layers": 1, "readout": True, "width": 32, "heads": 2, "dropout": 0.0, "weight_decay": 0.0,
    "self_loops": False, "rate": 1e-2, "epochs": 400, "patience": 400,
}  # fmt: skip
# The root of TransformerConv: a node sees itself by a residual, not by a self-loop.
ROOT = {"self_loops": False, "residual": True}
PAPER = {"dropout": 0.6, "weight_decay": 5e-4}
CITATION_SETTINGS = tuple(
    {"dropout": dropout, "weight_decay": decay}
    for dropout in (0.4, 0.6, 0.8)
    for decay in (5e-4, 2e-3)
)
LOOK_UP_SETTINGS = tuple({"rate": rate} for rate in (3e-3, 1e-2, 3e-2))
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # C of logistic regression, as many as settings
QUICK_EPOCHS = 200


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments for a set: those of the GAT paper, or of the look-up."""
    return dict(LOOK_UP) if name == "dictionary" else {}


def run_network(
    data: Dataset,
    fixed: Mapping[str, Any],
    device: str | None,
    setting: Mapping[str, Any],
    seed: int,
    report: Callable[[float], None],
) -> Evaluated:
    """Train a `NodeClassifier` and evaluate it."""
    model = NodeClassifier(**{**fixed, **setting}, seed=seed, device=device)
    return fit_and_evaluate(model, data, report)


def run_regression(
    data: Dataset, setting: Mapping[str, Any], seed: int, report: Callable[[float], None]
) -> Evaluated:
    """Logistic regression on the features of each node, without edges."""
    from sklearn.linear_model import LogisticRegression

    def rows(part: Any) -> Any:
        return part.x.graph.x[part.x.index].numpy()

    begun = time.perf_counter()
    model = LogisticRegression(C=setting["strength"], max_iter=2000, random_state=seed)
    model.fit(rows(data.train), data.train.y)
    trained = time.perf_counter()
    right = model.predict(rows(data.test)) == data.test.y
    seconds = time.perf_counter() - trained
    validation = 100 * model.score(rows(data.validation), data.validation.y)
    report(1.0)
    return Evaluated(
        validation, right.astype(float)[:, None], model.coef_.size + model.intercept_.size,
        trained - begun, seconds,
    )  # fmt: skip


def comparison(data: Dataset, full: bool = True, device: str | None = None) -> Comparison:
    """What is compared on a set; not `full` takes fewer settings, seeds and epochs."""
    look_up = data.name == "dictionary"
    settings = LOOK_UP_SETTINGS if look_up else CITATION_SETTINGS
    fixed = arguments(data.name)
    if not full:
        settings = (LOOK_UP_SETTINGS[1],) if look_up else (PAPER, CITATION_SETTINGS[0])
        fixed |= {"epochs": QUICK_EPOCHS}
    root = {} if look_up else ROOT

    def network(
        name: str, title: Text, kind: Kind, about: Text | None = None, **own: Any
    ) -> Contender:
        run = partial(run_network, data, {**fixed, **own}, device)
        return Contender(name, title, kind, settings, run, about)

    scores = {
        "scaled_dot": Text("scaled dot", "缩放点积"),
        "gatv2": Text("GATv2", "GATv2"),
        "gat": Text("GAT", "GAT"),
        "additive": Text("additive", "加性"),
        "cosine": Text("cosine", "余弦"),
    }
    rows = [network(name, title, "score", score=name) for name, title in scores.items()]
    if not look_up:
        about = Text(
            "as TransformerConv: no self-loops, a residual", "同 TransformerConv：无自环，带残差"
        )
        title = Text("scaled dot + residual", "缩放点积 + 残差")
        rows.append(
            network("scaled_dot residual", title, "score", about, score="scaled_dot", **root)
        )
    for name, kind in (
        ("GATConv", "gat"),
        ("GATv2Conv", "gatv2"),
        ("TransformerConv", "scaled_dot"),
    ):
        own = root if kind == "scaled_dot" else {}
        title = Text(f"PyG {name}", f"PyG {name}")
        rows.append(network(title.en, title, "baseline", score=kind, layer="pyg", **own))  # type: ignore[bad-argument-type] # of a wider type than it can have here
    gcn = Text("PyG GCNConv", "PyG GCNConv")
    rows.append(network(gcn.en, gcn, "baseline", layer="gcn"))
    mlp = Text("no edges (MLP)", "无边（MLP）")
    rows.append(network("no edges", mlp, "control", layer="mlp"))
    strengths = tuple({"strength": one} for one in STRENGTHS[: len(settings)])
    regression = Text("logistic regression, no edges", "逻辑回归，无边")
    rows.append(
        Contender(
            "logistic regression", regression, "baseline", strengths, partial(run_regression, data)
        )
    )
    return Comparison(
        f"graph-{data.name}", data.title, ACCURACY, tuple(rows), "scaled_dot",
        tuple(range(10 if full else 3)), notes(data),
    )  # fmt: skip


def notes(data: Dataset) -> tuple[Text, ...]:
    """What a reader of the results must know."""
    if data.name == "dictionary":
        law = Text(
            "Generated. Every asker has an edge from every source; under GAT all askers rank the sources alike.",
            "生成的数据。每个提问节点与所有来源节点相连；在 GAT 下，所有提问节点对来源的排序相同。",
        )
        return (law,)
    stop = Text(
        "All networks: 2 layers, 8 heads of 8 (64 hidden units), ELU, Adam at .005 with an L2 penalty on all "
        "weights, stopped by accuracy less cross-entropy on the validation nodes, patience 100.",
        "所有网络：2 层，8 头各 8 维（隐层 64），ELU，Adam 学习率 .005，所有权重 L2 惩罚，按验证节点的准确率减交叉熵早停（耐心 100）。",
    )
    found = [stop]
    if data.name == "miserables":
        found.append(
            Text("The target is generated: groups by modularity.", "目标由模块度分组生成。")
        )
    if data.origin == "public":
        split = Text(
            "Public split; the features of a node are divided by their sum.",
            "公开划分；每个节点的特征除以其总和。",
        )
        found.append(split)
    return tuple(found)
