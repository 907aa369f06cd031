"""What the command line reads and writes: a graph by name or file, numbers or names of nodes, predicted classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from torch_geometric.data import Data

from regard.recipes.estimator import RecipeError
from regard.recipes.graph.data import GRAPH_SETS, load
from regard.recipes.graph.nodes import Nodes

EXPECTED = (
    f"first a graph, one of {', '.join(GRAPH_SETS)} or a file .npz with x (nodes, features), edge_index (2, edges) and "
    "perhaps edge_attr (edges, features) and names (nodes,), then nodes by number or name (none for all)"
)
LARGEST_GRAPH = 4 * 2**30  # bytes of a file's arrays: a stranger's archive may unpack to anything
# The arrays of a file: kinds of numpy's dtypes, and what they are in words. Others are not read.
NUMBERS, WHOLE, WORDS = ("biuf", "real numbers"), ("iu", "whole numbers"), ("U", "words")
ARRAYS = {"x": NUMBERS, "edge_index": WHOLE, "edge_attr": NUMBERS, "names": WORDS}


def read(lines: list[str]) -> Nodes:
    """Nodes from lines: the graph, then one node a line.

    Raises:
        RecipeError: there is no such graph or node.
    """
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted:
        raise RecipeError(f"nothing was given; expected {EXPECTED}")
    graph = load(wanted[0]).test.x.graph if wanted[0] in GRAPH_SETS else read_graph(Path(wanted[0]))
    whole = Nodes(graph)
    places: dict[str, set[int]] = {str(n): {n} for n in range(len(whole))}
    for n, name in enumerate(graph.names if "names" in graph else ()):
        places.setdefault(name, set()).add(n)
    for word in wanted[1:]:
        if word not in places:
            raise RecipeError(
                f"{wanted[0]} has no node {word!r}; expected a number from 0 to {len(whole) - 1} or a name"
            )
        if len(places[word]) > 1:
            several = ", ".join(map(str, sorted(places[word])))
            raise RecipeError(
                f"{wanted[0]}: {word!r} is the number or the name of several nodes, {several}: give their numbers, "
                "and names that are no numbers"
            )
    return whole.take([min(places[word]) for word in wanted[1:]]) if wanted[1:] else whole


def read_graph(path: Path) -> Data:
    """A graph from a file of arrays. Nothing in it is executed."""
    if not path.is_file():
        raise RecipeError(f"{path} is no graph and no file; expected {EXPECTED}")
    if not is_zipfile(path):
        raise RecipeError(f"{path} is no .npz file; expected {EXPECTED}")
    try:
        with ZipFile(path) as archive:
            unpacked = sum(one.file_size for one in archive.infolist())
        if unpacked > LARGEST_GRAPH:
            raise ValueError(f"its arrays take {unpacked:,} bytes, more than {LARGEST_GRAPH:,}")
        with np.load(path, allow_pickle=False) as file:
            found = {key: file[key] for key in ARRAYS if key in file}
    except Exception as error:  # numpy, zipfile and zlib each raise their own
        raise RecipeError(f"{path} cannot be read ({error}); expected {EXPECTED}") from None
    for key, (kinds, what) in ARRAYS.items():
        if key in found and found[key].size and found[key].dtype.kind not in kinds:
            raise RecipeError(f"{path}: {key} must be {what}, got {found[key].dtype}")
    if not {"x", "edge_index"} <= set(found):
        raise RecipeError(
            f"{path} has no {'edge_index' if 'x' in found else 'x'}; expected {EXPECTED}"
        )
    graph = Data(torch.from_numpy(found["x"]).float(), torch.from_numpy(found["edge_index"]).long())
    if "edge_attr" in found:
        graph.edge_attr = torch.from_numpy(found["edge_attr"]).float()
    if "names" in found:
        if found["names"].shape != found["x"].shape[:1]:
            raise RecipeError(
                f"{path}: names must be one for each node, got {found['names'].shape} for x {found['x'].shape}"
            )
        graph.names = found["names"].tolist()
    return graph


def write(x: Nodes, predictions: Sequence[Any]) -> list[str]:
    """One line for each node: its number or name, a tab, its class."""
    names = x.graph.names if "names" in x.graph else None
    nodes = x.index.tolist()
    shown = nodes if names is None else [names[node] for node in nodes]
    return [f"{node}\t{label}" for node, label in zip(shown, predictions, strict=True)]
