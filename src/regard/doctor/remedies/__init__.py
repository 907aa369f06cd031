"""Remedies by name, and the way they are applied.

Most change weights, or add a few parameters below the module that attends; both are saved with the
model. Weights need nothing else. Of added ones keep what `describe_changes(model)` returns with the
state dict; on a fresh model call `put_again(model, description)` before `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from regard.doctor.remedies.base import Applied, Case, Remedy
from regard.doctor.remedies.bias_clip import BiasClip
from regard.doctor.remedies.change import Change, Place
from regard.doctor.remedies.contrast import Contrast, Contrasted
from regard.doctor.remedies.cosine import CosineScore, CosineSides
from regard.doctor.remedies.finite import Finite, FiniteModule, FiniteSides
from regard.doctor.remedies.heads import RedrawHeads
from regard.doctor.remedies.intervene import describe_changes, put
from regard.doctor.remedies.key_clip import ClippedKeySides, KeyClip
from regard.doctor.remedies.locate import Call, locate
from regard.doctor.remedies.mask import Masked, MaskRemedy
from regard.doctor.remedies.norms import NormedSides, QKNorm
from regard.doctor.remedies.positions import Positions
from regard.doctor.remedies.qk_clip import QKClip
from regard.doctor.remedies.reconnect import Reconnect, Reconnected
from regard.doctor.remedies.residual import Residual, WayAround
from regard.doctor.remedies.scale import Scale, Scaled
from regard.doctor.remedies.shrink_tanh import ShrinkTanh, ShrunkSides
from regard.doctor.remedies.soft_cap import Capped, SoftCap
from regard.doctor.remedies.swap_score import SwapScore
from regard.doctor.remedies.temperature import LearnedTemperature, Temperature
from regard.doctor.remedies.texts import EpsilonAdvice, GradientAdvice, NumbersAdvice
from regard.doctor.remedies.thaw import Thaw

__all__ = [
    "REMEDIES",
    "Applied",
    "Call",
    "Case",
    "Change",
    "Place",
    "Remedy",
    "describe_changes",
    "locate",
    "put_again",
]

REMEDIES: Mapping[str, Remedy] = {
    remedy.name: remedy
    for remedy in (
        Scale(),
        LearnedTemperature(),
        QKNorm(),
        CosineScore(),
        KeyClip(),
        SoftCap(),
        QKClip(),
        SwapScore(),
        ShrinkTanh(),
        BiasClip(),
        MaskRemedy(),
        Positions(),
        RedrawHeads(),
        Residual(),
        Contrast(),
        Thaw(),
        Reconnect(),
        Finite(),
        EpsilonAdvice(),
        GradientAdvice(),
        NumbersAdvice(),
    )
}

CHANGES: Mapping[str, type[Change]] = {
    kind.__name__: kind
    for kind in (
        Scaled,
        Temperature,
        NormedSides,
        CosineSides,
        ClippedKeySides,
        Capped,
        ShrunkSides,
        Masked,
        Contrasted,
        WayAround,
        Reconnected,
        FiniteModule,
        FiniteSides,
    )
}


def put_again(model: nn.Module, description: Iterable[Mapping[str, Any]]) -> None:
    """Put the changes that `describe_changes` described into a fresh model of the same kind.

    Their parameters are those of a start; load the state dict after it.
    """
    for entry in description:
        kind = CHANGES.get(entry["change"])
        if kind is None:
            known = ", ".join(CHANGES)
            raise ValueError(f"unknown change {entry['change']!r}; known are {known}")
        put(model, Place(**entry["place"]), entry["name"], kind(**entry["arguments"]))
