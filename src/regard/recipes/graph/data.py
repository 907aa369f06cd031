"""The graphs of the recipe: two of networkx, a generated look-up, and the public citation graphs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

from regard.recipes.datasets import Dataset, Part
from regard.recipes.graph.nodes import Nodes
from regard.recipes.sources import DataError, PublicSet, RemoteFile, check, find_folder, how_to_get
from regard.text import Text

EMBEDDED = ("karate", "miserables", "dictionary")
PUBLIC = ("cora", "citeseer")
GRAPH_SETS = (*EMBEDDED, *PUBLIC)
ARRAYS = (
    "x_data", "x_indices", "x_indptr", "x_shape", "edge_index", "y", "train_idx", "val_idx", "test_idx",
)  # fmt: skip
# Checksums are those of `flat(arrays)`: the same arrays can be packed into different bytes.
PLANETOID = PublicSet(
    "planetoid",
    (
        RemoteFile(
            "cora_clean.npz", "", "4942d473badf934ad66a926635b935248f82680cd997d4cbbbcb77beaabeefa9"
        ),
        RemoteFile(
            "citeseer_clean.npz",
            "",
            "1e6feb2c80d2289363e2c3d44c3b7cc5cb72ef5b495beceb27f3725f890f0c71",
        ),
    ),
    "MIT (the repository); the citations themselves are free for research",
    build="get gcn/data/ind.* of https://github.com/tkipf/gcn and run "
    "`python benchmarks/pack_planetoid.py FOLDER_OF_IND_FILES DIR/planetoid`",
)
# Sizes of the look-up: keys of a dictionary, and dictionaries for training, validation and test.
KEYS, DICTIONARIES = 10, (120, 30, 60)


def load(
    name: str,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The set of that name.

    Args:
        name: one of `GRAPH_SETS`.
        data: the folder of public sets; None for `REGARD_DATA`.
        download: asks for a download, which these sets do not have: the error says how they are made.
        limit: keeps that many training nodes; all stay in the graph.

    Raises:
        DataError: the set is unknown, is not there, or is damaged.
    """
    if name in PUBLIC:
        found = load_planetoid(name, data, download)
    elif name in MAKERS:
        found = MAKERS[name]()
    else:
        raise DataError(f"there is no set {name!r} of graphs; the sets are {', '.join(GRAPH_SETS)}")
    return found if limit is None else limited(found, limit)


def limited(data: Dataset, limit: int) -> Dataset:
    """The set with fewer training nodes."""
    if limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    nodes, labels = data.train.x, data.train.y
    kept = range(min(limit, len(nodes)))
    return replace(data, train=Part(nodes.take(kept), labels[: len(kept)]))


def split(graph: Data, labels: np.ndarray, parts: tuple[Any, Any, Any]) -> tuple[Part, Part, Part]:
    """Train, validation and test part of one graph, by the numbers of their nodes."""
    train, validation, test = (
        Part(Nodes(graph, index), labels[np.asarray(index)]) for index in parts
    )
    return train, validation, test


def load_planetoid(name: str, data: str | os.PathLike[str] | None, download: bool) -> Dataset:
    """Cora or Citeseer with the public split; features of a node sum to 1."""
    folder = find_folder(PLANETOID, data, [f"{name}_clean.npz"])
    if folder is None:
        raise DataError(f"{name} is not on this machine. {how_to_get(PLANETOID)}")
    if download and not (folder / f"{name}_clean.npz").is_file():
        raise DataError(f"{name} cannot be downloaded. {how_to_get(PLANETOID)}")
    arrays = read_arrays(folder / f"{name}_clean.npz")
    x = np.zeros(tuple(arrays["x_shape"]), np.float32)
    rows = np.repeat(np.arange(len(x)), np.diff(arrays["x_indptr"]))
    x[rows, arrays["x_indices"]] = arrays["x_data"]
    x /= np.maximum(x.sum(1, keepdims=True), 1)
    graph = Data(torch.from_numpy(x), torch.from_numpy(arrays["edge_index"].astype(np.int64)))
    parts = (arrays["train_idx"], arrays["val_idx"], arrays["test_idx"])
    titles = {
        "cora": Text("Cora: papers and their citations, 7 topics", "Cora：论文引用图，7 个主题"),
        "citeseer": Text(
            "Citeseer: papers and their citations, 6 topics", "Citeseer：论文引用图，6 个主题"
        ),
    }
    return Dataset(
        name,
        titles[name],
        "public",
        *split(graph, arrays["y"], parts),
        licence=PLANETOID.licence,
    )


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a packed citation graph, with their checksum checked. Nothing in it is executed."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {key: file[key] for key in ARRAYS}
    except FileNotFoundError:
        raise DataError(f"{path} is missing. {how_to_get(PLANETOID)}") from None
    except Exception as error:  # numpy, zipfile and zlib each raise their own for a damaged file
        raise DataError(f"{path} is damaged: {error}. {how_to_get(PLANETOID)}") from None
    check(flat(arrays), PLANETOID.file(path.name), str(path))
    return arrays


def flat(arrays: dict[str, np.ndarray]) -> bytes:
    """The content of the arrays in one text of bytes: name, kind, shape and numbers of each."""
    return b"".join(
        f"{key} {arrays[key].dtype.str} {arrays[key].shape}\n".encode() + arrays[key].tobytes()
        for key in ARRAYS
    )


def from_networkx(graph: nx.Graph) -> Data:
    """A graph of networkx with the rows of the identity as features and log(1 + weight) on its edges."""
    number = {node: n for n, node in enumerate(graph)}
    ends, weights = [], []
    for one, other, weight in graph.edges(data="weight", default=1.0):
        ends += [(number[one], number[other]), (number[other], number[one])]
        weights += [weight, weight]
    found = Data(torch.eye(len(number)), torch.tensor(ends).T.contiguous())
    found.edge_attr = torch.tensor(weights, dtype=torch.float32).log1p().unsqueeze(-1)
    found.names = [str(node) for node in graph]
    return found


def karate() -> Dataset:
    """Which side each member of the karate club took, from four members whose side is known."""
    club = nx.karate_club_graph()
    labels = np.array([club.nodes[n]["club"] for n in club])
    # Both leaders and one more on each side are known.
    known = [0, 33, 5, 24]
    rest = np.random.default_rng(0).permutation([n for n in club if n not in known])
    title = Text(
        "Zachary's karate club: 34 members, the side each took; 4 are known",
        "扎卡里空手道俱乐部：34 名成员分属两派，已知其中 4 名",
    )
    parts = split(from_networkx(club), labels, (known, np.sort(rest[:10]), np.sort(rest[10:])))
    return Dataset("karate", title, "package", *parts, licence="BSD-3-Clause (networkx)")


def miserables() -> Dataset:
    """The group of each character of Les Miserables, where groups are found by modularity."""
    book = nx.les_miserables_graph()
    groups = nx.community.greedy_modularity_communities(book, weight="weight")
    group = {name: n for n, members in enumerate(groups) for name in members}
    labels = np.array([group[name] for name in book])
    names = list(book)
    # The two best connected characters of each group are known.
    known = [
        names.index(name)
        for members in groups
        for name in sorted(members, key=lambda x: (-book.degree(x), x))[:2]
    ]
    rest = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(names)), known))
    title = Text(
        "Les Miserables: 77 characters who meet; generated target: their group by modularity",
        "《悲惨世界》：77 个相遇的人物；目标由模块度分组生成",
    )
    parts = split(from_networkx(book), labels, (known, np.sort(rest[:20]), np.sort(rest[20:])))
    return Dataset("miserables", title, "package", *parts, licence="BSD-3-Clause (networkx)")


def dictionary() -> Dataset:
    """The look-up that separates static from dynamic attention, at the default size."""
    return look_up(KEYS, DICTIONARIES, seed=0)


def look_up(keys: int, counts: tuple[int, int, int], seed: int) -> Dataset:
    """DictionaryLookup of Brody, Alon and Yahav (2022): each asking node finds the value of its key.

    A graph is a union of dictionaries. In each, every source (a key and its value) has an edge to every asker (a
    key). Values are a random order of 0 to keys - 1, and the label of an asker is the value of its key.
    """
    random = np.random.default_rng(seed)
    parts = []
    for count in counts:
        values = random.permuted(np.tile(np.arange(keys), (count, 1)), axis=1)
        one = np.eye(keys, dtype=np.float32)
        sources = np.concatenate([np.tile(one, (count, 1)), one[values.ravel()]], 1)
        askers = np.concatenate([np.tile(one, (count, 1)), np.zeros_like(sources[:, keys:])], 1)
        total = count * keys
        # Source s of dictionary d is node d * keys + s; askers come after all sources.
        pairs = np.stack(np.meshgrid(np.arange(keys), np.arange(keys)), -1).reshape(-1, 2).T
        edges = np.concatenate(
            [pairs + np.array([[d * keys], [total + d * keys]]) for d in range(count)], 1
        )
        graph = Data(torch.from_numpy(np.concatenate([sources, askers])), torch.from_numpy(edges))
        parts.append(Part(Nodes(graph, np.arange(total, 2 * total)), values.ravel()))
    title = Text(
        f"DictionaryLookup with {keys} keys (generated): find the value of a key",
        f"字典查找，{keys} 个键（生成）：找出键对应的值",
    )
    train, validation, test = parts
    return Dataset("dictionary", title, "generated", train, validation, test)


MAKERS: dict[str, Callable[[], Dataset]] = {
    "karate": karate,
    "miserables": miserables,
    "dictionary": dictionary,
}
