"""Swap-score: replaces the score of a module by another one."""

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

KEEPS = "not kept: the projections stay, and have to learn to work with the new score"
TANH = frozenset({"tanh_saturated", "tanh_slope"})


class SwapScore(Remedy):
    """Swap-score: compares queries and keys by another score."""

    name = "swap-score"
    does = (
        "Replaces the score by another one of regard: in a module of regard, in torch's "
        "nn.MultiheadAttention, or in a layer of a Hugging Face model. The default is scaled dot for "
        'a saturated additive score and cosine otherwise; score="gaussian" and so on picks another. '
        "The model has to be trained with it."
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
        """Needs a module whose score can be replaced, without other treatments."""
        # Another change is tied to the call that the old score makes, and would not act on the new one.
        if HOLDER in case.module._modules:
            return f"{case.place.module} has another treatment; undo that first"
        if swapper(case) is None:
            return (
                f"{case.site} is called by a {type(case.module).__name__}: a score can be swapped in "
                "regard's modules, in nn.MultiheadAttention inside a model, and in Hugging Face "
                "layers that call the attention interface"
            )
        return None

    def apply(self, case: RemedyCase, *, score: Score | str | None = None, **_: Any) -> Applied:
        """Swap the score in the way that the module allows."""
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
    """The function that swaps the score of this module, or None if there is no way."""
    module = case.module
    if isinstance(getattr(module, "score", None), Score):
        return in_regard
    if type(module) is nn.MultiheadAttention and case.place.module:
        return in_torch
    return in_hugging_face if hugging_face_layer(case) else None


def in_regard(case: RemedyCase, score: Score | str) -> tuple[Callable[[], None], str]:
    """Swap the score of a module of regard: the innermost one, behind projections and norms."""
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
    """Replace a module of torch by regard's, which takes over its parameters."""
    before = case.module
    assert isinstance(before, nn.MultiheadAttention)
    after = from_torch(before, score)
    # A module may be registered at several places: all of them have to get the new one.
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
    """The transformers model and the name of the layer in it, or None if the call is in neither."""
    if "transformers" not in sys.modules:  # then no part of the model comes from it
        return None
    from transformers import PreTrainedModel

    from regard.integrations.transformers import attention_layers

    for part in case.model.modules():
        if not isinstance(part, PreTrainedModel):
            continue
        try:
            layers = attention_layers(part)
        except ValueError:  # no layer of this part calls the interface; a part inside it may
            continue
        for layer in layers:
            if layer.module is case.module:
                return part, layer.name
    return None


def in_hugging_face(case: RemedyCase, score: Score | str) -> tuple[Callable[[], None], str]:
    """Swap the score of a layer of transformers, by the attention interface of its model.

    All layers of the model then run through that interface.
    """
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
