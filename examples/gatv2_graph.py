"""Look up in a dictionary: what GATv2 can do and GAT cannot (Brody, Alon and Yahav, 2022).

Each graph is bipartite and complete: SIZE sources, each a (key, value), to SIZE targets, each a key
to look up. A target must answer with the value of the source that has its key. Under GAT every
target ranks the sources in the same order, so a head serves at most one key. GATv2 ranks them for
each target. Takes about 7 seconds on one core.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from regard.nn import GraphAttention

SIZE, HEADS, GRAPHS = 10, 2, 32


class LookUp(nn.Module):
    """Embeddings, one layer of graph attention, a classifier."""

    def __init__(self, score: str, width: int = 64) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(SIZE, width), nn.Embedding(SIZE, width)
        self.attention = GraphAttention((width, width), width, HEADS, score, self_loops=False)
        self.answer = nn.Linear(HEADS * width, SIZE)

    def forward(self, values: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Logits (graphs * SIZE, SIZE) for the values (graphs, SIZE) that each key has."""
        keys = self.key(torch.arange(SIZE).repeat(len(values)))
        sources = keys + self.value(values.flatten())
        return self.answer(self.attention((sources, keys), edges).relu())


def draw_values() -> torch.Tensor:
    """A dictionary for each graph: its values in a random order."""
    return torch.rand(GRAPHS, SIZE).argsort(-1)


def accuracy_reached(score: str) -> float:
    """Train, then answer for dictionaries not seen before."""
    torch.manual_seed(0)
    pairs = torch.cartesian_prod(torch.arange(SIZE), torch.arange(SIZE)).T
    edges = torch.cat([pairs + SIZE * graph for graph in range(GRAPHS)], -1)
    model = LookUp(score)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, 301):
        values = draw_values()
        optimizer.zero_grad()
        (loss := cross_entropy(model(values, edges), values.flatten())).backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{score}, step {step}: loss {loss.item():.3f}")
    values = draw_values()
    return float((model(values, edges).argmax(-1) == values.flatten()).float().mean())


if __name__ == "__main__":
    gat, gatv2 = accuracy_reached("gat"), accuracy_reached("gatv2")
    print(f"look-up of {SIZE} keys: GAT {gat:.0%}, GATv2 {gatv2:.0%}")
    assert gatv2 == 1.0 and gat < 0.5
