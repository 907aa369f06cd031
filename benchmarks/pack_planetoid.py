"""Pack the public Planetoid files of Cora and Citeseer into npz files that the graph recipe reads.

The files `ind.<set>.*` are in https://github.com/tkipf/gcn under gcn/data and in
https://github.com/kimiyoung/planetoid under data. They are pickles of Python 2. Here a pickle may build arrays,
matrices in compressed rows and dicts, and nothing else: any other name in it stops the reading.

    python benchmarks/pack_planetoid.py FOLDER_OF_IND_FILES OUT/planetoid
"""

from __future__ import annotations

import argparse
import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

SETS = ("cora", "citeseer")


class PlainUnpickler(pickle.Unpickler):
    """Reads arrays, matrices in compressed rows and dicts of lists, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name in a pickle stands for, if it is one of a few."""
        if module.startswith("scipy.sparse") and name == "csr_matrix":
            return sp.csr_matrix
        if module.startswith("numpy"):
            if name == "_reconstruct":
                return np.empty(0).__reduce__()[0]
            if name in ("ndarray", "dtype"):
                return getattr(np, name)
        if (module, name) == ("collections", "defaultdict"):
            return collections.defaultdict
        if (module, name) in (("__builtin__", "list"), ("builtins", "list")):
            return list
        raise pickle.UnpicklingError(f"{module}.{name} is not expected in these files")


def read_part(folder: Path, name: str, part: str) -> Any:
    """The content of one file."""
    with (folder / f"ind.{name}.{part}").open("rb") as file:
        return PlainUnpickler(file, encoding="latin1").load()


def packed(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of a set with the public split.

    Nodes that are cited but not described, 15 of Citeseer, have no features and the label -1.
    """
    labels, test_labels = (read_part(folder, name, part) for part in ("ally", "ty"))
    features, test_features = (read_part(folder, name, part) for part in ("allx", "tx"))
    order = np.loadtxt(folder / f"ind.{name}.test.index", dtype=np.int64)
    nodes = int(order.max()) + 1
    y = np.full(nodes, -1, np.int64)
    y[: len(labels)], y[order] = labels.argmax(1), test_labels.argmax(1)
    x = sp.lil_matrix((nodes, features.shape[1]), dtype=np.float32)
    x[: len(labels)], x[order] = features, test_features
    x = x.tocsr()
    x.sort_indices()
    graph = read_part(folder, name, "graph")
    ends = {
        (a, b) for one, others in graph.items() for o in others for a, b in ((one, o), (o, one))
    }
    edges = np.array(sorted((a, b) for a, b in ends if a != b), np.int32).T
    known = len(read_part(folder, name, "y"))
    return {
        "x_data": x.data,
        "x_indices": x.indices.astype(np.int32),
        "x_indptr": x.indptr.astype(np.int32),
        "x_shape": np.array(x.shape, np.int64),
        "edge_index": edges,
        "y": y,
        "train_idx": np.arange(known),
        "val_idx": np.arange(known, known + 500),
        "test_idx": np.sort(order),
    }


def main() -> None:
    """Pack both sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, help="folder with ind.cora.x and the others")
    parser.add_argument("out", type=Path, help="folder for cora_clean.npz and citeseer_clean.npz")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        np.savez_compressed(given.out / f"{name}_clean.npz", **packed(given.files, name))
        print(given.out / f"{name}_clean.npz")


if __name__ == "__main__":
    main()
