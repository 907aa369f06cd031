"""Synthetic tasks whose best answer is known, one file each. Claims and `regard choose` train on them.

`task.py` has what they share. Real data and users' files belong in `choosing/tasks`.
"""
