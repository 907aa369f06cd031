"""`check_training`: the arguments of training that recipes share, checked by name in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.arguments import (
    check_given_sizes,
    check_not_negative,
    check_positive,
    check_probability,
    check_sizes,
    check_whole,
)


def check_training(given: Mapping[str, Any]) -> None:
    """Refuse arguments of an estimator that no training can have; those that it does not have are left out.

    Raises:
        ValueError: names the argument and what would work.
    """

    def named(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    check_given_sizes(**named("epochs", "validate_every", "checkpoint_every"))
    check_sizes(**named("patience", "embedding", "encoder_width", "score_width"))
    check_whole(**named("seed", "warmup"))
    check_positive(**named("rate"))
    check_positive(optional=True, **named("minutes"))
    check_not_negative(**named("weight_decay", "consistency"))
    check_probability(**named("dropout", "word_dropout", "label_smoothing"))
    if given.get("average") is not None:
        check_probability(average=given["average"])
