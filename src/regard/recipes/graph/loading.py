"""Mini-batches of nodes with the neighbourhoods that their predictions depend on, through PyG's loaders.

`NeighborLoader` needs pyg-lib or torch-sparse. Without them PyG's `NodeLoader` runs on `PlainSampler`, which is
torch alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.utils import index_sort

from regard.recipes.graph.features import Features


@dataclass(frozen=True)
class NodeBatch:
    """A part of a graph.

    Attributes:
        x: features of its nodes.
        edges: (2, edges), by the numbers of the nodes in this part.
        feature: of the edges; None if there are none.
        wanted: the nodes that were asked for, by their numbers in this part.
        rows: which of the rows asked for they are.
    """

    x: Features
    edges: Tensor
    feature: Tensor | None
    wanted: Tensor
    rows: Tensor


class PlainSampler(BaseSampler):
    """Neighbours of nodes, all or some drawn at random, in torch alone.

    Each node that is reached brings its incoming edges once, as in `NeighborLoader`.

    Args:
        edges: (2, E), sources and targets.
        nodes: of the graph.
        neighbours: for each layer, from the last to the first, the most edges to take for a node; -1 for all.
        generator: draws the edges.
    """

    def __init__(
        self, edges: Tensor, nodes: int, neighbours: list[int], generator: torch.Generator
    ) -> None:
        super().__init__()
        target, self.order = index_sort(edges[1], nodes)
        self.source = edges[0][self.order]
        counts = torch.bincount(target, minlength=nodes)
        self.starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self.nodes, self.neighbours, self.generator = nodes, neighbours, generator

    def sample_from_nodes(self, index: NodeSamplerInput, **_: object) -> SamplerOutput:
        """The nodes given, then those that are reached, and the edges between them."""
        seen = torch.full((self.nodes,), -1)
        nodes = index.node.unique() if len(index.node) > 1 else index.node
        seen[nodes] = torch.arange(len(nodes))
        reached, front, found = [nodes], nodes, []
        for limit in self.neighbours:
            edges = self.incoming(front, limit)
            found.append(edges)
            front = self.source[edges].unique()
            front = front[seen[front] < 0]
            count = sum(map(len, reached))
            seen[front] = torch.arange(count, count + len(front))
            reached.append(front)
        chosen = torch.cat(found)
        target = torch.searchsorted(self.starts, chosen, right=True) - 1
        return SamplerOutput(
            node=torch.cat(reached),
            row=seen[self.source[chosen]],
            col=seen[target],
            edge=self.order[chosen],
            metadata=(index.input_id, None),
        )

    def incoming(self, front: Tensor, limit: int) -> Tensor:
        """Places of the incoming edges of some nodes, at most `limit` for each if it is not -1."""
        count = self.starts.diff()[front]
        owner = torch.arange(len(front)).repeat_interleave(count)
        first = (count.cumsum(0) - count).repeat_interleave(count)
        rank = torch.arange(len(owner)) - first
        place = self.starts[front][owner] + rank
        if limit < 0:
            return place
        # In random order within each owner; the first `limit` stay.
        mixed = torch.randperm(len(place), generator=self.generator)
        mixed = mixed[owner[mixed].argsort(stable=True)]
        return place[mixed[rank < limit]]

    def sample_from_edges(self, *_: object, **__: object) -> SamplerOutput:
        """Not used here."""
        raise NotImplementedError("PlainSampler samples from nodes")


def node_batches(
    graph: Data,
    x: Features,
    feature: Tensor | None,
    index: Tensor,
    *,
    size: int,
    neighbours: list[int],
    seed: int | None,
) -> Iterator[NodeBatch]:
    """The nodes `index` in batches, each with its neighbourhood, on the device of the features.

    Args:
        graph: the whole graph.
        x: its features.
        feature: the features of its edges.
        index: nodes that are wanted.
        size: nodes wanted in a batch.
        neighbours: for each layer, from the last to the first, the most neighbours of a node; -1 for all.
        seed: of the order of the nodes and the choice of neighbours; None for the order given.
    """
    device, generator = x.values.device, torch.Generator().manual_seed(seed or 0)
    nodes, edges = x.shape[0], graph.edge_index.cpu()  # type: ignore[missing-attribute] # may be None by its type, checked before
    bare = Data(edge_index=edges, num_nodes=nodes)
    options = {"input_nodes": index, "batch_size": size, "shuffle": seed is not None}
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        loader = NeighborLoader(bare, neighbours, generator=generator, **options)
    else:
        sampler = PlainSampler(edges, nodes, neighbours, generator)
        loader = NodeLoader(bare, sampler, generator=generator, **options)
    local = torch.full((nodes,), -1)
    for part in loader:
        local[part.n_id] = torch.arange(len(part.n_id))
        own = None if feature is None else feature[part.e_id.to(device)]
        wanted = local[index[part.input_id]].to(device)
        yield NodeBatch(
            x.take(part.n_id.to(device)), part.edge_index.to(device), own, wanted, part.input_id
        )
