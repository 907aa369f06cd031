"""Arguments of `LettersToSounds` for each set, at the size that fits minutes on two cores."""

from __future__ import annotations

from typing import Any

from regard.recipes.letters.sources import EMBEDDED

SMALL = {
    "width": 128,
    "layers": 1,
    "embedding": 64,
    "encoder_width": 192,
    "dropout": 0.3,
    "rate": 4e-3,
    "batch_symbols": 512,
    # A training has 1,400 to 2,800 steps: an average over the last 500, as 0.998 takes, trails behind.
    "average": 0.99,
    "validate_every": 4,
}
# Of the sets with 8,000 words.
FEW = {"epochs": 20}
BY_SET: dict[str, dict[str, Any]] = {
    EMBEDDED: {"epochs": 8, "validate_every": 2, "batch_symbols": 1024},
    "eng_us": {"epochs": 20, "validate_every": 5, "batch_symbols": 1024, "average": 0.998},
    "fre": FEW,
    "dut": FEW,
    # A Korean syllable is one character made of letters: taken apart, 67 letters write all of them.
    "kor": FEW | {"form": "NFD"},
}


def arguments(name: str) -> dict[str, Any]:
    """The constructor's arguments for a set."""
    return SMALL | BY_SET[name]


def quick_arguments(name: str) -> dict[str, Any]:
    """Arguments for a quick look."""
    return arguments(name) | {"epochs": 4, "width": 64, "encoder_width": 96, "beam": 2}
