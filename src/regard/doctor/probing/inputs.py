"""The second attack: all inputs are multiplied by factors from 0.1 to 100.

Inputs of floats are multiplied directly; for token ids, the output of the embedding is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.doctor.probing.looking import Look, look
from regard.doctor.running import mapped
from regard.doctor.seen import Seen
from regard.doctor.signature import parameters_of
from regard.doctor.vitals import INDEX, measure
from regard.doctor.vitals.table import BROKEN

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ONE = FACTORS.index(1.0)
# From 1e3 on the loss gets worse, at 1e4 training diverges (Wortsman 2023, arXiv 2309.14322).
HIGHEST_LOGIT = 1e3
# Ours, the same threshold as for collapsed entropy.
LOWEST_ENTROPY = 0.1
# Arguments with one of these words in their names are not inputs to scale or roll.
ASIDE = ("mask", "bias", "position", "label", "target", "cache", "past")


class InputAttack(NamedTuple):
    """What one attention call did at each of `FACTORS`.

    Attributes:
        site: the call.
        logit_max: the largest logit.
        entropy: over the log of the number of visible keys, mean over the heads.
        broken: how many queries, keys and rows of logits were NaN or Inf.
        range: the smallest and largest factor around 1 that it withstood: all numbers finite,
        logits
            at most 1000, and entropy at least 0.1, or what it was at 1 if that is lower. None if it
            did not even withstand 1.
    """

    site: str
    logit_max: tuple[float, ...]
    entropy: tuple[float, ...]
    broken: tuple[int, ...]
    range: tuple[float, float] | None


def attack_inputs(model: nn.Module, batch: Any) -> tuple[list[InputAttack], str]:
    """The results of all factors on the whole model, and what was multiplied."""
    scale, what = scaling(model, batch)
    looks = []
    for factor in FACTORS:
        with scale(factor) as given:
            looks.append(look(model, given, vital_signs))
    return [judged(site, looks) for site in looks[ONE].sites], what


class Signs(NamedTuple):
    """What is read of one call at one factor."""

    logit_max: float
    entropy: float
    broken: int


# For a call that was not made at a factor.
LOST = Signs(math.nan, math.nan, 0)


def vital_signs(seen: Seen) -> Signs:
    """The signs of a call, from its vitals at the sampled level."""
    values = measure(seen, "sampled").double().cpu()
    broken = sum(float(values[:, INDEX[name]].nansum()) for name in BROKEN)
    entropy = values[:, INDEX["entropy"]].nanmean()
    return Signs(float(values[:, INDEX["logit_max"]].max()), float(entropy), int(broken))


def judged(site: str, looks: list[Look[Signs]]) -> InputAttack:
    """The result for one call at all factors."""
    signs = [found.sites.get(site, LOST) for found in looks]
    # A call that is this sharp at factor 1 already is compared with itself.
    floor = min(LOWEST_ENTROPY, signs[ONE].entropy)
    sound = [
        x.broken == 0 and x.logit_max <= HIGHEST_LOGIT and x.entropy >= floor - 1e-6
        and bool(found.output.isfinite().all())
        for x, found in zip(signs, looks, strict=True)
    ]  # fmt: skip
    columns = [tuple(x) for x in zip(*signs, strict=True)]
    return InputAttack(site, *columns, range=around_one(sound))


def around_one(sound: list[bool]) -> tuple[float, float] | None:
    """The smallest and largest factor that 1 reaches without a failure between; None if 1 fails."""
    if not sound[ONE]:
        return None
    low = high = ONE
    while low > 0 and sound[low - 1]:
        low -= 1
    while high + 1 < len(sound) and sound[high + 1]:
        high += 1
    return FACTORS[low], FACTORS[high]


Scaling = Callable[[float], Any]


def scaling(model: nn.Module, batch: Any) -> tuple[Scaling, str]:
    """A context manager that multiplies all inputs by a factor, and what it multiplies."""
    names = names_of(model, batch)
    floats = [name for name, x in names.items() if readable(name, x) and x.is_floating_point()]
    if floats:

        @contextmanager
        def multiplied(factor: float) -> Iterator[Any]:
            yield with_floats(batch, names, floats, factor)

        return multiplied, ", ".join(floats)
    layers = embeddings_of(model, [x for name, x in names.items() if readable(name, x)])

    @contextmanager
    def embedded(factor: float) -> Iterator[Any]:
        with ExitStack() as undo:
            for hook in layers(factor):
                undo.callback(hook.remove)
            yield batch

    return embedded, "the embedding of the tokens"


def names_of(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch by the names of the arguments."""
    if isinstance(batch, Mapping):
        return {str(name): x for name, x in batch.items() if isinstance(x, Tensor)}
    if isinstance(batch, Tensor):
        batch = (batch,)
    takes = parameters_of(model)[0]
    names = [*takes, *(f"argument {i}" for i in range(len(takes), len(batch)))]
    return {name: x for name, x in zip(names, batch, strict=False) if isinstance(x, Tensor)}


def readable(name: str, x: Tensor) -> bool:
    """Whether a tensor is an input of the model, and not a mask, label or the like."""
    return not x.is_complex() and not any(word in name.lower() for word in ASIDE)


def with_floats(batch: Any, names: Mapping[str, Tensor], floats: list[str], factor: float) -> Any:
    """The batch with the tensors named in `floats` multiplied."""
    chosen = {id(names[name]) for name in floats}

    def one(x: Any) -> Any:
        return x * factor if id(x) in chosen else x

    return mapped(batch, one)


def embeddings_of(model: nn.Module, ids: list[Tensor]) -> Callable[[float], Iterator[Any]]:
    """A function that hooks the embeddings of these ids, so that their output is multiplied."""
    own = getattr(model, "get_input_embeddings", None)
    first = own() if callable(own) else None
    layers = (
        [first]
        if first is not None
        else [x for x in model.modules() if isinstance(x, nn.Embedding)]
    )
    # Other embeddings, such as positions, get ids that are not from the batch, and are left alone.
    storages = {x.untyped_storage().data_ptr() for x in ids}

    def hooks(factor: float) -> Iterator[Any]:
        def louder(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
            given = args[0] if args else None
            of_batch = isinstance(given, Tensor) and given.untyped_storage().data_ptr() in storages
            return output * factor if first is not None or of_batch else None

        for layer in layers:
            yield layer.register_forward_hook(louder)

    return hooks
