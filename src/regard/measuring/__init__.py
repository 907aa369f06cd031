"""One core for measuring: what `regard bench`, `regard choose` and claims time, count and compare with.

`clock.py`, `graphs.py` and `times.py` time calls, `memory.py` counts bytes, `errors.py` compares with fp64,
`statistics.py` has intervals, `textbook.py` every score as plain PyTorch, `machine.py` names the hardware,
`files.py` writes results, `words.py` numbers for a reader. What is measured belongs to its own part.
"""
