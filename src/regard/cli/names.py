"""Names that completion offers, known without loading torch. A test holds them to the real ones."""

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
TASKS = (
    "look-up",
    "non-linear match",
    "unlike dims",
    "heavy-tailed norms",
    "long range",
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
    """Ids by the files of the experiments, in their order: c10_unscaled.py holds C10."""
    folder = Path(__file__).parents[1] / "claims" / "experiments"
    found = [path.stem.partition("_")[0].upper() for path in folder.glob("[a-z][0-9]*_*.py")]
    return sorted(found, key=lambda name: (name[0], int(name[1:])))


def claims_and_groups() -> list[str]:
    """Groups, each a letter, and claims."""
    known = claims()
    return [*dict.fromkeys(name[0] for name in known), *known]
