"""Measuring functions shared by `regard bench`, `regard choose` and claims.

- Time: `clock.py` (wall clock), `graphs.py` (CUDA graphs), `stopwatch.py` (either), `turns.py` (candidates
  in alternation), `times.py` (samples of one quantity).
- Memory and errors: `memory.py` (bytes), `errors.py` (against fp64), `failures.py` (exceptions in one line).
- Comparison: `statistics.py` (95% intervals), `textbook.py` (every score as plain PyTorch).
- Output: `machine.py` (the hardware), `files.py` (atomic writes), `words.py` (numbers for a reader).

The things measured (bench suites, choosing tasks, claims) stay in the packages that own them.
"""
