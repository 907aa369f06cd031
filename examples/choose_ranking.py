"""Which attention for retrieval? Queries, documents and TREC's judgements go to an answer.

Queries have 6 numbers and documents 4, which a matrix relates: no angle or distance between them is defined.
"""

import csv
from pathlib import Path

import numpy as np

import regard

QUERIES, DOCUMENTS, RELEVANT = 150, 300, 2
draw = np.random.default_rng(0)
documents = draw.normal(size=(DOCUMENTS, 4))
queries = draw.normal(size=(QUERIES, 6))
likeness = queries @ draw.normal(size=(6, 4)) @ documents.T


def write(path: str, name: str, numbers: np.ndarray) -> None:
    """Write a table of ids and numbers."""
    with Path(path).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([f"{name}_id", *(f"e{i}" for i in range(numbers.shape[1]))])
        table.writerows([f"{name}{i}", *row] for i, row in enumerate(numbers.round(4)))


write("queries.csv", "query", queries)
write("documents.csv", "doc", documents)
with Path("qrels.txt").open("w") as file:
    for query, order in enumerate(likeness.argsort(1)[:, ::-1]):
        file.writelines(f"query{query} 0 doc{d} 1\n" for d in order[:RELEVANT])

verdict = regard.choose(
    queries="queries.csv",
    documents="documents.csv",
    judgements="qrels.txt",
    scores=[
        "bilinear"
    ],  # leave the next five lines out for an answer: so few steps and seeds decide little
    stabilizers=["none"],
    rates=[1e-2],
    steps=80,
    seeds=3,
    progress=False,
)
print(verdict)

row = next(row for row in verdict.rows if row.quality)
assert verdict.metric == "ndcg" and set(row.extra_means()) == {"mrr", "accuracy"}
assert min(row.quality.values()) > verdict.chance.value + 0.1  # it has learned
