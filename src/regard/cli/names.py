"""Names that completion offers, listed here so that torch is not loaded; a test compares them."""

from __future__ import annotations

from pathlib import Path

PLAIN = ("scaled_dot", "dot", "cosine", "gaussian")
SCORES = (
    *PLAIN,
    *(f"projected_{name}" for name in PLAIN),
    "bilinear",
    "low_rank",
    "additive",
    "gatv2",
)
# What a module, and so a recipe, takes by name.
RECIPE_SCORES = (
    "dot",
    "scaled_dot",
    "cosine",
    "gaussian",
    "bilinear",
    "low_rank",
    "additive",
    "gat",
    "gatv2",
)
TASKS = (
    "look-up",
    "non-linear match",
    "unlike dims",
    "heavy-tailed norms",
    "one of many keys",
    "two criteria",
    "digits",
)
PEERS = (
    "textbook eager",
    "textbook linear",
    "textbook compiled",
    "FlexAttention",
    "Keras",
    "dot cuDNN",
    "dot flash",
    "dot efficient",
    "dot math",
)
PATIENTS = ("healthy", "growing-logits", "jammed-tanh", "hijacked-key")
LANGUAGES, REPORT = ("en", "zh"), "report.html"  # of the claims


def claims() -> list[str]:
    """The ids of all claims in order, from the names of their files: c10_unscaled.py is C10."""
    folder = Path(__file__).parents[1] / "claims" / "experiments"
    found = [path.stem.partition("_")[0].upper() for path in folder.glob("[a-z][0-9]*_*.py")]
    return sorted(found, key=lambda name: (name[0], int(name[1:])))


def claims_and_groups() -> list[str]:
    """The groups, each a letter, followed by the ids of all claims."""
    known = claims()
    return [*dict.fromkeys(name[0] for name in known), *known]
