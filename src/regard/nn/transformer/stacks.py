"""Stacks of blocks: an encoder, and a decoder that generates with a cache.

Shape legend: B batch, L tokens, M tokens of the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from regard.describe import describe
from regard.mask import Mask
from regard.nn.position import LearnedPosition, Sinusoidal
from regard.nn.transformer.blocks import Block, DecoderBlock, EncoderBlock, Passed, normalize
from regard.nn.transformer.cache import EMPTY, Cache, Counts, DecoderCache, begin, check_tokens


class Stack(nn.Module):
    """What both stacks share: blocks of one width, positions before them, a norm after them.

    `forward` calls each block as a module, so that hooks on it run, and what is built on them:
    sharding, checkpointing. `attend` and `step` call its methods, which no hook sees.
    """

    kind: type[Block]
    blocks: Sequence  # of `kind`, held in a ModuleList
    norm: nn.Module | None

    def __init__(
        self, blocks: Iterable[Block], position: Sinusoidal | LearnedPosition | None = None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment] # a sequence in all but name
        given = [type(block).__name__ for block in self.blocks]
        if not given or not all(isinstance(block, self.kind) for block in self.blocks):
            raise TypeError(f"blocks must be one or more {self.kind.__name__} objects, got {given}")
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
        # A pre-norm block leaves a sum that nothing has normalised yet.
        self.norm = copy.deepcopy(last.norm) if last.pre else None

    def enter(self, x: Tensor, cache: Cache) -> Tensor:
        """X without what its padding holds, with positions added."""
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

    kind = EncoderBlock

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim); mask, lengths and start as in `SelfAttention`."""
        check_tokens(x, self.dim, "x")
        padding = begin(EMPTY, x, lengths, start)
        x = self.enter(x, padding)
        for block in self.blocks:
            x = block(x, mask=mask, lengths=padding.stop, start=padding.start)
        return self.leave(x)

    def attend(
        self,
        x: Tensor,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> tuple[Tensor, tuple[Passed, ...]]:
        """What `forward` does, and what each block gave: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x")
        padding = begin(EMPTY, x, lengths, start)
        x, passed = self.enter(x, padding), []
        for block in self.blocks:
            passed.append(
                block.attend(x, want=want, mask=mask, lengths=padding.stop, start=padding.start)
            )
            x = passed[-1].output
        return self.leave(x), tuple(passed)


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

    kind = DecoderBlock

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
        memory_lengths: Counts = None,
        start: Counts = None,
    ) -> DecoderCache:
        """An empty cache, to pass to the first `step`.

        Args:
            memory: (B, M, memory_dim), which every block projects and lowers here, once.
            memory_lengths: (B,) how much of each memory is real.
            start: (B,) how many tokens of padding each sequence begins with.
        """
        self._check_memory(memory, memory_lengths)
        start = None if start is None else torch.as_tensor(start)
        own = tuple(Cache(start=start) for _ in self.blocks)
        if memory is None:
            return DecoderCache(own)
        return DecoderCache(
            own, tuple(block.remember(memory, memory_lengths) for block in self.blocks)
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
        memory_lengths: Counts = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim), each token from those up to it and the memory."""
        check_tokens(x, self.dim, "x")
        self._check_memory(memory, memory_lengths)
        padding = begin(EMPTY, x, lengths, start)
        x = self.enter(x, padding)
        for block in self.blocks:
            x = block(
                x,
                memory,
                mask=mask,
                lengths=padding.stop,
                start=padding.start,
                memory_lengths=memory_lengths,
            )
        return self.leave(x)

    def step(
        self,
        x: Tensor,
        cache: DecoderCache | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, DecoderCache]:
        """The output for the next tokens, one or more, and the grown cache.

        None begins without padding or memory; else begin with `begin(...)`.
        """
        x, passed = self.attend(x, cache, mask=mask)
        memory = () if cache is None else cache.memory
        return x, DecoderCache(tuple(one.cache for one in passed), memory)

    def attend(
        self,
        x: Tensor,
        cache: DecoderCache | None = None,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, tuple[Passed, ...]]:
        """What `forward` and `step` do, and what each block gave: `want={"weights"}`."""
        check_tokens(x, self.dim, "x")
        cache = self.begin() if cache is None else cache
        if not isinstance(cache, DecoderCache):
            raise TypeError(f"cache must be what begin() or step() gave, got {describe(cache)}")
        if len(cache.own) != len(self.blocks):
            raise ValueError(
                f"the cache is of {len(cache.own)} blocks, but there are {len(self.blocks)}"
            )
        if (len(cache.memory) == len(self.blocks)) != self.has_memory:
            raise ValueError(
                f"the cache holds {len(cache.memory)} memories for {len(self.blocks)} blocks that "
                f"{'need' if self.has_memory else 'have no'} memory; make it with begin()"
            )
        x, passed = self.enter(x, begin(cache.own[0], x)), []
        for i, block in enumerate(self.blocks):
            memory = cache.memory[i] if self.has_memory else None
            passed.append(block.attend(x, cache.own[i], memory, want=want, mask=mask))
            x = passed[-1].output
        return self.leave(x), tuple(passed)

    def _check_memory(self, memory: Tensor | None, lengths: Counts) -> None:
        if (memory is not None) != self.has_memory:
            built = "with" if self.has_memory else "without"
            raise ValueError(f"memory is {describe(memory)}, but the blocks were built {built} one")
        if memory is None and lengths is not None:
            raise ValueError("memory_lengths are given, but no memory")
