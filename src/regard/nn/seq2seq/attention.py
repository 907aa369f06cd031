"""Attention for recurrent decoders: one query at a time over a memory that is prepared once.

Shape legend: B batch, H heads, T queries (decoder steps), L keys, V value width, E hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import (
    Counts,
    check_counts,
    check_probability,
)
from regard.attention import attend
from regard.describe import describe
from regard.engines import step_plan
from regard.forms import KeySide, key_tensor
from regard.mask import Mask
from regard.nn.padding import real_tokens, zero_padding
from regard.nn.seq2seq.checks import (
    check_attention_state,
    check_keys,
    check_memory,
    check_query,
    check_values,
    check_visible,
    check_window,
)
from regard.nn.seq2seq.location import (
    CoverageTerm,
    Location,
    LocationTerm,
    add_to_keys,
    in_window,
    term_width,
)
from regard.nn.seq2seq.memory import (
    AttentionResult,
    AttentionState,
    Memory,
    hidden_by,
    next_state,
    zero_hidden,
)
from regard.nn.seq2seq.ready import made_ready, ready_step
from regard.nn.seq2seq.scores import luong_score, score_object
from regard.nn.seq2seq.step import attend_once, short_way
from regard.precision import working_dtype
from regard.scores import (
    Additive,
    Projected,
    Score,
)
from regard.scores.base import is_as_written


class DecoderAttention(nn.Module):
    """Softmax attention with any score, step by step.

    Args:
        score: how queries and keys compare: a `Score`, or a name such as "dot" or "additive" for
            queries and keys without projections; None is scaled dot.
        width: width of queries and keys, for a name whose score has parameters of that size.
        location: settings of a location term, or None.
        coverage: add a learned term of the total weight each key has received so far.
        window: (back, ahead): at each step only keys from `back` before the last peak to `ahead`
            after it are visible, for each head around its own peak. Used in eval mode only; may be
            set later, `attention.window = (1, 3)`, for a model that was trained without.
        dropout: probability of dropping a weight, in training mode.
        engine: the engine to run, None to let `regard.attention` pick; a small step of one query
            is then computed in PyTorch's own operations, on any device, as "plain" does.

    Each head reads the whole value; the contexts of the heads are concatenated, heads * value width.
    Hidden keys have weight exactly 0, and a sequence without a visible key has context 0.
    """

    def __init__(
        self,
        score: Score | str | None,
        *,
        width: int | None = None,
        location: Location | None = None,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        super().__init__()
        score = score_object(score, width)
        check_probability(dropout=dropout)
        if location is not None and not isinstance(location, Location):
            raise TypeError(f"location must be Location(...) or None, got {describe(location)}")
        self.score, self.window, self.dropout, self.engine = score, window, dropout, engine
        self.heads = score.heads or 1
        terms: list[nn.Module] = []
        if location is not None:
            terms.append(LocationTerm(location, self.heads, term_width(score)))
        if coverage:
            terms.append(CoverageTerm(self.heads, term_width(score)))
        self.terms = nn.ModuleList(terms)

    @property
    def window(self) -> tuple[int, int] | None:
        """(back, ahead) around the last peak, in eval mode; may be set at any time."""
        return self._window

    @window.setter
    def window(self, window: tuple[int, int] | None) -> None:
        check_window(window)
        self._window = window

    @property
    def sequential(self) -> bool:
        """Whether a step needs the weights of the step before."""
        return len(self.terms) > 0 or (self.window is not None and not self.training)

    def prepare(
        self,
        keys: Tensor,
        *,
        lengths: Counts | None = None,
        visible: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Memory:
        """Project and lower the keys, once for all steps.

        Args:
            keys: (B, L, key dim).
            lengths: (B,), number of real keys of each sequence, 0 or more; the rest is padding.
            visible: (B, L) booleans, True = attend, the same for every query. With `lengths`, both
                must allow a key.
            values: (B, L, V); the keys themselves if None.
        """
        check_keys(keys, self.score, type(self).__name__)
        if values is not None:
            check_values(values, keys)
        stop = None if lengths is None else check_counts(lengths, "lengths", keys)
        real = real_tokens(keys.shape[1], stop=stop, device=keys.device)
        if visible is not None:
            check_visible(visible, keys)
            # A copy: zeros and `hidden` below are made from it, and the caller may change theirs.
            real = visible.clone() if real is None else real & visible
        # Before the projection: NaN in padding would otherwise reach the gradient of its weights.
        keys = zero_padding(keys, real)
        values = keys if values is None else zero_padding(values, real)
        if values.device.type in step_plan.STEPS_ON:
            # Once for all steps: their kernels read rows that are next to each other.
            values = values.contiguous()
        side = zero_hidden(self.score.key(keys.unsqueeze(1)), real)
        memory = Memory(side, values.unsqueeze(1), real, zeroed=real, hidden=hidden_by(real))
        return made_ready(memory, self.score)

    def initial_state(self, memory: Memory) -> AttentionState:
        """The state before the first step: nothing was attended to."""
        check_memory(memory)
        key = key_tensor(memory.side)
        zeros = torch.zeros(
            (key.shape[0], self.heads, key.shape[2]),
            dtype=working_dtype(key.dtype),
            device=key.device,
        )
        return AttentionState(zeros, zeros)

    def forward(
        self, query: Tensor, memory: Memory, state: AttentionState | None = None
    ) -> AttentionResult:
        """Attend with one query (B, d), or with several (B, T, d) one after the other.

        `state` is what the previous call returned; None starts a new sequence.
        """
        check_memory(memory)
        # First: under torch.compile each attribute read below would become a guard.
        compiles = torch.compiler.is_compiling()
        if not compiles and memory.ready is not None and not self.changes_step():
            result = ready_step(self._modules, self.engine, query, memory, state)
            if result is not None:
                return result
        key = key_tensor(memory.side)
        check_query(query, key.shape[0], self.score, type(self).__name__)
        if state is None:
            state = self.initial_state(memory)
        else:
            check_attention_state(state, (key.shape[0], self.heads, key.shape[2]))
        if query.ndim == 2 and (result := self.short_step(query, memory, state)) is not None:
            return result
        steps = query.unsqueeze(1) if query.ndim == 3 else query[:, None, None]  # (B, 1, T, d)
        found = []
        for step in steps.split(1, 2) if self.sequential else (steps,):
            context, weights = self.look(step, memory, state)
            state = next_state(state, weights)
            found.append((context, weights))
        contexts = [each[0] for each in found]
        context = contexts[0] if len(contexts) == 1 else torch.cat(contexts, 2)
        context = context.transpose(1, 2).flatten(2)
        # cat copies: the state refers to the weights of the last step, and the caller may change these.
        weights = torch.cat([each[1] for each in found], 2)
        if query.ndim == 2:
            context, weights = context.squeeze(1), weights.squeeze(2)
        return AttentionResult(context, weights, state)

    def short_step(
        self, query: Tensor, memory: Memory, state: AttentionState
    ) -> AttentionResult | None:
        """The result of one query (B, d) in few operations, or None if it has to go through `look`.

        Only for a step that hides what `prepare` hid and drops no weights; `short_way` has the
        other conditions.
        """
        score = self.score
        way = short_way(query, memory, score, self.engine)
        if way is None or self.changes_step():
            return None
        return attend_once(way, query, self.keys_now(memory, state), memory, state, score)

    def changes_step(self) -> bool:
        """Whether dropout, a window, a subclass or a patch changes what a step computes."""
        if (self.dropout and self.training) or (self.window is not None and not self.training):
            return True
        return not is_as_written(self, LOOKING)

    def look(self, query: Tensor, memory: Memory, state: AttentionState) -> tuple[Tensor, Tensor]:
        """Context (B, H, T, V) and weights (B, H, T, L) of queries (B, 1, T, d) that share a state."""
        result = attend(
            query,
            self.keys_now(memory, state),
            memory.value,
            self.score,
            want=("weights",),
            mask=self.mask_now(memory, state),
            dropout=self.dropout if self.training else 0.0,
            engine=self.engine,
        )
        assert result.weights is not None
        return result.output, result.weights

    def keys_now(self, memory: Memory, state: AttentionState) -> KeySide:
        """The lowered keys with this step's terms."""
        side = memory.side
        for term in self.terms:
            side = add_to_keys(side, term(state))
        return side

    def mask_now(self, memory: Memory, state: AttentionState) -> Mask | None:
        """`visible_now` as a `Mask`, marked `over_finite` if `prepare` zeroed what it hides.

        Engines then need not zero keys and values again at every step.
        """
        visible = self.visible_now(memory, state)
        if visible is None:
            return None
        mask, windowed = Mask.dense(visible), self.window is not None and not self.training
        is_zeroed = memory.zeroed is memory.visible and not windowed
        return mask.over_finite() if is_zeroed else mask

    def visible_now(self, memory: Memory, state: AttentionState) -> Tensor | None:
        """(B, H or 1, 1, L), True = attend, or None where all keys are visible."""
        if self.window is not None and not self.training:
            return in_window(memory, state, self.window).unsqueeze(2)
        return None if memory.visible is None else memory.visible[:, None, None]


# The methods as written here: `short_step` repeats what they compute, so it is skipped if a subclass or
# a patch replaces one.
LOOKING = {name: getattr(DecoderAttention, name) for name in ("look", "mask_now", "visible_now")}


class BahdanauAttention(DecoderAttention):
    """Additive attention: `s(q, k) = v' tanh(W_q q + W_k k + bias)` (Bahdanau et al. 2015).

    ```python
    attention = BahdanauAttention(query_dim=256, key_dim=512, hidden=128)
    memory = attention.prepare(encoder_output, lengths=lengths)  # keys are projected here, once
    state = attention.initial_state(memory)  # or None
    for word in words:  # each step asks with the decoder's last state
        context, weights, state = attention(hidden, memory, state)
        hidden = cell(torch.cat([word, context], -1), hidden)
    ```

    Args:
        query_dim: width of the decoder state.
        key_dim: width of the encoder output.
        hidden: hidden units for each head.
        heads: heads, each with its own projections and v.
        bias: learn a bias inside tanh.
        weight_norm: write v as `gain * v / |v|`.
        location, coverage, window, dropout, engine: see `DecoderAttention`.

    Projections start normal with variance 1 / dim and v such that scores have variance 1 for
    unit-variance inputs, at every width.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden: int,
        heads: int = 1,
        *,
        bias: bool = False,
        weight_norm: bool = False,
        location: Location | None = None,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        additive = Additive(hidden, heads, bias=bias, weight_norm=weight_norm)
        super().__init__(
            Projected(additive, query_dim, key_dim),
            location=location,
            coverage=coverage,
            window=window,
            dropout=dropout,
            engine=engine,
        )


class LuongAttention(DecoderAttention):
    """The three scores of Luong et al. (2015).

    - `"dot"`: `q' k`, which needs query_dim == key_dim. Its variance is that width at the start;
      `scaled=True` divides by the square root of it.
    - `"general"`: `q' W k`.
    - `"concat"`: `v' tanh(W [q; k])`, the same as Bahdanau's with W = [W_q, W_k].

    Args:
        query_dim: width of the decoder state.
        key_dim: width of the encoder output.
        mode: "dot", "general" or "concat".
        heads: heads of "general" and "concat".
        scaled: divide by sqrt(query_dim), for "dot" alone: the others start with scores of variance 1.
        hidden: hidden units of "concat"; query_dim if None.
        location, coverage, window, dropout, engine: see `DecoderAttention`.

    Luong's attentional vector `tanh(W_c [c; h])` is `AttentionalVector`.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        mode: str = "general",
        heads: int = 1,
        *,
        scaled: bool = False,
        hidden: int | None = None,
        location: Location | None = None,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        super().__init__(
            luong_score(query_dim, key_dim, mode, heads, scaled, hidden),
            location=location,
            coverage=coverage,
            window=window,
            dropout=dropout,
            engine=engine,
        )
        self.mode = mode
