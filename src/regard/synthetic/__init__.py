"""Synthetic tasks with a known best answer, one file each; claims and `regard choose` train on them.

`task.py` is what they share. Real data and users' files belong to `choosing/tasks`.
"""
