"""Swap-score: another score in the place of the one that is sick."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, vitals_of
from regard.doctor.remedies.intervene import HOLDER
from regard.nn.fit import check_score_fits
from regard.nn.multihead import MultiheadAttention, from_torch
from regard.scores import Projected, Score, make_score
from regard.stabilize import Normalized

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEEPS = "not kept: the projections stay, and learn to be compared in another way"
TANH = frozenset({"tanh_saturated", "tanh_slope"})


class SwapScore(Remedy):
    """Compare queries and keys in another way."""

    name = "swap-score"
    does = (
        "Puts another score of regard in the place of this one: in a module of regard, in torch's "
        "nn.MultiheadAttention, or in a layer of a Hugging Face model. Scaled dot for a saturated "
        'additive score, cosine for all else, or score="gaussian" and so on. It has to be trained.'
    )
    source = "regard.scores; docs/scores.md"
    moves = frozenset(
        {
            "tanh_saturated",
            "tanh_slope",
            "key_spread",
            "c50",
            "query_spread",
            "logit_max",
            "logit_var",
            "logit_bound",
            "entropy",
            "jacobian",
        }
    )

    def cannot(self, case: RemedyCase) -> str | None:
        """Only in modules that it knows."""
        if HOLDER in case.module._modules:
            return f"{case.place.module} has been treated otherwise; undo that first"
        if swapper(case) is None:
            return (
                f"{case.site} is called by a {type(case.module).__name__}: a score can be swapped in "
                "regard's modules, in nn.MultiheadAttention inside a model, and in Hugging Face "
                "layers that call the attention interface"
            )
        return None

    def apply(self, case: RemedyCase, *, score: Score | str | None = None, **_: Any) -> Applied:
        """By the way that the module allows."""
        if score is None:
            tanh = vitals_of(case.finding) & TANH or case.finding.disease == "saturated-tanh"
            score = "scaled_dot" if tanh else "cosine"
        swap = swapper(case)
        assert swap is not None
        known = {id(x) for x in case.model.parameters()}
        undo, note = swap(case, score)
        names = tuple(name for name, x in case.model.named_parameters() if id(x) not in known)
        called = score if isinstance(score, str) else type(score).__name__
        return Applied(f"score {called!r} in place of the one before{note}", KEEPS, undo, names)


def swapper(
    case: RemedyCase,
) -> Callable[[RemedyCase, Score | str], tuple[Callable[[], None], str]] | None:
    """How the score of this module can be swapped, or None."""
    module = case.module
    if isinstance(getattr(module, "score", None), Score):
        return in_regard
    if type(module) is nn.MultiheadAttention and case.place.module:
        return in_torch
    return in_hugging_face if hugging_face_layer(case) else None


def in_regard(case: RemedyCase, score: Score | str) -> tuple[Callable[[], None], str]:
    """A module of ours: the score behind its projections."""
    module: Any = case.module
    holder, outer = module, module.score
    while isinstance(outer, (Projected, Normalized)):
        holder, outer = outer, outer.score
    place = case.place
    width = case.sides()[0].shape[-1]
    if isinstance(module, MultiheadAttention):
        width = module.projected[0] // module.num_heads
    elif isinstance(holder, Projected):
        width = holder.query_weight.shape[0] // holder.heads
    made = make_score(score, width, place.heads, place.key_heads)
    check_score_fits(made, (place.heads, width), (place.key_heads, width))
    holder.score = made.to(**case.like()).train(module.training)

    def undo() -> None:
        holder.score = outer

    return undo, ""


def in_torch(case: RemedyCase, score: Score | str) -> tuple[Callable[[], None], str]:
    """A module of torch: ours with its parameters in its place."""
    before = case.module
    assert isinstance(before, nn.MultiheadAttention)
    after = from_torch(before, score)
    places = [
        (parent, name)
        for parent in case.model.modules()
        for name, child in parent._modules.items()
        if child is before
    ]
    for parent, name in places:
        setattr(parent, name, after)

    def undo() -> None:
        for parent, name in places:
            setattr(parent, name, before)

    return undo, ", in regard's module"


def hugging_face_layer(case: RemedyCase) -> tuple[PreTrainedModel, str] | None:
    """The transformers model and the name of the layer in it, where this is one."""
    if "transformers" not in sys.modules:  # then nothing of the model is its
        return None
    from transformers import PreTrainedModel

    from regard.integrations.transformers import attention_layers

    for part in case.model.modules():
        if not isinstance(part, PreTrainedModel):
            continue
        try:
            layers = attention_layers(part)
        except ValueError:  # it has none that call the interface; a part of it may
            continue
        for layer in layers:
            if layer.module is case.module:
                return part, layer.name
    return None


def in_hugging_face(case: RemedyCase, score: Score | str) -> tuple[Callable[[], None], str]:
    """A layer of transformers: by its attention interface, which all layers then go through."""
    from regard.integrations.transformers import restore, use_score
    from regard.integrations.transformers.forward import SCORE

    found = hugging_face_layer(case)
    assert found is not None
    model, name = found
    layer = model.get_submodule(name)
    before = copy.copy(getattr(layer, SCORE, None))
    fresh = not hasattr(layer, SCORE)
    use_score(model, score, layers=name)

    def undo() -> None:
        if fresh:
            restore(model)
        else:
            use_score(model, lambda _: before, layers=name)

    return undo, ", by transformers' attention interface"
