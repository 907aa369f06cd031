"""Healthy models as they are before training: every architecture there is a module for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

from .logits import Words
from .models import DIM, HEADS, LENGTH, WORDS, Attention, Eager, Model, attentions
from .patient import Patient, vectors


class Causal(Words):
    """A small language model through SDPA."""

    def build(self) -> nn.Module:
        return Model(*attentions(3, causal=True))


class WrittenOut(Words):
    """The same with attention written out."""

    def build(self) -> nn.Module:
        return Model(*(Eager(causal=True) for _ in range(2)))


class Vectors(Patient):
    """Given normal vectors."""

    def batch(self, step: int) -> tuple:
        return (vectors(step, 4, LENGTH, DIM),)


class TorchEncoder(Patient):
    """torch's own encoder, in training, with padding."""

    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 128, 0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def batch(self, step: int) -> dict:
        padding = torch.arange(LENGTH) >= torch.tensor([LENGTH, 20, 9, 3])[:, None]
        return {"src": vectors(step, 4, LENGTH, DIM), "src_key_padding_mask": padding}


class TorchDecoder(Patient):
    """torch's own decoder with a causal mask, over a memory of another length."""

    def build(self) -> nn.Module:
        return nn.TransformerDecoder(
            nn.TransformerDecoderLayer(DIM, HEADS, 128, 0.0, batch_first=True), 2
        )

    def batch(self, step: int) -> dict:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x, memory = vectors(step, 4, LENGTH, DIM), vectors(step + 50, 4, 12, DIM)
        return {"tgt": x, "memory": memory, "tgt_mask": mask}


class Blocks(Words):
    """regard's encoder over words; subclasses say with which score and positions."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS)

    def build(self) -> nn.Module:
        blocks = [self.block() for _ in range(2)]
        return nn.Sequential(
            nn.Embedding(WORDS, DIM), regard.nn.Encoder(blocks), nn.Linear(DIM, WORDS)
        )


class Rotary(Blocks):
    """Rotary positions."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS, position=regard.nn.Rotary(DIM // HEADS))


class Alibi(Blocks):
    """ALiBi: steep slopes that outweigh the content of a fresh model."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS, position=regard.nn.Alibi(HEADS))


class Additive(Blocks):
    """Additive scores."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS, "additive")


class CosineScore(Blocks):
    """Cosine scores with a learned temperature."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS, "cosine")


class Graph(Blocks):
    """GATv2 scores."""

    def block(self) -> nn.Module:
        return regard.nn.EncoderBlock(DIM, HEADS, "gatv2")


class Positions(Blocks):
    """Sinusoids of the usual size, by regard's module."""

    def build(self) -> nn.Module:
        model = super().build()
        model[1].position = regard.nn.Sinusoidal(DIM)
        return model


class HotCosine(Vectors):
    """Cosine attention at the lowest temperature that Swin V2 allows, 1/100: sharp, and meant so."""

    def build(self) -> nn.Module:
        return nn.Sequential(AtTemperature(), AtTemperature())


class AtTemperature(Attention):
    """Vectors of length 1."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=100.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Latents(Vectors):
    """Learned queries as in DETR: among themselves they are the same in every sequence."""

    def build(self) -> nn.Module:
        return Detector()


class Detector(nn.Module):
    """Self-attention of learned queries, then cross-attention to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(10, DIM))
        self.own, self.cross = (
            nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q = self.queries.expand(len(x), -1, -1)
        q = q + self.own(q, q, q, need_weights=False)[0]
        return q + self.cross(q, x, x, need_weights=False)[0]


class Repeated(Words):
    """All sequences of the batch are the same, as in many a first try."""

    def build(self) -> nn.Module:
        return Model(*attentions(2, causal=True))

    def batch(self, step: int) -> tuple:
        return (super().batch(step)[0][:1].expand(4, -1),)


class RepeatedWithDropout(Repeated):
    """The same in training: dropout alone makes a difference, from the second layer on."""

    def build(self) -> nn.Module:
        model = super().build()
        for block in model.blocks:
            block.network.append(nn.Dropout(0.1))
        return model


class OneWord(Words):
    """One word all over, as in `torch.ones` for a first try, without positions."""

    def build(self) -> nn.Module:
        return Model(*attentions(2, causal=True), position=0.0)

    def batch(self, step: int) -> tuple:
        return (torch.ones_like(super().batch(step)[0]),)


class ZeroValues(Words):
    """Projections of values that start at zero: in the first step nothing reaches query and key."""

    steps, rate = 3, 1e-3

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        for block in model.blocks:
            nn.init.zeros_(block.attention.v.weight)
            nn.init.zeros_(block.attention.v.bias)
        return model


class Pooling(Vectors):
    """One learned query over the tokens."""

    def build(self) -> nn.Module:
        return Pooled()


class Pooled(nn.Module):
    """A query, and keys that are the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, DIM))
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.query.expand(len(x), -1, -1), x, x)[0]


class NoOpSink(Words):
    """Heads that look at the first token, whose value is next to nothing, as in trained models."""

    def build(self) -> nn.Module:
        return Model(*(Sinking(causal=True) for _ in range(2)))


class Sinking(Attention):
    """The first key has a logit of its own and no value."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        common = torch.zeros_like(q)
        common[..., 0] = 4.0
        first = (torch.arange(x.shape[1]) == 0)[:, None]
        return q + common, torch.where(first, 2 * common, k), torch.where(first, 0.05 * v, v)


class Frozen(Words):
    """Queries and keys frozen on purpose, while the values learn."""

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        for block in model.blocks:
            for side in (block.attention.q, block.attention.k):
                side.requires_grad_(False)
            block.before.requires_grad_(False)
        model.words.requires_grad_(False)
        return model


class FrozenBase(Words):
    """A frozen base under one layer that learns: the first layer gets no gradient at all, on purpose."""

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        model.blocks[0].requires_grad_(False)
        model.words.requires_grad_(False)
        return model


class ZeroStart(Words):
    """Output layers that start at zero and are trained, as adapters and gates do: dead for one step."""

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        for x in model.blocks[1].attention.o.parameters():
            nn.init.zeros_(x)
        return model


class LearnedPlaces(Words):
    """Learned positions that start small, under embeddings of unit variance: they have yet to grow."""

    def build(self) -> nn.Module:
        model = Model(*attentions(2, causal=True))
        small = 0.02 * torch.randn(model.positions.shape)
        del model.positions
        model.positions = nn.Parameter(small)
        return model


class NoScale(Words):
    """As T5: no scale, and heads that have learned logits of variances from 2 to 120 at d = 64."""

    def build(self) -> nn.Module:
        model = Model(Attention(256, scale=1.0), dim=256)
        layer = model.blocks[0].attention
        with torch.no_grad():
            for head, size in enumerate((0.4, 0.8, 1.1, 1.15)):
                for side in (layer.q, layer.k):
                    part = side.weight[64 * head : 64 * (head + 1)]
                    part.normal_(std=size * 256**-0.5)
        return model


class Single(Words):
    """One sequence alone, and short."""

    def build(self) -> nn.Module:
        return Model(*attentions(2, causal=True))

    def batch(self, step: int) -> tuple:
        return (super().batch(step)[0][:1, :3],)
