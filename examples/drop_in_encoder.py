"""Other scores inside torch's own encoder: look up the value that belongs to a key.

Each sequence begins with a key alone, the question; up to 8 pairs of a key and a value follow,
padded. The model predicts the value that is paired with that key. `nn.TransformerEncoder` is built
as usual, and `replace_attention` puts the score in. Takes about 10 seconds on one core.
"""

import torch
from torch import nn

from regard.nn import replace_attention

KEYS, VALUES, PAIRS, DIM, HEADS = 16, 8, 8, 32, 4


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values (size, PAIRS + 1), the padding mask, and the answers."""
    keys = torch.rand(size, KEYS).argsort(-1)[:, :PAIRS]
    values = torch.randint(VALUES, (size, PAIRS))
    lengths = torch.randint(2, PAIRS + 1, (size, 1))
    asked = (torch.rand(size, 1) * lengths).long()
    keys, answer = torch.cat([keys.gather(1, asked), keys], 1), values.gather(1, asked).squeeze(1)
    values = torch.cat([torch.full((size, 1), VALUES), values], 1)
    return keys, values, torch.arange(PAIRS + 1) > lengths, answer


class LookUp(nn.Module):
    """Embeddings, torch's encoder, and a linear layer on the question."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(KEYS, DIM), nn.Embedding(VALUES + 1, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(DIM, VALUES)

    def forward(self, keys: torch.Tensor, values: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        """Logits (batch, VALUES)."""
        x = self.encoder(self.key(keys) + self.value(values), src_key_padding_mask=pad)
        return self.answer(x[:, 0])


for name in ("additive", "cosine"):
    torch.manual_seed(0)
    model = LookUp()
    replace_attention(model, name)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(1, 251):
        *given, answer = batch(64)
        loss = nn.functional.cross_entropy(model(*given), answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{name}, step {step}: loss {loss.item():.3f}")
    *given, answer = batch(1000)
    with torch.no_grad():
        right = (model.eval()(*given).argmax(-1) == answer).float().mean().item()
    print(f"{name}: {right:.1%} of 1000 questions answered")
    assert right >= 0.99, right
