"""Attention over the edges of a graph.

Shape legend: E edges, S source nodes, T target nodes, H heads, W width of queries and keys for each
head, C width of values for each head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.arguments import check_given_sizes, check_probability, check_sizes
from regard.engines.edge_plan import by_kernels
from regard.engines.edges import SortedEdges
from regard.engines.edges.call import EdgeCall
from regard.engines.edges.operators import attend_by_kernels
from regard.engines.edges.plain import at, edge_logits, edge_softmax, sum_at
from regard.nn.fit import check_score_fits
from regard.nn.graph import pyg
from regard.nn.graph.checks import check_fill, dims_pair
from regard.nn.graph.edges import EdgeList
from regard.nn.graph.given import Given, GraphAttended, checked
from regard.nn.graph.lazy import LAZY, is_lazy, is_uninitialized, linear, settle
from regard.nn.graph.score import lower_edges, make_graph_score, score_width
from regard.observed import EDGE_LISTENERS
from regard.scores import Score


class GraphAttention(nn.Module):
    """Graph attention with any score: every node attends to the nodes that have an edge to it.

    `out_i = sum_j a_ij W_v x_j`, with `a_ij` the softmax of `s(W_q x_i, W_k x_j + W_e e_ij)` over
    the edges j -> i, for each head. The conventions are those of PyTorch Geometric:
    `edge_index[0]` holds sources, `edge_index[1]` targets; edges may repeat; a node that no edge
    points to gets 0 (plus bias and residual, if there are any).

    | PyTorch Geometric | here |
    |---|---|
    | `GATv2Conv(i, o, h)` | `GraphAttention(i, o, h)` |
    | `GATConv(i, o, h)` | `GraphAttention(i, o, h, score="gat")` |
    | `TransformerConv(i, o, h)` | `GraphAttention(i, o, h, score="scaled_dot", self_loops=False, residual=True)`, with edge features also `edge_in_value=True` |

    `from_pyg` converts one of these layers, `load_pyg` loads the state_dict of one.

    ```python
    layer = GraphAttention(8, 16, heads=2)
    x, edge_index = torch.randn(4, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])
    output = layer(x, edge_index)  # (4, 32)
    ```

    Args:
        in_dim: width of the node features, or (source, target) between two sets of nodes. -1 takes
            the width from the first call, as in PyTorch Geometric; edge_dim likewise.
        out_dim: C, output width for each head.
        heads: H.
        score: a name such as "gatv2", "gat" or "additive", None for scaled dot, or a `Score` for H
            heads on queries and keys of width W (this layer projects), which is kept and not
            copied: layers given one object share it.
        width: W; default the score's own if it has one, else C.
        concat: concatenate the heads; False averages them.
        edge_dim: width of edge features, which are projected and added to the keys.
        edge_in_value: add the projected edge features to the values too (needs W == C).
        self_loops: remove self-loops that are given and add one to every node. Between two sets of
            nodes, nodes of the same index are taken to be the same, as in sampled neighbourhoods.
        fill: the edge features of these self-loops: "mean", "add", "min", "max" or "mul" of the
            features of the edges to the node, or a number or tensor.
        negative_slope: of "gat" and "gatv2", default 0.2; any number.
        dropout: probability of dropping a weight, in training.
        bias: learn biases in the projections (not for "gat"), and one at the output if the values
            share the projection of the keys, or in the residual if they do not.
        share_weights: project queries by the weights of the keys. Default: only for "gat" with one
            set of nodes, as in its paper.
        share_value: the projected keys are the values. Default: for "gat" and "gatv2".
        residual: add a learned projection of the target nodes to the output.
        gate: mix output and residual by a learned gate instead of adding them, the beta of
            TransformerConv.

    Cost: the projections, and for each edge and head one evaluation of the score and C
    multiply-adds. Kernels (`docs/engines.md`, "Edges of a graph") need memory for nodes alone, and two
    numbers for each edge and head in the backward pass on a CPU; they are deterministic. They do not
    serve edge features, dropout in training, `attend`, soft caps and float64: there each call holds a
    few tensors of (E, H, max(W, C)), self-loops included in E, and a training step keeps about four,
    "gat" about two. `regard.explain(layer, x, edge_index)` says which runs. In half precision, logits,
    softmax and sums are in fp32. Without kernels, results are deterministic on the CPU, and on a GPU in
    torch's deterministic mode (which refuses fill="mul"). Indices out of range raise an error on the
    CPU. On a GPU the host would have to wait to check them, so there PyTorch's own assertion stops the
    program.

    Initialisation: "gat" and "gatv2" as in PyTorch Geometric, Glorot uniform weights and vectors and
    uniform biases of the projections. With every other score, weights are normal with variance 1 /
    fan-in and biases 0, so that scores have variance 1 for unit-variance nodes (edge features add
    theirs). The output bias is 0. A `Score` object that is given keeps its values.
    """

    def __init__(
        self,
        in_dim: int | tuple[int, int],
        out_dim: int,
        heads: int = 1,
        score: str | Score | None = "gatv2",
        *,
        width: int | None = None,
        concat: bool = True,
        edge_dim: int | None = None,
        edge_in_value: bool = False,
        self_loops: bool = True,
        fill: str | float | Tensor = "mean",
        negative_slope: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        share_weights: bool | None = None,
        share_value: bool | None = None,
        residual: bool = False,
        gate: bool = False,
    ) -> None:
        super().__init__()
        self.source_dim, self.target_dim = dims_pair(in_dim)
        check_given_sizes(out_dim=out_dim, heads=heads)
        check_sizes(width=width, edge_dim=None if edge_dim == LAZY else edge_dim)
        check_probability(dropout=dropout)
        check_fill(fill, None if edge_dim == LAZY else edge_dim)
        width = score_width(score, width, out_dim)
        self._starts_as_pyg = isinstance(score, str) and score in ("gat", "gatv2")
        self.score = make_graph_score(score, width, heads, negative_slope, edge_dim is not None)
        check_score_fits(self.score, (heads, width), (heads, width))
        self.out_dim, self.heads, self.width, self.edge_dim = out_dim, heads, width, edge_dim
        self.concat, self.edge_in_value, self.self_loops = concat, edge_in_value, self_loops
        self.dropout = dropout
        if isinstance(fill, Tensor):
            self.register_buffer("fill", fill, persistent=False)  # moves with the layer
        else:
            self.fill = fill
        if share_weights is None:
            share_weights = self.score.name == "gat" and isinstance(in_dim, int)
        if share_value is None:
            share_value = self.score.name in ("gat", "gatv2")
        self.share_weights, self.share_value = share_weights, share_value
        if gate and not residual:
            raise ValueError("gate=True mixes the output with the residual: give residual=True")
        self.check_options()
        self._make_parameters(bias, residual, gate)
        self._reset_own()

    def _make_parameters(self, bias: bool, residual: bool, gate: bool) -> None:
        """Register the projections and the bias; `_reset_own` draws them."""
        heads, total = self.heads, self.out_dim * (self.heads if self.concat else 1)
        # GATConv has its bias at the output only.
        bias_inside = bias and self.score.name != "gat"
        self.key = linear(self.source_dim, heads * self.width, bias_inside)
        self.query = self.value = self.edge = self.residual = self.gate = self.bias = None
        if not self.share_weights:
            self.query = linear(self.target_dim, heads * self.width, bias_inside)
        if not self.share_value:
            self.value = linear(self.source_dim, heads * self.out_dim, bias)
        if self.edge_dim is not None:
            self.edge = linear(self.edge_dim, heads * self.width, False)
        if residual:
            self.residual = linear(self.target_dim, total, bias and not self.share_value)
        if gate:
            self.gate = nn.Linear(3 * total, 1, False)
        if bias and self.share_value:
            self.bias = nn.Parameter(torch.empty(total))

    @classmethod
    def from_pyg(cls, conv: nn.Module) -> GraphAttention:
        """A layer that computes what a GATConv, GATv2Conv or TransformerConv computes.

        The weights are copied; device, dtype and training mode are those of `conv`.
        """
        layer = cls(**pyg.arguments(conv))
        # Cast before loading: copying fp64 weights into an fp32 layer would round them.
        sample = next(conv.parameters())
        layer.to(sample.device, sample.dtype).train(conv.training)
        layer.load_pyg(conv.state_dict())
        return layer

    def load_pyg(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy the weights from the state_dict of a GATConv, GATv2Conv or TransformerConv.

        The layer must be built with the same sizes and options; `from_pyg` does both.
        """
        own = pyg.renamed(state_dict, self.score.name, self.state_dict())
        # Projections of a layer that has not seen any input have no weights yet, and are left out.
        self.load_state_dict(own, strict=not any(map(is_uninitialized, state_dict.values())))

    def reset_parameters(self) -> None:
        """Draw all parameters again, those of the score included."""
        for part in self.score.modules():  # a wrapper does not reset the score it holds
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
        self._reset_own()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | SortedEdges,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Attend over the edges.

        Args:
            x: node features (nodes, in_dim), or a pair (x_source, x_target).
            edge_index: (2, E) int64, sources in row 0 and targets in row 1, or the same sorted by
                `regard.SortedEdges.of`, which saves each call the sorting.
            edge_attr: (E, edge_dim), or (E,) where edge_dim is 1.

        Returns:
            (T, H * C), or (T, C) where heads are averaged.
        """
        given = self._checked(x, edge_index, edge_attr)
        query, key, value = self._project(given)
        call = self._call(given, query, key, value)
        if call is not None and by_kernels(call):
            by_head = attend_by_kernels(call)
        else:
            by_head = self._plain(given, query, key, value, call)[0]
        return self._finish(by_head, value, given.x_target)

    def attend(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | SortedEdges,
        edge_attr: Tensor | None = None,
    ) -> GraphAttended:
        """What `forward` returns, with the weight of every edge and its index."""
        given = self._checked(x, edge_index, edge_attr)
        query, key, value = self._project(given)
        call = self._call(given, query, key, value, weights=True)
        by_head, edges, weights = self._plain(given, query, key, value, call)
        output = self._finish(by_head, value, given.x_target)
        number = torch.arange(edges.source.shape[0], device=edges.source.device)
        number = torch.where(number < given.edge_index.shape[1], number, -1)
        both = torch.stack([edges.source, edges.target])
        weights = weights.to(output.dtype)
        # Removing hidden edges makes shapes depend on data, which `forward` avoids. Here the caller
        # reads the edges anyway.
        if edges.hidden is None:
            return GraphAttended(output, both, number, weights)
        kept = ~edges.hidden
        return GraphAttended(output, both[:, kept], number[kept], weights[kept])

    def _checked(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | SortedEdges,
        edge_attr: Tensor | None,
    ) -> Given:
        """The arguments of a call, or an error."""
        if is_lazy(self):
            settle(self, x, edge_attr)
        dims = (self.source_dim, self.target_dim)
        return checked(
            x, edge_index, edge_attr, dims, self.edge_dim, self.key.weight, self.self_loops
        )

    def _project(self, given: Given) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (T, H, W), keys (S, H, W) and values (S, H, C)."""
        x_source, x_target = given.only_read()
        one_set = x_source is x_target
        key = self._by_head(self.key(x_source))
        if self.query is not None:
            query = self._by_head(self.query(x_target))
        else:
            query = key if one_set else self._by_head(self.key(x_target))
        value = key if self.value is None else self._by_head(self.value(x_source))
        return query, key, value

    def _call(
        self, given: Given, query: Tensor, key: Tensor, value: Tensor, weights: bool = False
    ) -> EdgeCall | None:
        """The lowered call, by which it is decided what runs; None in a compiled graph, which is plain."""
        if torch.compiler.is_compiling():
            return None
        # Without edge features keys are lowered once for each node; with them, keys differ by edge.
        form = None
        if given.feature is None:
            form = self.score.lower(query.transpose(0, 1), key.transpose(0, 1))
        call = EdgeCall(
            form,
            value,
            given.edges,
            given.x_source.shape[0],
            given.x_target.shape[0],
            self.self_loops,
            self.score.softcap,
            self.dropout if self.training else 0.0,
            weights,
        )
        for tell in EDGE_LISTENERS:
            tell(call, self.score)
        return call

    def _plain(
        self, given: Given, query: Tensor, key: Tensor, value: Tensor, call: EdgeCall | None
    ) -> tuple[Tensor, EdgeList, Tensor]:
        """Output (T, H, C), edges and weights (E, H), in PyTorch's own operations."""
        edges, edge, form = given.listed(self.fill), None, None if call is None else call.form
        source: Tensor | None = edges.source
        if self.edge is not None and edges.feature is not None:
            edge = self._by_head(self.edge(edges.feature))
            form, source = lower_edges(self.score, query, key, edge, edges.source), None
        elif form is None:
            form = self.score.lower(query.transpose(0, 1), key.transpose(0, 1))
        weights = self._weights(edge_logits(form, edges.target, source), edges, query.shape[0])
        message = at(value, edges.source)
        if self.edge_in_value and edge is not None:
            message = message + edge
        kept = F.dropout(weights, self.dropout, self.training)
        by_head = sum_at(message * kept.unsqueeze(-1), edges.target, query.shape[0])
        return by_head, edges, weights

    def _weights(self, logits: Tensor, edges: EdgeList, targets: int) -> Tensor:
        """The softmax over the edges of each target, (E, H)."""
        if self.score.softcap is not None:
            logits = self.score.softcap * torch.tanh(logits / self.score.softcap)
        if edges.hidden is not None:
            logits = logits.masked_fill(edges.hidden.unsqueeze(-1), -torch.inf)
        return edge_softmax(logits, edges.target, targets)

    def _finish(self, by_head: Tensor, value: Tensor, x_target: Tensor) -> Tensor:
        """Join or average the heads of the output (T, H, C), and add the residual and the bias."""
        output = (by_head.flatten(1) if self.concat else by_head.mean(1)).to(value.dtype)
        if self.residual is not None:
            root = self.residual(x_target)
            if self.gate is None:
                output = output + root
            else:
                share = self.gate(torch.cat([output, root, output - root], -1)).sigmoid()
                output = share * root + (1 - share) * output
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _reset_own(self) -> None:
        """Draw the projections, and the vectors of a score that starts as PyTorch Geometric's."""
        for part in (self.query, self.key, self.value, self.edge, self.residual, self.gate):
            if part is not None and not is_uninitialized(part.weight):
                self.draw(part)
        if self._starts_as_pyg:
            for vector in self.score.parameters():
                nn.init.xavier_uniform_(vector)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def draw(self, part: nn.Linear) -> None:
        """Draw a projection; see "Initialisation" above."""
        bound = part.in_features**-0.5
        if self._starts_as_pyg:
            nn.init.xavier_uniform_(part.weight)
        else:
            nn.init.normal_(part.weight, std=bound)
        if part.bias is not None:
            bound = bound if self._starts_as_pyg else 0.0
            nn.init.uniform_(part.bias, -bound, bound)

    def check_options(self, **dims: int) -> None:
        """Refuse options that contradict one another; `dims` are widths that are about to be taken."""
        source, target = (dims.get(x, getattr(self, x)) for x in ("source_dim", "target_dim"))
        if self.share_weights and source != target:
            raise ValueError(
                f"share_weights=True needs one width for both sets of nodes, got source dim "
                f"{source} and target dim {target}"
            )
        if self.edge_in_value and self.edge_dim is None:
            raise ValueError("edge_in_value=True needs edge features: give edge_dim=")
        for name in ("share_value", "edge_in_value"):
            if getattr(self, name) and self.width != self.out_dim:
                raise ValueError(
                    f"{name}=True uses what is projected for the keys as values, which needs "
                    f"width == out_dim, got width {self.width} and out_dim {self.out_dim}"
                )

    def extra_repr(self) -> str:
        """The sizes and the options that were set; edge and residual layers show as parts."""
        dims = (self.source_dim, self.target_dim)
        text = f"{dims[0] if dims[0] == dims[1] else dims}, {self.out_dim}, heads={self.heads}"
        text += f", width={self.width}" if self.width != self.out_dim else ""
        text += "" if self.concat else ", concat=False"
        text += ", edge_in_value=True" if self.edge_in_value else ""
        text += "" if self.self_loops else ", self_loops=False"
        text += f", fill={self.fill}" if self.edge_dim and self.self_loops else ""
        text += ", share_weights=True" if self.share_weights else ""
        return text + (f", dropout={self.dropout}" if self.dropout else "")
