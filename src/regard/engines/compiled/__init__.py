"""The `compiled` engine: exact pairwise scores on the CPU, by kernels that numba compiles.

- `engine.py`: what the engine serves; `calls.py`: its operators, cut into blocks for threads; `inputs.py`: the
  arrays that kernels read.
- Kernels: `forward.py`, `backward.py` and `passes.py` loop over tiles; `tiles.py`: one tile of logits;
  `products.py`: matrix products; `numbers.py`: exponential, tanh, dropout. They import numba, so they are
  imported inside functions only.
"""

from regard.engines.compiled.engine import Compiled

__all__ = ["Compiled"]
