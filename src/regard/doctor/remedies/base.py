"""What a remedy is: what it does, which diseases it does not fit, where it cannot go, how it is applied.

Shape legend: H query heads, K key heads, V vitals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.change import ROUTES, Change, ChangePlace
from regard.doctor.remedies.intervene import module_at, put, take_away
from regard.doctor.remedies.locate import LocatedCall, locate, sides_of
from regard.doctor.remedies.projections import scale_rows
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.vitals import INDEX

# Signs of a softmax that is too sharp: vital, and whether it is too large then.
SHARP = {
    "logit_max": True,
    "logit_var": True,
    "logit_bound": True,
    "max_weight": True,
    "entropy": False,
    "jacobian": False,
    "query_grad": False,
    "key_grad": False,
}
# Signs of one key, or query, that is louder than all others.
LOUD = frozenset({"key_spread", "c50", "query_spread"})


@dataclass(frozen=True)
class RemedyCase:
    """A finding in its model, with the call it is about.

    Attributes:
        model: the patient.
        site: the attention call by the doctor's name.
        call: where it is, and its tensors on the batch.
        finding: what was found.
        vitals: (H, V), exact, of the call before treatment.
        batch: what the model is run on.
    """

    model: nn.Module
    site: str
    call: LocatedCall
    finding: Finding
    vitals: Tensor
    batch: Any

    @property
    def place(self) -> ChangePlace:
        """Of the call."""
        return self.call.place

    @property
    def module(self) -> nn.Module:
        """That makes the call."""
        return module_at(self.model, self.place.module)

    @property
    def heads(self) -> list[int]:
        """The sick heads; all where the finding names none."""
        return list(self.finding.heads) or list(range(self.place.heads))

    def vital(self, name: str) -> Tensor:
        """(H,) before treatment."""
        return self.vitals[:, INDEX[name]]

    def sides(self) -> tuple[Tensor, Tensor]:
        """Query (B, H, Q, D) and key (B, K, L, D), fp32 at least; of pairwise scores a and b."""
        return sides_of(self.call)

    def look(self) -> tuple[Tensor, Tensor]:
        """The same as the model has them now."""
        return sides_of(self.again())

    def again(self) -> LocatedCall:
        """The call as the model makes it now."""
        return locate(self.model, self.batch, self.site)[self.site]

    def like(self) -> dict[str, Any]:
        """Device and dtype for a new parameter of the module."""
        for x in self.module.parameters():
            if x.is_floating_point():
                return {"device": x.device, "dtype": x.dtype}
        query = self.call.seen.query
        return {} if query is None else {"device": query.device}


@dataclass
class Applied:
    """A remedy in place.

    Attributes:
        what: what was done, in one line.
        keeps: what is left of the function the model had, in one line.
        undo: puts everything back.
        parameters: those that were added, by their names in the model: make the optimizer anew, or
            add them to it.
    """

    what: str
    keeps: str
    undo: Callable[[], None]
    parameters: tuple[str, ...] = field(default=())


class NotApplicable(ValueError):
    """Why a remedy cannot be applied after all; nothing was changed."""


class Remedy:
    """A remedy; one file for each subclass.

    Attributes:
        name: what advice calls it.
        does: one or two sentences.
        source: where it comes from.
        moves: the vitals that it is for.
        applies: whether code applies it; else it is a text, and the user has to do it.
        changes: the classes of `Change` that it puts into a model. A saved model names them, and
            `put_again` finds them here.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    source: ClassVar[str]
    moves: ClassVar[frozenset[str]] = frozenset()
    applies: ClassVar[bool] = True
    changes: ClassVar[tuple[type[Change], ...]] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What `treat` may be given for it, by name with its default: what `apply` takes."""
        taken = inspect.signature(self.apply).parameters.values()
        return {x.name: x.default for x in taken if x.kind is x.KEYWORD_ONLY}

    def refuse(self, finding: Finding) -> str | None:
        """Why it does not help against this disease, or None."""
        advised = any(advice.remedy == self.name for advice in finding.remedies)
        signs = vitals_of(finding)
        if advised or signs & self.moves:
            return None
        return (
            f"{self.name} is for {', '.join(sorted(self.moves))}, and {finding.disease} shows in "
            f"{', '.join(sorted(signs))}"
        )

    def cannot(self, case: RemedyCase) -> str | None:
        """Why it cannot be applied to this call, or None."""
        raise NotImplementedError

    def apply(self, case: RemedyCase, **options: Any) -> Applied:
        """Apply it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Its name."""
        return f"<remedy {self.name}>"


def vitals_of(finding: Finding) -> set[str]:
    """The vitals of its signals."""
    return {signal.made_of for signal in finding.signals}


def too_sharp(finding: Finding) -> bool:
    """Whether the complaint is a softmax that is too sharp, and not because of one loud key."""
    if vitals_of(finding) & LOUD:
        return False
    signs = ((x.made_of, x.above) for x in finding.signals)
    return any(SHARP.get(vital) is above for vital, above in signs)


def loud_key(finding: Finding) -> bool:
    """Whether the complaint is one key that is louder than the others."""
    return finding.disease == "key-norm-hijack" or bool(vitals_of(finding) & {"key_spread", "c50"})


def needs_sides(case: RemedyCase) -> str | None:
    """Why query and key of the call cannot be changed, or None."""
    seen, place = case.call.seen, case.place
    if not all(x.isfinite().all() for x in (seen.query, seen.key) if x is not None):
        return f"queries or keys of {case.site} hold NaN or Inf before anything is done with them"
    if seen.pairwise is not None:
        return f"{case.site} scores pairs by a small network: there is no inner product"
    if place.route == "softmax" and (place.product is None or seen.query is None):
        return (
            f"{case.site} is attention written out, whose query and key do not meet in one plain "
            "product: they cannot be told"
        )
    if place.route == "regard" and case.call.own_terms:
        return f"{case.site} has a score with terms of its own beside the inner product"
    return None


def named(heads: list[int]) -> str:
    """Heads by number."""
    return f"head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}"


def put_change(
    case: RemedyCase, name: str, change: Change, place: ChangePlace | None = None
) -> tuple[Callable[[], None], tuple[str, ...]]:
    """Put a change at the call, or at `place`; gives what undoes it and its parameters' names."""
    place = case.place if place is None else place
    if place.route not in ROUTES:
        raise NotApplicable(f"{case.site} is a call of {place.route}, which cannot be changed")
    if place.route == "flex" and not (change.softcap is None and change.mask is None):
        raise NotApplicable(
            f"{case.site} is FlexAttention, whose logits and mask are functions of the model's own: "
            "write cap * tanh(score / cap) into its score_mod, or the mask into its mask_mod"
        )
    parallel = isinstance(case.model, nn.parallel.DistributedDataParallel)
    if parallel and any(True for _ in change.parameters()):
        raise NotApplicable(
            "DistributedDataParallel does not synchronise parameters added later: treat the model "
            "inside, model.module, and wrap it again"
        )
    module = module_at(case.model, place.module)
    if "forward" in vars(module):
        raise NotApplicable(
            f"the forward of {place.module or 'the model'} was replaced on the object itself, as "
            "hooks of other libraries do: take that off, treat, and put it on again"
        )
    key = put(case.model, place, name, change)
    own = {id(x) for x in change.parameters()}
    names = tuple(name for name, x in case.model.named_parameters() if id(x) in own)
    return lambda: take_away(case.model, module, key), names


def put_each(
    case: RemedyCase,
    name: str,
    change: type[Change],
    places: Iterable[ChangePlace],
    *arguments: Any,
) -> Callable[[], None]:
    """Put a change of this class, made of `arguments`, at each place; gives what undoes all."""
    undo = ExitStack()
    with undone_by_error(undo.close):
        for place in places:
            undo.callback(put_change(case, name, change(*arguments), place)[0])
    return undo.close


def fold(case: RemedyCase, on_query: Tensor, on_key: Tensor) -> Callable[[], None] | None:
    """Scale the weights that make query and key, where there are some that do just that."""
    return scale_rows(case.module, case.call, on_query, on_key, case.look)


def for_heads(case: RemedyCase, values: Tensor, others: Tensor) -> Tensor:
    """`values` (H,) for the sick heads, `others` (H,) for the rest."""
    sick = torch.zeros(case.place.heads, dtype=torch.bool, device=values.device)
    sick[case.heads] = True
    return torch.where(sick, values, others)
