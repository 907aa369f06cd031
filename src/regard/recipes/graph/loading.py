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

from regard.recipes.graph.features import NodeFeatures


@dataclass(frozen=True)
class NodeBatch:
    """A part of a graph.

    Attributes:
        x: features of its nodes.
        edges: (2, edges), by the numbers of the nodes in this part.
        feature: of the edges; None if there are none.
        wanted: the nodes whose classes are wanted, by their numbers in this part.
        rows: their places among all nodes that were asked for.
        hops: numbers of nodes and numbers of edges at each distance from the wanted nodes, nearest first, as PyG's
            `trim_to_layer` takes them. Nodes and edges are in that order, so that each layer can leave out the
            farthest. None for a whole graph.
    """

    x: NodeFeatures
    edges: Tensor
    feature: Tensor | None
    wanted: Tensor
    rows: Tensor
    hops: tuple[list[int], list[int]] | None = None


class PlainSampler(BaseSampler):
    """Neighbours of nodes, all or some drawn at random, in torch alone.

    Each node that is reached brings its incoming edges once, as in `NeighborLoader`.

    Args:
        edges: (2, E), sources and targets.
        nodes: how many the graph has.
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
            num_sampled_nodes=[len(one) for one in reached],
            num_sampled_edges=[len(one) for one in found],
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
        """Refused: batches are made of nodes."""
        raise NotImplementedError("PlainSampler samples from nodes")


class GraphSource:
    """A graph with its features on a device, from which batches of nodes are taken.

    Args:
        graph: the whole graph.
        x: its features.
        feature: the features of its edges; None if there are none.
    """

    def __init__(self, graph: Data, x: NodeFeatures, feature: Tensor | None = None) -> None:
        assert graph.edge_index is not None  # `Nodes` has checked the graph
        self.edges, self.x, self.feature = graph.edge_index.cpu(), x, feature
        self.device, self.nodes = x.values.device, x.shape[0]

    def whole(self, index: Tensor) -> NodeBatch:
        """The whole graph as one batch, for the nodes `index`."""
        edges, wanted = self.edges.to(self.device), index.to(self.device)
        return NodeBatch(self.x, edges, self.feature, wanted, torch.arange(len(index)))

    def batches(
        self, index: Tensor, size: int | None, neighbours: list[int], seed: int | None = None
    ) -> Iterator[NodeBatch]:
        """The nodes `index` in batches, each with the neighbourhood that its outputs depend on.

        The last layer needs the edges to these nodes only, the one before also those to their neighbours, and so
        on. For the 140 training nodes of Cora, two layers with self-loops work on 5,498 and 1,282 edges instead of
        13,264 each.

        Args:
            index: nodes that are wanted.
            size: nodes wanted in a batch; None for all in one.
            neighbours: for each layer, from the last to the first, the most neighbours of a node; -1 for all.
            seed: of the order of the nodes and the choice of neighbours; None for the order given.
        """
        local = torch.full((self.nodes,), -1)
        for part in self.loader(index, size or max(len(index), 1), neighbours, seed):
            local[part.n_id] = torch.arange(len(part.n_id))
            yield NodeBatch(
                self.x.take(part.n_id.to(self.device)),
                part.edge_index.to(self.device),
                None if self.feature is None else self.feature[part.e_id.to(self.device)],
                local[index[part.input_id]].to(self.device),
                part.input_id,
                (list(part.num_sampled_nodes), list(part.num_sampled_edges)),
            )

    def loader(
        self, index: Tensor, size: int, neighbours: list[int], seed: int | None
    ) -> NodeLoader:
        """PyG's loader of these nodes."""
        generator = torch.Generator().manual_seed(seed or 0)
        bare = Data(edge_index=self.edges, num_nodes=self.nodes)
        options = {"input_nodes": index, "batch_size": size, "shuffle": seed is not None}
        if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
            return NeighborLoader(bare, neighbours, generator=generator, **options)
        sampler = PlainSampler(self.edges, self.nodes, neighbours, generator)
        return NodeLoader(bare, sampler, generator=generator, **options)
