"""The `triton` engine: both forms in fused kernels on a GPU.

Host code:

- `engine.py`: what the engine serves; imports no Triton.
- `calls.py`: any call, prepared and launched; `choices.py` picks tiles, `prepare.py` lays operands out,
  `buffers.py` holds what the backward adds up, `ordered.py` scales integer sums of a fixed order.
- `bound.py`, `bound_backward.py`: launches of common calls, bound once; `repeated.py` runs them from
  the caller's tensors.
- `behind.py`: exact attention behind a device flag, the fallback of the sine engine.

Kernels, and what they are given:

- `structs.py`: their arguments, in groups; `tiles.py`: one tile of pairs.
- `forward.py`, `backward.py`, `rows.py`: the tiled kernels; `lanes.py`: sums of the bf16 backward.
- `decode.py`, `decode_backward.py`: the same for few queries.
- `sides.py`, `flagged.py`: small kernels before and after them.

Operator registration and autograd are in `regard.engines.tiled`, launching in `engines/launching.py`.
"""

from regard.engines.triton.behind import Behind
from regard.engines.triton.engine import Triton

__all__ = ["Behind", "Triton"]
