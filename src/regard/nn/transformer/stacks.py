"""Stacks of blocks: an encoder, and a decoder that generates with a cache.

Shape legend: B batch, L tokens, M tokens of the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from regard.arguments import Counts, as_counts
from regard.describe import describe
from regard.mask import Mask
from regard.nn.position import LearnedPosition, Sinusoidal
from regard.nn.transformer.blocks import Block, BlockOutput, DecoderBlock, EncoderBlock
from regard.nn.transformer.cache import EMPTY, Cache, Checked, DecoderCache, begin
from regard.nn.transformer.heads import check_tokens
from regard.nn.transformer.quick import next_token
from regard.norms import normalize
from regard.scores.base import is_as_written


class EncoderOutput(NamedTuple):
    """The result of `Encoder.attend`: (B, L, dim), and the result of each block."""

    output: Tensor
    blocks: tuple[BlockOutput, ...]


class DecoderOutput(NamedTuple):
    """The result of `Decoder.attend`: (B, L, dim), the new cache, and the result of each block."""

    output: Tensor
    cache: DecoderCache
    blocks: tuple[BlockOutput, ...]


class Stack(nn.Module):
    """Base class of stacks: blocks of one width, with positions before them and a norm after them.

    `forward` calls each block as a module, so that hooks on it run, on which sharding and
    checkpointing are built. `attend` and `step` call methods of the block, which run no hooks.
    """

    _kind: type[Block]
    blocks: Sequence  # of `_kind`, held in a ModuleList
    norm: nn.LayerNorm | nn.RMSNorm | None

    def __init__(
        self, blocks: Iterable[Block], position: Sinusoidal | LearnedPosition | None = None
    ) -> None:
        super().__init__()
        given = list(blocks) if isinstance(blocks, Iterable) else []
        kind = self._kind.__name__
        if not given or not all(isinstance(block, self._kind) for block in given):
            found = [type(block).__name__ for block in given] or describe(blocks)
            raise TypeError(
                f"blocks must be one or more {kind} objects, got {found}; for example "
                f"{type(self).__name__}([{kind}(64, 4) for _ in range(6)])"
            )
        self.blocks = nn.ModuleList(given)  # type: ignore[assignment] # a sequence in all but name
        if position is not None and not isinstance(position, (Sinusoidal, LearnedPosition)):
            raise TypeError(
                f"position must be Sinusoidal, LearnedPosition or None, got {describe(position)}; "
                "Rotary and Alibi are given to the blocks"
            )
        widths = {block.dim for block in self.blocks}
        widths |= set() if position is None else {position.dim}
        if len(widths) > 1:
            raise ValueError(f"blocks and position must have one width, got {sorted(widths)}")
        self.dim, self.position = widths.pop(), position
        last = self.blocks[-1].around_feedforward
        # The output of a pre-norm block is a residual sum that no norm has seen.
        self.norm = copy.deepcopy(last.norm) if last.pre else None

    def enter(self, x: Tensor, cache: Cache) -> Tensor:
        """X with its padding zeroed and positions added."""
        x = cache.hide(x)
        if self.position is None:
            return x
        return self.position(x, positions=cache.positions(x.shape[1], x.device))

    def leave(self, x: Tensor) -> Tensor:
        """X after the last norm, if there is one."""
        return x if self.norm is None else normalize(self.norm, x)


class Encoder(Stack):
    """A stack of encoder blocks, with a last norm if they are pre-norm.

    ```python
    Encoder([EncoderBlock(64, 4, Additive(16, 4)) for _ in range(6)], position=Sinusoidal(64))
    ```

    Args:
        blocks: `EncoderBlock`s of one width. The same block twice shares its weights.
        position: a `Sinusoidal` or `LearnedPosition` to add to what comes in, or None.
    """

    _kind = EncoderBlock

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim); mask, lengths and left_padding as in `SelfAttention`."""
        check_tokens(x, self.dim, "x")
        padding = begin(EMPTY, x, lengths, left_padding)
        x = self.enter(x, padding)
        for block in self.blocks:
            x = block(x, mask=mask, checked=Checked(padding, EMPTY))
        return self.leave(x)

    def attend(
        self,
        x: Tensor,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> EncoderOutput:
        """What `forward` returns, with the result of each block: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x")
        padding = begin(EMPTY, x, lengths, left_padding)
        x, passed = self.enter(x, padding), []
        for block in self.blocks:
            passed.append(block.attend_after(padding, x, want, mask))
            x = passed[-1].output
        return EncoderOutput(self.leave(x), tuple(passed))


class Decoder(Stack):
    """A stack of decoder blocks, with a last norm if they are pre-norm.

    ```python
    decoder = Decoder([DecoderBlock(64, 4, position=Rotary(16)) for _ in range(6)])
    y = decoder(x)                                  # training: all tokens at once
    y, cache = decoder.step(prompt)                 # generation: the prompt,
    y, cache = decoder.step(token, cache)           # then token by token
    ```

    Args:
        blocks: `DecoderBlock`s of one width, all with a memory or all without.
        position: a `Sinusoidal` or `LearnedPosition` to add to what comes in, or None.
    """

    _kind = DecoderBlock

    def __init__(
        self,
        blocks: Iterable[DecoderBlock],
        position: Sinusoidal | LearnedPosition | None = None,
    ) -> None:
        super().__init__(blocks, position)
        with_memory = {block.cross is not None for block in self.blocks}
        if len(with_memory) > 1:
            raise ValueError("blocks must all have a memory (memory_dim=), or all have none")
        self.has_memory = with_memory.pop()

    def begin(
        self,
        memory: Tensor | None = None,
        memory_lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> DecoderCache:
        """An empty cache, to pass to the first `step`.

        Args:
            memory: (B, M, memory_dim), which every block projects and lowers here, once.
            memory_lengths: (B,) how much of each memory is real.
            left_padding: (B,) how many tokens of padding each sequence begins with.
        """
        self._check_memory(memory, memory_lengths)
        left = None if left_padding is None else as_counts(left_padding, "left_padding")
        own = tuple(Cache(left_padding=left) for _ in self.blocks)
        if memory is None:
            return DecoderCache(own)
        # Padding is zeroed once for all blocks, each of which projects the memory by its own weights.
        padding = begin(EMPTY, memory, memory_lengths, name="memory_lengths")
        memory = padding.hide(memory)
        return DecoderCache(
            own, tuple(block.cross.prepare_after(padding, memory) for block in self.blocks)
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
        memory_lengths: Counts | None = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim), each token from those up to it and the memory."""
        check_tokens(x, self.dim, "x")
        self._check_memory(memory, memory_lengths)
        checked = Checked(begin(EMPTY, x, lengths, left_padding), EMPTY)
        if memory is not None:
            padding = begin(EMPTY, memory, memory_lengths, name="memory_lengths")
            memory, checked = padding.hide(memory), Checked(checked.own, padding)
        x = self.enter(x, checked.own)
        for block in self.blocks:
            x = block(x, memory, mask=mask, checked=checked)
        return self.leave(x)

    def step(
        self,
        x: Tensor,
        cache: DecoderCache | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, DecoderCache]:
        """The output for the next tokens, one or more, and the cache with them appended.

        None starts without padding and memory; otherwise start with `begin(...)`.
        """
        check_tokens(x, self.dim, "x", self.blocks[0].attention.out)
        if cache is not None and mask is None and is_as_written(self, STEPPING):
            self._check_cache(cache)
            found = next_token(self, x, cache)
            if found is not None:
                return found
        result = self.attend(x, cache=cache, mask=mask)
        return result.output, result.cache

    def attend(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        cache: DecoderCache | None = None,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
        memory_lengths: Counts | None = None,
    ) -> DecoderOutput:
        """What `forward` and `step` return, with the result of each block: `want={"weights"}`.

        A memory is given here, or to the `begin` that made the cache.
        """
        check_tokens(x, self.dim, "x")
        if cache is None:
            cache = self.begin(memory, memory_lengths)
        elif memory is not None or memory_lengths is not None:
            raise ValueError("memory and memory_lengths go into begin(), which made the cache")
        self._check_cache(cache)
        first = begin(cache.own[0], x, lengths, left_padding)
        # An empty cache has just got its padding, checked once: all blocks start from it.
        own = cache.own if first.key is not None else (first,) * len(self.blocks)
        x, passed = self.enter(x, first), []
        for i, block in enumerate(self.blocks):
            seen = cache.memory[i] if self.has_memory else None
            passed.append(block.attend_after(own[i], x, seen, want, mask))
            x = passed[-1].output
        grown = DecoderCache(tuple(one.cache for one in passed), cache.memory)
        return DecoderOutput(self.leave(x), grown, tuple(passed))

    def _check_memory(self, memory: Tensor | None, lengths: Counts | None) -> None:
        if memory is None and self.has_memory:
            raise ValueError(
                "the blocks were built with memory_dim=, but no memory is given: call "
                "decoder(x, memory), or decoder.step(x, decoder.begin(memory))"
            )
        if memory is not None and not self.has_memory:
            raise ValueError(
                f"memory is {describe(memory)}, but the blocks were built without memory_dim=; a "
                "cache is cache="
            )
        if memory is None and lengths is not None:
            raise ValueError("memory_lengths are given, but no memory")
        if memory is not None:
            check_tokens(memory, self.blocks[0].cross.memory_dim, "memory")

    def _check_cache(self, cache: object) -> None:
        if not isinstance(cache, DecoderCache):
            raise TypeError(
                f"cache, the second argument of step, must be what step() or begin() gave, got "
                f"{describe(cache)}; a memory goes into decoder.begin(memory)"
            )
        if len(cache.own) != len(self.blocks):
            raise ValueError(
                f"the cache is of {len(cache.own)} blocks, but there are {len(self.blocks)}"
            )
        if (len(cache.memory) == len(self.blocks)) != self.has_memory:
            raise ValueError(
                f"the cache holds {len(cache.memory)} memories for {len(self.blocks)} blocks that "
                f"{'need' if self.has_memory else 'have no'} memory; make it with begin()"
            )


# `next_token` repeats what this computes, so it is left out if a subclass or a patch replaces it.
STEPPING: dict[str, object] = {"attend": Decoder.attend}
