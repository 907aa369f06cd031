"""Textbook attention and this library's attention, timed side by side.

B = 1 sequence, H = 1 head, L queries and keys. The width is both the dim and the number of hidden units, so
every form reads the same three tensors. Times are only compared within one run, never with fixed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import regard
from regard.claims.claim import Run
from regard.figures.canvas import LOOKS
from regard.measuring import memory, textbook
from regard.measuring.clock import calls_per_sample, clock
from regard.text import Text

Pass = Callable[[], object]
# (length, width, generator) -> passes by name.
Forms = Callable[[int, int, torch.Generator], dict[str, Pass]]
# Allowed output error of the sine series, relative to the largest |value|.
ERROR = 1e-2
WORDS = {
    "textbook dot": Text("dot, textbook", "点积，教科书写法"),
    "dot": Text("dot, ours", "点积，本库"),
    "textbook additive": Text("additive, textbook", "加性，教科书写法"),
    "additive": Text("additive, ours", "加性，本库"),
    "sine additive": Text("additive as sines, ours", "加性（正弦级数），本库"),
}
# Colours are those of the scores; the textbook is dashed, the sine series dotted.
STYLES: dict[str, dict[str, Any]] = {
    "textbook dot": {"color": LOOKS["scaled dot"][0], "marker": "o", "ls": "--", "mfc": "white"},
    "dot": {"color": LOOKS["scaled dot"][0], "marker": "o"},
    "textbook additive": {"color": LOOKS["additive"][0], "marker": "D", "ls": "--", "mfc": "white"},
    "additive": {"color": LOOKS["additive"][0], "marker": "D"},
    "sine additive": {"color": LOOKS["additive"][0], "marker": "P", "ls": ":"},
}


def passes(length: int, width: int, generator: torch.Generator) -> dict[str, Pass]:
    """One forward and backward pass of each form, on the same inputs, by name."""
    device = generator.device
    shape = (1, 1, length, width)
    q, k, v, back = (torch.randn(shape, generator=generator, device=device) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    # The library's own initial distribution of v, but drawn from the given generator.
    additive = regard.Additive(width).to(device)
    with torch.no_grad():
        additive.v.normal_(std=(width * additive.power) ** -0.5, generator=generator)
    dot = regard.ScaledDot()
    learned = [*leaves, additive.v]
    outputs = {
        "textbook dot": (lambda: textbook.attention(dot, q, k, v), leaves),
        "dot": (lambda: regard.attention(q, k, v, dot), leaves),
        "textbook additive": (lambda: textbook.attention(additive, q, k, v), learned),
        "additive": (lambda: regard.attention(q, k, v, additive), learned),
        "sine additive": (
            lambda: regard.attention(q, k, v, additive, engine="sine", error=ERROR),
            learned,
        ),
    }

    def both(name: str) -> Pass:
        output, inputs = outputs[name]
        return lambda: torch.autograd.grad(output(), inputs, back)

    return {name: both(name) for name in outputs}


def interleaved(
    calls: dict[str, Pass], rounds: int, least: float, run: Run
) -> dict[str, list[float]]:
    """Seconds of each pass in every round.

    Every pass is timed once in each round, so that changes in the machine's speed affect all of them. A
    pass shorter than `least` seconds is repeated until a sample lasts that long.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = calls_per_sample(clock(call, 1, run.device), least, most=50)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in run.steps(range(rounds)):
        for name, call in calls.items():
            found[name].append(clock(call, repeats[name], run.device))
    return found


def peaks(calls: dict[str, Pass], device: torch.device) -> dict[str, int]:
    """Peak memory of each pass in bytes, not counting its inputs."""
    return {name: memory.peak(call, device) for name, call in calls.items()}
