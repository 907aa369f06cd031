"""The `cpu` engine: both forms in tiles with online softmax, in memory linear in the length.

- `engine.py`: what the engine serves; `calls.py`: the kernels of its operators.
- `kernels.py`: loops over tiles; `forms.py`: one tile of each form; `tiles.py`: how work is cut into tiles.
"""

from regard.engines.cpu.engine import Cpu

__all__ = ["Cpu"]
