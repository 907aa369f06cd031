"""What the command line reads and writes: a graph by name or file, numbers or names of nodes, predicted classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from regard.recipes.estimator import RecipeError
from regard.recipes.graph.data import SETS, load
from regard.recipes.graph.nodes import Nodes

EXPECTED = (
    f"first a graph, one of {', '.join(SETS)} or a file .npz with x (nodes, features), edge_index (2, edges) and "
    "perhaps edge_attr, then nodes by number or name (none for all)"
)


def read(lines: list[str]) -> Nodes:
    """Nodes from lines: the graph, then one node a line.

    Raises:
        RecipeError: there is no such graph or node.
    """
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted:
        raise RecipeError(f"nothing was given; expected {EXPECTED}")
    graph = load(wanted[0]).test.x.graph if wanted[0] in SETS else read_graph(Path(wanted[0]))
    names = {name: n for n, name in enumerate(graph.names)} if "names" in graph else {}
    index = []
    for word in wanted[1:]:
        if word in names:
            index.append(names[word])
        elif word.isdecimal():
            index.append(int(word))
        else:
            raise RecipeError(f"{wanted[0]} has no node {word!r}; expected a number or a name")
    return Nodes(graph, index or None)


def read_graph(path: Path) -> Data:
    """A graph from a file of arrays. Nothing in it is executed."""
    if not path.is_file():
        raise RecipeError(f"{path} is no graph and no file; expected {EXPECTED}")
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {key: torch.from_numpy(file[key]) for key in file.files}
        graph = Data(found["x"].float(), found["edge_index"].long())
    except Exception as error:  # numpy, zipfile and torch each raise their own
        raise RecipeError(f"{path} cannot be read ({error}); expected {EXPECTED}") from None
    if "edge_attr" in found:
        graph.edge_attr = found["edge_attr"].float()
    return graph


def write(x: Nodes, predictions: Sequence[Any]) -> list[str]:
    """One line for each node: its number or name, a tab, its class."""
    names = x.graph.names if "names" in x.graph else None
    nodes = x.index.tolist()
    shown = nodes if names is None else [names[node] for node in nodes]
    return [f"{node}\t{label}" for node, label in zip(shown, predictions, strict=True)]
