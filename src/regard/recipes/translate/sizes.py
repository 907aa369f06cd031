"""Arguments of the translator for each set, at the size that its comparisons have."""

from __future__ import annotations

from typing import Any

from regard.recipes.translate.multi30k import MULTI30K_SETS

EMBEDDED = "dates"
TRANSLATE_SETS = (EMBEDDED, *MULTI30K_SETS)
# Multi30k is small: a third of all units dropped, and a narrow transformer, generalise better than larger ones.
CAPTION_COMMON = {
    "vocabulary": 8000,
    "label_smoothing": 0.1,
    "word_dropout": 0.1,
    "epochs": 32,
    "validate_every": 4,
    "average": 0.998,
    "batch_tokens": 8192,
    "beam": 5,
    "length_penalty": 1.0,
}
CAPTION_TRANSFORMER = CAPTION_COMMON | {
    "architecture": "transformer",
    "width": 256,
    "layers": 4,
    "heads": 4,
    "dropout": 0.3,
    "rate": 1.5e-3,
    "warmup": 400,
}
CAPTION_RECURRENT = CAPTION_COMMON | {
    "width": 512,
    "layers": 2,
    "dropout": 0.4,
    "rate": 1e-3,
    "warmup": 200,
}
# A few thousand short rows with one right answer each: nothing to smooth or average, and small batches, so that two
# CPU cores make enough steps in a minute.
DATES = {
    "architecture": "bahdanau",
    "width": 128,
    "layers": 1,
    "vocabulary": 800,
    "label_smoothing": 0.0,
    "dropout": 0.0,
    "epochs": 6,
    "rate": 3e-3,
    "warmup": 50,
    "average": None,
    "batch_tokens": 1024,
    "beam": 5,
    "max_length": 64,
}


def arguments(name: str, architecture: str | None = None) -> dict[str, Any]:
    """Arguments for a set; an architecture other than the set's usual one may be named."""
    if name == EMBEDDED:
        found = dict(DATES)
        if architecture == "transformer":
            found |= {"width": 96, "layers": 2, "rate": 2e-3, "warmup": 100}
        return found | ({} if architecture is None else {"architecture": architecture})
    if architecture in (None, "transformer"):
        return dict(CAPTION_TRANSFORMER)
    return CAPTION_RECURRENT | {"architecture": architecture}


def quick_arguments(name: str, architecture: str) -> dict[str, Any]:
    """Arguments for a quick look at a set."""
    found = arguments(EMBEDDED, architecture) | {"epochs": 3, "beam": 2}
    return found if name == EMBEDDED else found | {"vocabulary": 2000, "max_length": 128}
