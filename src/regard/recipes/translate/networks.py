"""The networks: recurrent ones with Bahdanau, Luong or no attention, and a transformer, behind one interface.

Each has `read` and `teach` (for training: the source, then the logits of all target steps at once) and what a search
needs: `encode`, `step`, `bos`, `eos`, `pad`. They are made of `regard.nn`; what is here is how the parts are joined.

Shape legend: B batch, S source pieces, T target pieces, L keys, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import Score
from regard.nn.position import Sinusoidal
from regard.nn.seq2seq import (
    AttentionState,
    DecoderAttention,
    Encoded,
    EncoderDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from regard.nn.transformer import (
    Cache,
    Decoder,
    DecoderBlock,
    DecoderCache,
    Encoder,
    EncoderBlock,
)
from regard.recipes.estimator import check_score, own_score
from regard.recipes.translate.subwords import BOS, EOS, PAD
from regard.scores import Additive, Bilinear, LowRank, Projected, make_score


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network; `Translator` documents them."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    embedding: int
    encoder_width: int
    score_width: int
    dropout: float


class RecurrentTranslator(EncoderDecoder):
    """A recurrent encoder and decoder whose embeddings are shared where their widths allow it."""

    def share_embeddings(self) -> None:
        """Use one embedding for both languages, and its transpose for the output if that is as wide."""
        table = self.decoder.embedding
        # As an output layer, the standard normal start of nn.Embedding would give logits of variance `width`.
        nn.init.normal_(table.weight, std=0.1)
        self.encoder.embedding.weight = table.weight
        if self.decoder.output.weight.shape == table.weight.shape:
            self.decoder.output.weight = table.weight

    def read(self, source: Tensor, lengths: Tensor) -> Encoded:
        """The encoder's outputs: packing by lengths cannot be recorded as a CUDA graph, what follows can."""
        return self.encoder(source, lengths)

    def teach(self, read: Sequence[Tensor | None], inputs: Tensor) -> Tensor:
        """Logits (B, T, V) after each of the inputs (B, T), the start mark and the target but its last piece."""
        decoder, encoded = self.decoder, Encoded(*read)  # type: ignore[bad-argument-type] # as `read` returned it
        memory = decoder.attention.prepare(encoded.output, lengths=encoded.lengths)
        return decoder(inputs, memory, decoder.initial_state(encoded.summary, memory)).logits


class SummaryEncoder(RecurrentEncoder):
    """An encoder that gives away its summary only: the control without attention.

    The decoder finds one key, the summary, and so reads the same context at every step (Cho et al. 2014).
    """

    def forward(self, tokens: Tensor, lengths: Any = None) -> Encoded:
        """Encode tokens (B, S) to an output (B, 1, D), the summary."""
        summary = super().forward(tokens, lengths).summary
        return Encoded(summary.unsqueeze(1), summary, None)


class TransformerMemory(NamedTuple):
    """The encoded source, projected and lowered by each block of the decoder."""

    blocks: tuple[Cache, ...]

    def reorder(self, index: Tensor) -> TransformerMemory:
        """The memory of the sentences `index`."""
        return TransformerMemory(tuple(one.reorder(index) for one in self.blocks))


class TransformerState(NamedTuple):
    """The pieces decoded so far, and the last step's attention to the source."""

    own: tuple[Cache, ...]
    attention: AttentionState

    def reorder(self, index: Tensor) -> TransformerState:
        """The state of the sentences `index`, as beam search needs."""
        return TransformerState(
            tuple(one.reorder(index) for one in self.own), self.attention.reorder(index)
        )


class TransformerTranslator(nn.Module):
    """A pre-norm transformer encoder and decoder with any score and one embedding for all.

    Args:
        sizes: of all parts.
        score: how queries and keys compare, a name, a `Score` or None.

    Attributes:
        keep_weights: whether a search returns the attention to the source. Off, each step can use kernels that
            never build the weights.
    """

    bos, eos, pad = BOS, EOS, PAD

    def __init__(self, sizes: Sizes, score: Score | str | None) -> None:
        super().__init__()
        width, options = sizes.width, {"dropout": sizes.dropout, "bias": True}
        self.embedding = nn.Embedding(sizes.vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(sizes.dropout)
        # Positions are added here and not by the stacks, so that dropout sees the sum.
        self.position = Sinusoidal(width)
        self.encoder = Encoder(
            [
                EncoderBlock(width, sizes.heads, own_score(score), **options)
                for _ in range(sizes.layers)
            ]
        )
        self.decoder = Decoder(
            [
                DecoderBlock(width, sizes.heads, own_score(score), memory_dim=width, **options)
                for _ in range(sizes.layers)
            ]
        )
        self.keep_weights = False

    def embedded(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embeddings of unit variance with positions from `first` on."""
        x = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        return self.dropout(self.position(x, offset=first))

    def output(self, x: Tensor) -> Tensor:
        """Logits by the embedding's own vectors."""
        return F.linear(x, self.embedding.weight)

    def read(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The source as it is, and its lengths: all of the network can be recorded as a CUDA graph."""
        return source, lengths.to(source.device)

    def teach(self, read: Sequence[Tensor | None], inputs: Tensor) -> Tensor:
        """Logits (B, T, V) after each of the inputs (B, T), the start mark and the target but its last piece."""
        source, lengths = read
        assert source is not None and lengths is not None
        memory = self.encoder(self.embedded(source), lengths=lengths)
        return self.output(self.decoder(self.embedded(inputs), memory, memory_lengths=lengths))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None
    ) -> tuple[TransformerMemory, TransformerState]:
        """Encode a source (B, S), and project it for each block of the decoder."""
        encoded = self.encoder(self.embedded(source), lengths=lengths)
        cache = self.decoder.begin(encoded, lengths)
        zeros = encoded.new_zeros(
            source.shape[0], 1, source.shape[1] if self.keep_weights else 0, dtype=torch.float32
        )
        return TransformerMemory(cache.memory), TransformerState(
            cache.own, AttentionState(zeros, zeros)
        )

    def step(
        self, token: Tensor, memory: TransformerMemory, state: TransformerState
    ) -> tuple[Tensor, Tensor, TransformerState]:
        """Logits (B, V) after one more piece (B,), the attention to the source (B, 1, S) and the next state.

        The attention is the mean over the heads and blocks; (B, 1, 0) unless `keep_weights`.
        """
        x = self.embedded(token.unsqueeze(1), state.own[0].length)
        want = ("weights",) if self.keep_weights else ()
        found = self.decoder.attend(x, cache=DecoderCache(state.own, memory.blocks), want=want)
        attention = state.attention
        if self.keep_weights:
            seen = [one.memory.weights for one in found.blocks if one.memory is not None]
            weights = torch.stack([one.float() for one in seen if one is not None]).mean((0, 2))
            attention = AttentionState(weights, attention.total + weights)
        logits = self.output(found.output).squeeze(1)
        return logits, attention.weights, TransformerState(found.cache.own, attention)


def recurrent_score(score: Score | str | None, sizes: Sizes, default: str) -> Score:
    """The score of decoder states against encoder outputs, which may differ in width.

    A name is built with projections to `score_width` for each head, except bilinear, whose matrix joins the widths
    as they are.
    """
    if isinstance(score, Score):
        made = own_score(score)
        assert isinstance(made, Score)
        return made
    name = default if score is None else score
    check_score(name)
    query, key, heads = sizes.width, sizes.encoder_width, sizes.heads
    if name == Bilinear.name:
        return Bilinear(query, key, heads)
    if name == LowRank.name:
        return LowRank(query, key, max(sizes.score_width // 4, 1), heads)
    if name == Additive.name:
        return Projected(Additive(sizes.score_width, heads), query, key)
    made = make_score(name, sizes.score_width, heads)
    return Projected(made, query, key, width=sizes.score_width, heads=heads)


def recurrent(architecture: str, sizes: Sizes, score: Score | str | None) -> RecurrentTranslator:
    """A recurrent network: "bahdanau", "luong", or "none" for the control without attention."""
    kind = SummaryEncoder if architecture == "none" else RecurrentEncoder
    encoder = kind(
        sizes.vocabulary,
        sizes.embedding,
        sizes.encoder_width // 2,
        layers=sizes.layers,
        dropout=sizes.dropout,
    )
    if architecture == "none":
        # Of a single key the weight is 1 whatever the score, so the smallest one will do.
        made: Score = Projected(Additive(1, 1), sizes.width, sizes.encoder_width)
    else:
        made = recurrent_score(score, sizes, "bilinear" if architecture == "luong" else "additive")
    decoder = RecurrentDecoder(
        sizes.vocabulary,
        sizes.embedding,
        sizes.width,
        DecoderAttention(made),
        sizes.encoder_width,
        attend="after" if architecture == "luong" else "before",
        feed=architecture == "luong",
        dropout=sizes.dropout,
    )
    model = RecurrentTranslator(encoder, decoder, bos=BOS, eos=EOS, pad=PAD)
    model.share_embeddings()
    return model


def network(
    architecture: str, sizes: Sizes, score: Score | str | None
) -> RecurrentTranslator | TransformerTranslator:
    """The network of that architecture."""
    if architecture == "transformer":
        return TransformerTranslator(sizes, score)
    return recurrent(architecture, sizes, score)
