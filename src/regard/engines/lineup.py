"""The engines in order of preference: the one place that names them.

Engines do not import one another. What one needs of another is handed to it here: `sine` builds features
that other engines run; on a GPU wide kernels run those that cuDNN does not take, and an exact kernel is its fallback
outside the range of the series.
"""

from __future__ import annotations

from regard.engines.base import Engine
from regard.engines.compiled import Compiled
from regard.engines.cpu import Cpu
from regard.engines.plain import Plain
from regard.engines.reference import Reference
from regard.engines.sdpa import Sdpa
from regard.engines.sine_features import Sine
from regard.engines.sine_features.parts import PARTS
from regard.engines.triton import Behind, Triton
from regard.engines.wide import Wide

SDPA, COMPILED, CPU, TRITON, PLAIN, REFERENCE = (
    Sdpa(),
    Compiled(),
    Cpu(),
    Triton(),
    Plain(),
    Reference(),
)
SINE = Sine(through=(SDPA, CPU, TRITON, REFERENCE))
PARTS.wide, PARTS.exact = Wide(), Behind()
# The first engine that does not refuse a call runs it. The reference refuses nothing, so it comes last.
ENGINES: tuple[Engine, ...] = (SDPA, COMPILED, SINE, CPU, TRITON, PLAIN, REFERENCE)
