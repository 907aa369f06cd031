"""The two recurrent networks: an encoder over the source, a decoder that attends to it.

Shape legend: B batch, L source length, T target length, N layers, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.arguments import (
    Counts,
    check_counts,
    check_one_of,
    check_probability,
    check_sizes,
)
from regard.describe import describe
from regard.nn.linear import Linear
from regard.nn.seq2seq.attention import DecoderAttention
from regard.nn.seq2seq.checks import check_decoder_state, check_token_ids
from regard.nn.seq2seq.memory import Decoded, DecoderState, Encoded, Memory


class RecurrentEncoder(nn.Module):
    """Recurrent encoder: a GRU or LSTM over embedded tokens, in both directions by default.

    Args:
        vocabulary: how many tokens there are.
        embedding: width of the embedding.
        hidden: width of the states of each direction.
        layers: how many.
        kind: "gru" or "lstm".
        bidirectional: read the source backwards as well; doubles the output width.
        dropout: on the embedding and between layers, in training mode.

    Padding is not read: sequences are packed by their lengths, so that the result does not depend
    on how far they are padded. A sequence of length 0 has output and summary 0.

    Parameters start as torch's own layers do.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        *,
        layers: int = 1,
        kind: str = "gru",
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
        check_one_of("kind", kind, ("gru", "lstm"))
        check_probability(dropout=dropout)
        self.output_dim = hidden * (2 if bidirectional else 1)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        network = nn.GRU if kind == "gru" else nn.LSTM
        self.network = network(
            embedding,
            hidden,
            layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
        )

    def forward(self, tokens: Tensor, lengths: Counts | None = None) -> Encoded:
        """Encode tokens (B, L), of which the first `lengths` (B,) are real; None for all."""
        check_token_ids(tokens, "source")
        given = lengths
        lengths = None if lengths is None else check_counts(lengths, "lengths", tokens)
        batch, longest = tokens.shape
        embedded = self.dropout(self.embedding(tokens))
        if batch == 0 or longest == 0:  # torch's own layers refuse both
            return Encoded(
                embedded.new_zeros(batch, longest, self.output_dim),
                embedded.new_zeros(batch, self.output_dim),
                lengths,
            )
        if lengths is None:
            output, last = self.network(embedded)
            return Encoded(output, self._summary(last), None)
        # Torch packs by lengths on the CPU: those that were given there are not read back, which would wait for
        # the device.
        counts = given if isinstance(given, Tensor) and given.device.type == "cpu" else lengths
        packed = pack_padded_sequence(
            embedded,
            counts.clamp(min=1).to("cpu", torch.int64),
            batch_first=True,
            enforce_sorted=False,
        )
        output, last = self.network(packed)
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=longest)
        some = (lengths > 0).unsqueeze(-1)  # empty sequences were packed as one token
        return Encoded(
            torch.where(some.unsqueeze(-1), output, 0),
            torch.where(some, self._summary(last), 0),
            lengths,
        )

    def _summary(self, last: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """(B, D) of the top layer's last states, one (N * directions, B, hidden)."""
        states = last[0] if isinstance(last, tuple) else last
        directions = 2 if self.network.bidirectional else 1
        return states[-directions:].transpose(0, 1).flatten(1)


class AttentionalVector(nn.Module):
    """Luong's attentional vector `tanh(W_c [c; h])`, from which the next word is predicted.

    Weights start normal with variance 1 / (context_dim + query_dim), and do so again by
    `reset_parameters`.
    """

    def __init__(self, context_dim: int, query_dim: int, width: int) -> None:
        super().__init__()
        check_sizes(context_dim=context_dim, query_dim=query_dim, width=width)
        self.linear = Linear(context_dim + query_dim, width, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.linear.reset_parameters()

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """(..., width) from (..., context_dim) and (..., query_dim)."""
        return torch.tanh(self.linear(torch.cat([context, query], -1)))


class RecurrentDecoder(nn.Module):
    """Recurrent decoder: a GRU or LSTM that attends to a memory at each step.

    Two orders are in use:

    - attend="before" (Bahdanau): the last state `s` asks, `c = attention(s)`, then
      `s = cell([word; c], s)`.
    - attend="after" (Luong): `s = cell([word; fed], s)` and then `c = attention(s)`, where `fed` is
      the attentional vector of the step before (input feeding), if `feed`.

    The next word is predicted from `tanh(W_c [c; s])`. The first state is `tanh(W summary)`.

    Args:
        vocabulary: how many tokens there are.
        embedding: width of the embedding.
        hidden: width of the states; the attention's queries.
        attention: any `DecoderAttention`.
        memory_dim: width of the memory's values.
        summary_dim: width of the encoder's summary; memory_dim if None.
        layers: number of stacked cells; the state of the top one is the query.
        kind: "gru" or "lstm".
        attend: "before" or "after".
        feed: input feeding, for "after" only. Without it all target steps attend at once.
        dropout: on the embedding, between layers and before the logits, in training mode.

    Parameters start as torch's own layers do; those of the attention as it documents.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        attention: DecoderAttention,
        memory_dim: int,
        *,
        summary_dim: int | None = None,
        layers: int = 1,
        kind: str = "gru",
        attend: str = "before",
        feed: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
        check_sizes(memory_dim=memory_dim, summary_dim=summary_dim)
        check_one_of("kind", kind, ("gru", "lstm"))
        check_one_of("attend", attend, ("before", "after"))
        check_probability(dropout=dropout)
        if not isinstance(attention, DecoderAttention):
            raise TypeError(
                f"attention must be a DecoderAttention such as BahdanauAttention, got "
                f"{describe(attention)}"
            )
        if feed and attend == "before":
            raise ValueError("feed=True is for attend='after': 'before' feeds the context already")
        context = attention.heads * memory_dim
        more = context if attend == "before" else hidden if feed else 0
        self.vocabulary, self.hidden, self.layers = vocabulary, hidden, layers
        self.kind, self.attend, self.feed = kind, attend, feed
        self.memory_dim = memory_dim
        self.summary_dim = memory_dim if summary_dim is None else summary_dim
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.attention = attention
        cell = nn.GRUCell if kind == "gru" else nn.LSTMCell
        widths = [embedding + more] + [hidden] * (layers - 1)
        self.cells = nn.ModuleList([cell(width, hidden) for width in widths])
        self.bridge = nn.Linear(self.summary_dim, layers * hidden)
        self.vector = AttentionalVector(context, hidden, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, summary: Tensor, memory: Memory) -> DecoderState:
        """The state before the first step, from the encoder's summary (B, summary_dim)."""
        hidden = torch.tanh(self.bridge(summary)).unflatten(-1, (self.layers, self.hidden))
        cell = torch.zeros_like(hidden) if self.kind == "lstm" else None
        fed = torch.zeros_like(hidden[:, 0]) if self.feed else None
        return DecoderState(hidden, cell, fed, self.attention.initial_state(memory))

    def step(self, token: Tensor, memory: Memory, state: DecoderState) -> Decoded:
        """One step with the last token (B,)."""
        logits, weights, state = self(token.unsqueeze(-1), memory, state)
        return Decoded(logits.squeeze(1), weights.squeeze(2), state)

    def forward(self, tokens: Tensor, memory: Memory, state: DecoderState) -> Decoded:
        """All steps with the tokens given (B, T); teacher forcing if they are those of the target."""
        check_token_ids(tokens, "tokens")
        if tokens.shape[1] == 0:
            raise ValueError(f"tokens must have one step at least, got shape {tuple(tokens.shape)}")
        shape = (tokens.shape[0], self.layers, self.hidden)
        check_decoder_state(state, shape, self.kind == "lstm", self.feed)
        words = self.dropout(self.embedding(tokens))
        if self.attend == "after" and not self.feed:
            return self._attend_at_once(words, memory, state)
        vectors, weights = [], []
        for word in words.unbind(1):
            vector, weight, state = self._step(word, memory, state)
            vectors.append(vector)
            weights.append(weight)
        logits = self.output(self.dropout(torch.stack(vectors, 1)))
        return Decoded(logits, torch.stack(weights, 2), state)

    def _step(
        self, word: Tensor, memory: Memory, state: DecoderState
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """The attentional vector (B, D), the weights (B, heads, L) and the next state."""
        if self.attend == "before":
            query = state.hidden[:, -1]
            context, weights, attention = self.attention(query, memory, state.attention)
            hidden, cell = self._cells(torch.cat([word, context], -1), state.hidden, state.cell)
        else:
            assert state.fed is not None
            fed = torch.cat([word, state.fed], -1)
            hidden, cell = self._cells(fed, state.hidden, state.cell)
            context, weights, attention = self.attention(hidden[:, -1], memory, state.attention)
        vector = self.vector(context, hidden[:, -1])
        state = DecoderState(hidden, cell, vector if self.feed else None, attention)
        return vector, weights, state

    def _attend_at_once(self, words: Tensor, memory: Memory, state: DecoderState) -> Decoded:
        """All steps with one call of the attention: without feedback the states do not depend on it."""
        hidden, cell = state.hidden, state.cell
        tops = []
        for word in words.unbind(1):
            hidden, cell = self._cells(word, hidden, cell)
            tops.append(hidden[:, -1])
        top = torch.stack(tops, 1)
        context, weights, attention = self.attention(top, memory, state.attention)
        logits = self.output(self.dropout(self.vector(context, top)))
        return Decoded(logits, weights, DecoderState(hidden, cell, None, attention))

    def _cells(
        self, x: Tensor, hidden: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the stack of cells on x (B, width)."""
        states, memories = [], []
        for n, network in enumerate(self.cells):
            if n > 0:
                x = self.dropout(x)
            if cell is None:
                x = network(x, hidden[:, n])
            else:
                x, c = network(x, (hidden[:, n], cell[:, n]))
                memories.append(c)
            states.append(x)
        return torch.stack(states, 1), None if cell is None else torch.stack(memories, 1)
