"""Modules under the fuzzer, one file for each family: its options, its call, its textbook."""

from regard.testing.fuzz.modules import blocks, graph, layers, multihead, small, steps
from regard.testing.fuzz.modules.base import KINDS, ModuleCase, draw_module_case, run

__all__ = [
    "KINDS",
    "ModuleCase",
    "blocks",
    "draw_module_case",
    "graph",
    "layers",
    "multihead",
    "run",
    "small",
    "steps",
]
