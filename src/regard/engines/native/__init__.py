"""What engines with numba kernels share: how kernels are compiled, and the threads that run them.

- `jit.py`: `kernel`, the decorator of every kernel; `absent`, why kernels cannot run here.
- `pool.py`: `run`, which gives whole blocks of work to threads.

Kernels do not belong here. A file with kernels imports numba, so import it inside a function: `import regard`
loads torch alone.
"""

from regard.engines.native.jit import absent, kernel
from regard.engines.native.pool import run

__all__ = ["absent", "kernel", "run"]
