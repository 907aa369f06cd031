"""The `sine` engine: tanh becomes a sine series, so that additive attention runs as an inner product.

The series itself (tables, bounds, lowering) is `regard.sine`; here is what runs it.

- `engine.py`: what the engine serves, and its CPU path in front of an engine for inner forms.
- `choice.py`, `bounds.py`: kind and rank of the series, and the error it may make.
- `device.py`, `operators.py`: the GPU path, and the operators `regard::sine_*` it goes through.
- `launch.py`: binds the launches of `feature_kernels.py` and `feature_gradient_kernels.py`.
- `widths.py`: the layout for cuDNN, from measured widths.
- `parts.py`: what it calls but does not compute, cuDNN and the exact fallback.

Exact kernels do not belong here: the fallback is in `regard.engines.triton.behind`.
"""

from regard.engines.sine_features.engine import Sine

__all__ = ["Sine"]
