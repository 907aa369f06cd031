"""The suite `graph`: `GraphAttention` beside the layers of PyTorch Geometric, forward and with backward.

Both compute the same function of the same weights, their projections included. Ours is measured with the
edges sorted once by the caller ("held"), and with a plain edge_index that each call sorts ("sorted in call").
Candidates take turns, and ratios are taken within rounds.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.bench.candidate import FORWARD, PASSES
from regard.measuring import memory
from regard.measuring.clock import calls_per_sample, clock
from regard.measuring.errors import distance
from regard.measuring.failures import first_line, out_of_memory
from regard.measuring.times import Times
from regard.measuring.turns import there_and_back
from regard.measuring.words import number
from regard.nn import GraphAttention

PEER, HELD, IN_CALL = "PyTorch Geometric", "held", "sorted in call"
NAMES = (PEER, HELD, IN_CALL)
LAYERS = {"gatv2": "GATv2Conv", "gat": "GATConv", "scaled_dot": "TransformerConv"}
# Tensors of E x heads x width that a peer holds at once in a backward pass, in fp32.
PEER_TENSORS = 6
# The largest relative difference from the peer, whose sums in fp32 err by about 1e-6.
MOST_DIFFERENCE = 1e-4
# Rounds of a setting take about this long, and there are at least and at most so many.
SECONDS, LEAST, MOST = 20.0, 5, 25
QUICK_SECONDS, QUICK_LEAST = 3.0, 3
ABOUT = "GraphAttention beside PyTorch Geometric, 10k to 5M edges"


@dataclass(frozen=True)
class GraphSetting:
    """One graph and one layer: 8 heads of 16 on node features of width 128.

    Args:
        score: of the layer.
        nodes, edges: sizes of the graph.
        hub: fraction of the edges that point to one node and as many that leave it; the others are drawn
            with probabilities by a power law if this is not 0, else evenly.
    """

    score: str
    nodes: int
    edges: int
    hub: float = 0.0
    in_dim: int = 128
    width: int = 16
    heads: int = 8

    @property
    def key(self) -> str:
        """The sizes as one word."""
        return f"{self.score}-n{self.nodes}-e{self.edges}{'-hub' * bool(self.hub)}"

    def title(self) -> str:
        """For tables and progress."""
        kind = ", degrees by a power law, a node with a tenth of all edges" if self.hub else ""
        return (
            f"{LAYERS[self.score]}: {self.nodes:,} nodes, {self.edges:,} edges{kind}; "
            f"{self.heads} heads of {self.width}"
        )

    def edge_index(self, device: torch.device, seed: int) -> Tensor:
        """The edges, (2, E)."""
        draw = torch.Generator().manual_seed(seed)
        ends = torch.rand(2, self.edges, generator=draw, dtype=torch.float64)
        if self.hub:
            # Node n has degree about n^-1/2: the density of a square of an even draw.
            ends = ends.square()
            few = int(self.hub * self.edges)
            ends[0, :few], ends[1, few : 2 * few] = 0, 0
        return (ends * self.nodes).long().clamp(max=self.nodes - 1).to(device)


SIZES = ((2_708, 10_556, 0.0), (20_000, 200_000, 0.0), (100_000, 1_000_000, 0.0))
LARGEST = (200_000, 5_000_000, 0.0)
POWER_LAW = (100_000, 1_000_000, 0.1)


def graph_suite(quick: bool = False) -> list[GraphSetting]:
    """The settings, the most important first."""
    if quick:
        return [GraphSetting("gatv2", *sizes) for sizes in SIZES[:2]]
    found = [GraphSetting("gatv2", *sizes) for sizes in (*SIZES, POWER_LAW)]
    found += [GraphSetting(score, *SIZES[2]) for score in ("gat", "scaled_dot")]
    found += [GraphSetting(score, *SIZES[0]) for score in ("gat", "scaled_dot")]
    return [*found, GraphSetting("gatv2", *LARGEST)]


@dataclass
class GraphPass:
    """Times, memory and difference of one pass of one candidate; `reason` says why there is no time."""

    times: Times = field(default_factory=Times)
    bytes: int | None = None
    difference: float | None = None
    reason: str = ""

    def as_dict(self, peer: GraphPass) -> dict[str, Any]:
        """Fields for JSON; `over_peer` is the time of the peer over this one."""
        timed = bool(self.times.samples)
        ratio = peer.times.over(self.times) if timed and peer.times.samples else None
        return {
            "seconds": self.times.as_dict() if timed else None,
            "speed_over_peer": ratio.as_dict() if ratio else None,
            "peak_bytes": self.bytes,
            "difference": self.difference,
            "reason": self.reason or None,
        }


class GraphWork:
    """The layers of one setting on its inputs."""

    def __init__(self, setting: GraphSetting, device: torch.device, seed: int) -> None:
        self.setting, self.device = setting, device
        torch.manual_seed(seed)
        peers: Any = importlib.import_module("torch_geometric.nn")
        s = setting
        peer = getattr(peers, LAYERS[s.score])(s.in_dim, s.width, heads=s.heads)
        self.layers: dict[str, nn.Module] = {PEER: peer.to(device)}
        self.layers[HELD] = self.layers[IN_CALL] = GraphAttention.from_pyg(self.layers[PEER])
        self.x = torch.randn(s.nodes, s.in_dim).to(device).requires_grad_()
        self.grad = torch.randn(s.nodes, s.heads * s.width).to(device)
        self.edge_index = s.edge_index(device, seed)
        self.sorted = self.sort()

    def sort(self) -> regard.SortedEdges:
        """The edges, sorted."""
        loops = self.setting.score != "scaled_dot"
        return regard.SortedEdges.of(self.edge_index, self.setting.nodes, self_loops=loops)

    def output(self, name: str) -> Tensor:
        """The output of a candidate."""
        return self.layers[name](self.x, self.sorted if name == HELD else self.edge_index)

    def of(self, name: str, which: str) -> Callable[[], Sequence[Tensor]]:
        """The function that runs a pass."""

        def forward() -> Sequence[Tensor]:
            with torch.no_grad():
                return [self.output(name)]

        def both() -> Sequence[Tensor]:
            output = self.output(name)
            leaves = [self.x, *self.layers[name].parameters()]
            return output.detach(), *torch.autograd.grad(output, leaves, self.grad)

        return forward if which == FORWARD else both


def measure(
    setting: GraphSetting, device: torch.device, seed: int, quick: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The results of a setting, for JSON."""
    work = GraphWork(setting, device, seed)
    found = {name: {which: GraphPass() for which in PASSES} for name in NAMES}
    costs: dict[tuple[str, str], float] = {}
    for which in PASSES:
        truth: Sequence[Tensor] | None = None
        for name in NAMES:
            tell(f"checking {name}")
            result = found[name][which]
            result.reason = too_large(setting, device) if name == PEER else ""
            if not result.reason:
                truth = check(work, name, which, result, truth)
            if not result.reason:
                costs[name, which] = clock(work.of(name, which), 1, device)
    sorting = GraphPass()
    cost = clock(work.sort, 1, device)
    seconds, least = (QUICK_SECONDS, QUICK_LEAST) if quick else (SECONDS, LEAST)
    one = sum(2 * x for x in costs.values())
    rounds = min(max(int(seconds / max(one, 1e-6)), least), MOST)
    for at in range(rounds):
        tell(f"round {at + 1} of {rounds}")
        sorting.times.samples.append(clock(work.sort, calls_per_sample(cost), device))
        for which in PASSES:
            turn(work, which, found, costs)
    return {
        "setting": asdict(setting) | {"key": setting.key},
        "rounds": rounds,
        "sort_seconds": sorting.times.as_dict(),
        "engine": regard.explain(work.layers[HELD], work.x.detach(), work.sorted)[0].plan.engine,
        "candidates": {
            name: {which: p.as_dict(found[PEER][which]) for which, p in passes.items()}
            for name, passes in found.items()
        },
    }


def too_large(setting: GraphSetting, device: torch.device) -> str:
    """Why the peer would not fit into memory; empty if it does."""
    need = PEER_TENSORS * 4 * (setting.edges + setting.nodes) * setting.heads * setting.width
    free = memory.available(device)
    if need < memory.SHARE * free:
        return ""
    return f"about {memory.show(need)} for tensors of edges, with {memory.show(free)} free"


def check(
    work: GraphWork, name: str, which: str, result: GraphPass, truth: Sequence[Tensor] | None
) -> Sequence[Tensor] | None:
    """Record memory and the difference from the peer, whose results are returned."""
    try:
        run = work.of(name, which)
        # The output, and the gradient of the nodes: parameters have another order in each layer.
        own = [x.detach() for x in run()[:2]]
        if truth is not None:
            result.difference = max(
                distance(x, y.double()) for x, y in zip(own, truth, strict=True)
            )
            if not result.difference <= MOST_DIFFERENCE:
                result.reason = f"no time: it differs from the peer by {result.difference:.1e}"
        result.bytes = memory.peak(run, work.device)
        return own if name == PEER else truth
    except Exception as error:  # a peer may raise anything
        result.reason = "out of memory" if out_of_memory(error) else first_line(error)
        gc.collect()
        return truth


def turn(
    work: GraphWork,
    which: str,
    found: dict[str, dict[str, GraphPass]],
    costs: dict[tuple[str, str], float],
) -> None:
    """One round of one pass: each candidate twice, there and back."""
    samples: dict[str, list[float]] = {}
    for name in there_and_back([name for name in NAMES if (name, which) in costs]):
        calls = calls_per_sample(costs[name, which])
        samples.setdefault(name, []).append(clock(work.of(name, which), calls, work.device))
    for name, pair in samples.items():
        found[name][which].times.samples.append(float(f"{sum(pair) / 2:.6g}"))


def unavailable() -> str | None:
    """Why there is nothing to compare with; None if there is."""
    if importlib.util.find_spec("torch_geometric") is None:
        return "--suite graph needs PyTorch Geometric: pip install torch_geometric"
    return None


def table(result: dict[str, Any]) -> str:
    """The table of one setting, within 80 columns."""
    setting = {k: v for k, v in result["setting"].items() if k != "key"}
    sort = 1e3 * result["sort_seconds"]["median"]
    lines = [
        *textwrap.wrap(GraphSetting(**setting).title(), 80),
        f"sorting {number(sort)} ms; engine {result['engine']}; rounds: {result['rounds']}",
        f"{'':19}{'forward':^28} {'forward+backward':^28}".rstrip(),
        f"{'':19}" + " ".join([f"{'ms':>8}{'faster':>8}{'MiB':>8}    "] * 2).rstrip(),
    ]
    for name, passes in result["candidates"].items():
        cells = [cell(passes[which]) for which in PASSES]
        lines.append(f"{name:19}{' '.join(cells)}".rstrip())
        reasons = dict.fromkeys(p["reason"] for p in passes.values() if p["reason"])
        lines += [f"  {name}: {reason}" for reason in reasons]
    return "\n".join(lines)


def cell(p: dict[str, Any]) -> str:
    """Time, times as fast as the peer, and memory."""
    seconds, ratio = p["seconds"], p["speed_over_peer"]
    time = number(1e3 * seconds["median"]) if seconds else "-"
    faster = f"{ratio['median']:.2f}x" if ratio else "-"
    mib = f"{p['peak_bytes'] / 2**20:.0f}" if p["peak_bytes"] is not None else "-"
    return f"{time:>8}{faster:>8}{mib:>8}    "
