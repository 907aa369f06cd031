"""Remedies by name, and what applies them.

This folder holds one file for each remedy, with the `Change` it puts into a model, and what they share:
finding a call (`locate.py`), changing it (`intervene.py`), measuring before and after (`treat.py`). A new
remedy is its file and its line in `REMEDIES`. Which remedy a disease gets is decided in `findings`.

Most remedies change weights, or add a few parameters below the module that attends. Both are saved with
the model. Changed weights need nothing else. For added parameters, save what `describe_changes(model)`
returns beside the state dict, and on a fresh model call `put_again(model, description)` before
`load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from regard.doctor.remedies.base import Applied, Remedy, RemedyCase
from regard.doctor.remedies.bias_clip import BiasClip
from regard.doctor.remedies.change import Change, ChangePlace
from regard.doctor.remedies.contrast import Contrast
from regard.doctor.remedies.cosine import CosineScore
from regard.doctor.remedies.finite import Finite
from regard.doctor.remedies.heads import RedrawHeads
from regard.doctor.remedies.intervene import describe_changes, put
from regard.doctor.remedies.key_clip import KeyClip
from regard.doctor.remedies.locate import LocatedCall, locate
from regard.doctor.remedies.mask import MaskRemedy
from regard.doctor.remedies.norms import QKNorm
from regard.doctor.remedies.positions import RescalePositions
from regard.doctor.remedies.qk_clip import QKClip
from regard.doctor.remedies.reconnect import Reconnect
from regard.doctor.remedies.residual import AddResidual
from regard.doctor.remedies.scale import Scale
from regard.doctor.remedies.shrink_tanh import ShrinkTanh
from regard.doctor.remedies.soft_cap import SoftCap
from regard.doctor.remedies.swap_score import SwapScore
from regard.doctor.remedies.temperature import LearnedTemperature
from regard.doctor.remedies.texts import EpsilonAdvice, GradientAdvice, NumbersAdvice, RateAdvice
from regard.doctor.remedies.thaw import Thaw

__all__ = [
    "REMEDIES",
    "Applied",
    "Change",
    "ChangePlace",
    "LocatedCall",
    "Remedy",
    "RemedyCase",
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
        RescalePositions(),
        RedrawHeads(),
        AddResidual(),
        Contrast(),
        Thaw(),
        Reconnect(),
        Finite(),
        EpsilonAdvice(),
        GradientAdvice(),
        NumbersAdvice(),
        RateAdvice(),
    )
}

# Descriptions of treated models name a change by its class, so renaming a class breaks loading them.
CHANGES: Mapping[str, type[Change]] = {
    change.__name__: change for remedy in REMEDIES.values() for change in remedy.changes
}


def put_again(model: nn.Module, description: Iterable[Mapping[str, Any]]) -> None:
    """Put the changes that `describe_changes` described into a fresh model of the same kind.

    Their parameters have initial values; call `load_state_dict` afterwards.
    """
    for entry in description:
        kind = CHANGES.get(entry["change"])
        if kind is None:
            known = ", ".join(CHANGES)
            raise ValueError(f"description: unknown change {entry['change']!r}; known are {known}")
        put(model, ChangePlace(**entry["place"]), entry["name"], kind(**entry["arguments"]))
