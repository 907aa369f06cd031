"""How well relevant documents are ranked: mean average precision, recall among the first ten.

Statistics of a query are (average precision, recall@10, reciprocal rank). Shape legend: Q queries, N documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.recipes.metrics import PERCENT, Metric
from regard.text import Text

FIRST = 10


def mean_average_precision(statistics: np.ndarray) -> float:
    """The mean over queries of the average precision."""
    return float(statistics[:, 0].mean())


def mean_recall(statistics: np.ndarray) -> float:
    """The mean over queries of recall@10, in percent."""
    return 100 * float(statistics[:, 1].mean())


MAP = Metric(
    "map", Text("MAP", "平均精度均值"), mean_average_precision, digits=3, bounds=(0.0, 1.0)
)
RECALL = Metric("recall", Text("recall@10, %", "recall@10，%"), mean_recall, bounds=PERCENT)
MEASURES = {"map": MAP, "recall": RECALL}


def ranks(logits: Tensor, relevant: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each query the ranks of its relevant documents, from 1, sorted; equal logits in the order of rows."""
    found = []
    for row, own in zip(logits, relevant, strict=True):
        places = torch.from_numpy(own).to(row.device)
        level = row[places].unsqueeze(1)
        before = torch.arange(len(row), device=row.device) < places.unsqueeze(1)
        ahead = (row > level) | ((row == level) & before)
        found.append(np.sort(1 + ahead.sum(1).cpu().numpy()))
    return found


def rank_statistics(found: Sequence[np.ndarray]) -> np.ndarray:
    """Statistics (Q, 3) from the ranks of the relevant documents; a rank of 0 stands for one that was not found."""
    rows = np.zeros((len(found), 3))
    for number, own in enumerate(found):
        seen = np.sort(own[own > 0])
        precision = (np.arange(1, len(seen) + 1) / seen).sum() / len(own)
        recall = (seen <= FIRST).sum() / min(len(own), FIRST)
        rows[number] = precision, recall, 1 / seen[0] if len(seen) else 0.0
    return rows


def of_lists(listed: np.ndarray, relevant: Sequence[np.ndarray]) -> np.ndarray:
    """Statistics (Q, 3) of lists of rows (Q, K), the best first, as FAISS gives them."""
    each = []
    for row, own in zip(listed, relevant, strict=True):
        place = {int(one): n for n, one in enumerate(row, 1) if one >= 0}
        each.append(np.array([place.get(int(one), 0) for one in own]))
    return rank_statistics(each)


def of_logits(logits: Tensor, relevant: Sequence[np.ndarray]) -> np.ndarray:
    """Statistics (Q, 3) of the logits of all documents (Q, N)."""
    return rank_statistics(ranks(logits, relevant))
