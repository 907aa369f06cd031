"""The data on which `regard choose` compares scores.

`embedded.py` holds synthetic tasks with a known answer, `real.py` real data, `files.py` the user's file.
"""
