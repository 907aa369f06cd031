"""Attacks on the attention of a model: longer keys, larger inputs, shifted positions.

Code that disturbs a model on purpose and measures how far its attention and output move belongs
here. The model is bit-identical afterwards. Measurements of ordinary runs are in `vitals`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.describe import describe
from regard.doctor.probing.inputs import attack_inputs
from regard.doctor.probing.keys import KeyAttack, attack_key
from regard.doctor.probing.looking import look
from regard.doctor.probing.planting import key_norm
from regard.doctor.probing.positions import attack_positions
from regard.doctor.probing.result import Probe
from regard.doctor.remedies.intervene import module_at
from regard.doctor.remedies.locate import LocatedCall, locate
from regard.doctor.running import undisturbed

__all__ = ["Probe", "probe"]

EQUAL = 1e-3  # relative difference up to which norms count as equal
NORMALISED = "all its keys have one norm, as after a normalisation, so none can be made longer"
UNKNOWN_KEYS = "its keys are not known: attention is written out in a form that hides them"


def probe(
    model: nn.Module, batch: Any, on_step: Callable[[str, int, int], None] | None = None
) -> Probe:
    """Attack a model: lengthen a key, scale the inputs, shift the positions.

    Each attention call is attacked on its own with a longer key; inputs and positions are changed
    for the whole model. The model runs in evaluation mode and without gradients: weights, buffers,
    random state and training mode are the same afterwards, bit for bit. This costs five runs of the
    model for each attention call, and about a dozen more.

    Args:
        model: any module.
        batch: a tensor, or a tuple or dict of all arguments.
        on_step: called with what is being done, the number of steps done, and the total.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"probe takes an nn.Module, got {describe(model)}")
    say = on_step or (lambda label, done, total: None)
    notes: list[str] = []
    with torch.no_grad(), undisturbed(model):
        calls = locate(model, batch)
        total = len(calls) + 2
        output = look(model, batch, lambda seen: None).output
        keys: list[KeyAttack] = []
        for done, (site, found) in enumerate(calls.items()):
            say(f"longer keys in {site}", done, total)
            if reason := untried(model, found):
                notes.append(f"{site}: no key was planted: {reason}")
                continue
            try:
                keys.append(attack_key(model, batch, site, found, output))
            except (RuntimeError, ValueError, IndexError) as error:
                notes.append(f"{site}: no key was planted: {error}")
        say("inputs", total - 2, total)
        inputs, scaled = attack_inputs(model, batch)
        say("positions", total - 1, total)
        positions = attack_positions(model, batch)
    if not calls:
        notes.append("no attention was seen")
    return Probe(keys, inputs, scaled, positions, notes)


def untried(model: nn.Module, call: LocatedCall) -> str | None:
    """Why no key can be lengthened at a call, or None where one can."""
    if call.place.route == "softmax" and call.place.product is None:
        return UNKNOWN_KEYS
    if call.again > 1:
        return f"the call is made {call.again} times in a step"
    key = call.seen.key
    behind_norm = call.place.route == "regard" or key_norm(module_at(model, call.place.module))
    # In front of a norm, or of a score that normalises, equal norms do not matter: keys are planted
    # there.
    if key is not None and not behind_norm:
        norms = torch.linalg.vector_norm(key.double(), dim=-1)
        if norms.max() - norms.min() <= EQUAL * norms.max():
            return NORMALISED
    return None
