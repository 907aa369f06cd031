"""Attention over features of any width, in fp16, with a workspace that does not grow with the lengths.

It takes what cuDNN's attention does not: features wider than 256, lengths of keys and queries, windows,
packed segments and dropout. Engine `sine` calls it for additive scores as a series of sines.

- `reference.py`: what it computes, in plain PyTorch.
- `kernels.py`: two Triton kernels. One makes outputs, with an online softmax over blocks of keys. The
  other makes weights and gradients of logits for a chunk of queries.
- `passes.py`: the forward is one launch. The backward goes through chunks of queries: one launch, and
  three library products of the chunk with features and gradients.
- `sizes.py`: tiles, and the chunks that keep the workspace within `CHUNK_BYTES`.

Nothing here builds features, and nothing here knows of series: see `regard.engines.sine_features`.
"""

from regard.engines.wide.passes import Wide

__all__ = ["Wide"]
