"""`GraphAttention` under the fuzzer: a dense textbook over all targets and edges.

Shape legend: E edges, S source nodes, T target nodes, H heads, W width of queries and keys.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from regard.nn import GraphAttention
from regard.testing.fuzz import textbook
from regard.testing.fuzz.modules.base import (
    KINDS,
    KINKED,
    Found,
    Kind,
    Options,
    PreparedModule,
    draw_score,
    head_width,
    linear,
    normal,
)
from regard.testing.fuzz.view import View, logits_of


def draw(rng: random.Random) -> Options:
    """Options of the layer, and the size of the graph."""
    score = rng.choice(("gatv2", "gat", draw_score(rng)))
    width = head_width(rng, score)
    return {
        "score": score,
        "heads": rng.choice((1, 1, 2, 3)),
        "width": width,
        "in_dim": rng.choice((1, 2, 4)),
        "sources": rng.choice((1, 2, 3, 5)) if rng.random() > 0.02 else 0,
        "targets": rng.choice((1, 2, 3, 4)),
        "two_sets": rng.random() < 0.3,
        "edges": rng.choice((0, 1, 2, 4, 6, 9)),
        "self_loops": rng.random() < 0.6,
        "edge_dim": rng.choice((None, None, 1, 2)),
        "edge_in_value": rng.random() < 0.2,
        "fill": rng.choice(("mean", "add", 0.5)),
        "concat": rng.random() < 0.7,
        "bias": rng.random() < 0.6,
        "residual": rng.random() < 0.3,
        "gate": rng.random() < 0.3,
        "weights": rng.random() < 0.4,
    }


def prepare(o: Options, generator: torch.Generator) -> PreparedModule:
    """One call on a random graph, edges repeated and self-loops included."""
    sources, targets = o["sources"], o["targets"] if o["two_sets"] else o["sources"]
    edges = o["edges"] if sources and targets else 0
    index = torch.stack(
        [
            torch.randint(0, max(sources, 1), (edges,), generator=generator),
            torch.randint(0, max(targets, 1), (edges,), generator=generator),
        ]
    )
    options = {
        "score": o["score"],
        "concat": o["concat"],
        "edge_dim": o["edge_dim"],
        "edge_in_value": o["edge_in_value"] and o["edge_dim"] is not None,
        "self_loops": o["self_loops"],
        "fill": o["fill"],
        "bias": o["bias"],
        "residual": o["residual"],
        "gate": o["gate"] and o["residual"],
    }
    dim = (o["in_dim"], o["in_dim"] + 1) if o["two_sets"] else o["in_dim"]
    inputs = {"x": normal(generator, sources, o["in_dim"])}
    if o["two_sets"]:
        inputs["target"] = normal(generator, targets, o["in_dim"] + 1)
    if o["edge_dim"] is not None:
        inputs["edge"] = normal(generator, edges, o["edge_dim"])
    read = torch.zeros(sources, dtype=torch.bool)
    read[index[0]] = True
    if not o["two_sets"]:
        read[index[1]] = True

    def call(module: GraphAttention, x: Found) -> Found:
        nodes = (x["x"], x["target"]) if o["two_sets"] else x["x"]
        if not o["weights"]:
            return {"output": module(nodes, index, x.get("edge"))}
        found = module.attend(nodes, index, x.get("edge"))
        return {"output": found.output, "weights": found.weights}

    unread = {"x": ~read.unsqueeze(-1)} if not o["self_loops"] and not o["residual"] else {}
    return PreparedModule(
        lambda: GraphAttention(dim, o["width"], o["heads"], **options),
        (dim, o["width"], o["heads"], *options.values()),
        inputs,
        call,
        lambda view, x: _textbook(view, x, o, index),
        poison=unread,
        kinked=o["score"] in KINKED,
    )


def _textbook(view: View, x: Found, o: Options, index: Tensor) -> Found:
    heads, module = o["heads"], view._module
    source, target = x["x"], x.get("target", x["x"])
    if not o["self_loops"] and not o["residual"]:
        # A node that no edge reads may hold anything.
        used = torch.zeros(source.shape[0], dtype=torch.bool)
        used[index[0]] = True
        if not o["two_sets"]:
            used[index[1]] = True
        source = torch.where(used.unsqueeze(-1), source, 0)
        target = target if o["two_sets"] else source
    index, feature = _with_loops(x, o, index, min(source.shape[0], target.shape[0]))
    key = _heads(linear(source, view.key), heads)
    own = view.key if module.query is None else view.query
    query = _heads(linear(target, own), heads)
    value = key if module.value is None else _heads(linear(source, view.value), heads)
    key, value = key[:, index[0]], value[:, index[0]]
    term: Tensor | None = None
    if feature is not None:
        term = _heads(feature @ view.edge.weight.mT, heads)
        if o["edge_in_value"]:
            value = value + term
    logits = _logits(view, query, key, term)
    seen = (index[1] == torch.arange(target.shape[0]).unsqueeze(-1)).expand(logits.shape)
    found = textbook.attend(logits, value, seen, want=("weights",))
    output = found["output"].transpose(0, 1)
    output = output.flatten(1) if o["concat"] else output.mean(1)
    if o["residual"]:
        root = linear(target, view.residual)
        if o["gate"]:
            mixed = torch.cat([output, root, output - root], -1)
            share = torch.sigmoid(linear(mixed, view.gate))
            output = share * root + (1 - share) * output
        else:
            output = output + root
    output = output if module.bias is None else output + view.bias
    result = {"output": output}
    if o["weights"]:
        result["weights"] = found["weights"].sum(-2).mT  # each edge has one target
    return result


def _with_loops(x: Found, o: Options, index: Tensor, nodes: int) -> tuple[Tensor, Tensor | None]:
    """Edges and features with one self-loop for each node in place of those given."""
    feature = x.get("edge")
    if not o["self_loops"]:
        return index, feature
    kept = index[0] != index[1]
    loops = torch.arange(nodes).expand(2, nodes)
    if feature is not None:
        feature = feature[kept]
        into = (index[1, kept] == torch.arange(nodes).unsqueeze(-1)).to(feature.dtype)
        filled = into @ feature
        if o["fill"] == "mean":
            filled = filled / into.sum(-1, keepdim=True).clamp(min=1)
        elif o["fill"] != "add":
            filled = torch.full_like(filled, o["fill"])
        feature = torch.cat([feature, filled])
    return torch.cat([index[:, kept], loops], 1), feature


def _heads(x: Tensor, heads: int) -> Tensor:
    """(N, H * W) to (H, N, W)."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads).transpose(0, 1)


def _logits(view: View, query: Tensor, key: Tensor, term: Tensor | None) -> Tensor:
    """(H, T, E); features of edges are added to the keys, by "gat" through a vector of their own."""
    module = view.score._module
    if term is not None and getattr(module, "edge_vector", None) is not None:
        score = view.score
        a = (query * score.query_vector.unsqueeze(-2)).sum(-1)
        b = (key * score.key_vector.unsqueeze(-2)).sum(-1)
        b = b + (term * score.edge_vector.unsqueeze(-2)).sum(-1)
        return torch.nn.functional.leaky_relu(a.unsqueeze(-1) + b.unsqueeze(-2), module.parameter)
    return logits_of(view.score, query, key if term is None else key + term)


KINDS["GraphAttention"] = Kind(draw, prepare)
