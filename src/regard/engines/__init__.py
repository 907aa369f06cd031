"""Engines run a lowered score on some hardware; `plan.py` picks one."""
