"""Engines: each runs a lowered call (`Problem`) on some hardware.

- `base.py`: the protocol of an engine; `lineup.py`: all engines; `plan.py`: picks one for a call.
- `reference.py`: the specification; `sdpa.py`, `plain.py`, `cpu/`, `triton/`, `sine_features/`: the others.
- `tiled/`, `launching.py`, `gpu.py`, `sizes.py`: what several engines share.

Engines do not import one another, and know forms, not scores.
"""
