"""`Remedy` and `RemedyCase`: the base class of remedies, what they are applied to, and shared helpers.

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
from regard.doctor.remedies.intervene import changes_in, module_at, put, take_away
from regard.doctor.remedies.locate import LocatedCall, locate, sides_of
from regard.doctor.remedies.projections import scale_rows
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.vitals import INDEX

# Signs of a softmax that is too sharp: the vital, and whether it is too large (True) or too small.
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
# Signs of a single key or query whose norm is far above all others.
LOUD = frozenset({"key_spread", "c50", "query_spread"})


@dataclass(frozen=True)
class RemedyCase:
    """A finding together with its model, its attention call and a batch.

    Attributes:
        model: the model to treat.
        site: the doctor's name of the attention call.
        call: the place of the call, and its tensors on the batch.
        finding: the finding to treat.
        vitals: (H, V), exact vitals of the call before treatment.
        batch: the batch that the model is run on.
    """

    model: nn.Module
    site: str
    call: LocatedCall
    finding: Finding
    vitals: Tensor
    batch: Any

    @property
    def place(self) -> ChangePlace:
        """The place of the call."""
        return self.call.place

    @property
    def module(self) -> nn.Module:
        """The module that makes the call."""
        return module_at(self.model, self.place.module)

    @property
    def heads(self) -> list[int]:
        """The heads that the finding names; all heads if it names none."""
        return list(self.finding.heads) or list(range(self.place.heads))

    def vital(self, name: str) -> Tensor:
        """A vital (H,) before treatment."""
        return self.vitals[:, INDEX[name]]

    def sides(self) -> tuple[Tensor, Tensor]:
        """Query (B, H, Q, D) and key (B, K, L, D) before treatment, in fp32 or wider.

        For pairwise scores these are a and b.
        """
        return sides_of(self.call)

    def look(self) -> tuple[Tensor, Tensor]:
        """`sides` of the model as it is now."""
        return sides_of(self.again())

    def again(self) -> LocatedCall:
        """The call of the model as it is now."""
        return locate(self.model, self.batch, self.site)[self.site]

    def like(self) -> dict[str, Any]:
        """Device and dtype for a new parameter of the module, as keyword arguments of `to`."""
        # A module without float parameters leaves the dtype alone; the device comes from the call.
        for x in self.module.parameters():
            if x.is_floating_point():
                return {"device": x.device, "dtype": x.dtype}
        query = self.call.seen.query
        return {} if query is None else {"device": query.device}


@dataclass
class Applied:
    """A remedy that has been applied to a model.

    Attributes:
        what: what was done, in one line.
        keeps: how far the model still computes the same function, in one line.
        undo: restores the model.
        parameters: names of the added parameters in the model. An optimizer made before does not
            train them: add them to it, or make a new one.
    """

    what: str
    keeps: str
    undo: Callable[[], None]
    parameters: tuple[str, ...] = field(default=())


class NotApplicable(ValueError):
    """Raised by `Remedy.apply` with the reason why it cannot be applied; nothing was changed."""


class Remedy:
    """Base class of remedies; each subclass has a file of its own.

    Attributes:
        name: the name that findings advise it by.
        does: what it does, in one or two sentences shown to the user.
        source: the paper or measurement it comes from.
        moves: the vitals it improves.
        applies: whether code can apply it; otherwise it is advice for the user.
        changes: the `Change` classes it puts into a model. A saved model names them, and `put_again`
            looks them up here.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    source: ClassVar[str]
    moves: ClassVar[frozenset[str]] = frozenset()
    applies: ClassVar[bool] = True
    changes: ClassVar[tuple[type[Change], ...]] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Options of `treat` for this remedy with their defaults: the keyword arguments of `apply`."""
        taken = inspect.signature(self.apply).parameters.values()
        return {x.name: x.default for x in taken if x.kind is x.KEYWORD_ONLY}

    def refuse(self, finding: Finding) -> str | None:
        """Why it does not help against this disease, or None if it does."""
        advised = any(advice.remedy == self.name for advice in finding.remedies)
        signs = vitals_of(finding)
        if advised or signs & self.moves:
            return None
        return (
            f"{self.name} improves {', '.join(sorted(self.moves))}, but {finding.disease} shows in "
            f"{', '.join(sorted(signs))}"
        )

    def cannot(self, case: RemedyCase) -> str | None:
        """Why it cannot be applied to this call, or None if it can."""
        raise NotImplementedError

    def apply(self, case: RemedyCase, **options: Any) -> Applied:
        """Change the model; raises `NotApplicable` where only trying shows that it does not work."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Its name."""
        return f"<remedy {self.name}>"


def vitals_of(finding: Finding) -> set[str]:
    """The vitals that the signals of a finding are made of."""
    return {signal.made_of for signal in finding.signals}


def too_sharp(finding: Finding) -> bool:
    """Whether the finding is about a softmax that is too sharp for another reason than one loud key."""
    if vitals_of(finding) & LOUD:
        return False
    signs = ((x.made_of, x.above) for x in finding.signals)
    return any(SHARP.get(vital) is above for vital, above in signs)


def loud_key(finding: Finding) -> bool:
    """Whether the finding is about one key with a much larger norm than the others."""
    return finding.disease == "key-norm-hijack" or bool(vitals_of(finding) & {"key_spread", "c50"})


def needs_sides(case: RemedyCase) -> str | None:
    """Why query and key of the call cannot be changed, or None."""
    seen, place = case.call.seen, case.place
    if not all(x.isfinite().all() for x in (seen.query, seen.key) if x is not None):
        return f"queries or keys of {case.site} hold NaN or Inf already; treat that first"
    if seen.pairwise is not None:
        return f"{case.site} has a pairwise score: there is no inner product of query and key"
    if place.route == "softmax" and (place.product is None or seen.query is None):
        return (
            f"{case.site} is attention written out whose query and key do not meet in one plain "
            "product, so they cannot be identified"
        )
    if place.route == "regard" and case.call.own_terms:
        return f"the score of {case.site} has terms of query or key beside the inner product"
    return None


def named(heads: list[int]) -> str:
    """Heads as text: "head 3" or "heads 0, 2"."""
    return f"head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}"


def put_change(
    case: RemedyCase, name: str, change: Change, place: ChangePlace | None = None
) -> tuple[Callable[[], None], tuple[str, ...]]:
    """Put a change at the call, or at `place`.

    Returns the function that undoes it, and the names of its parameters in the model.
    """
    place = case.place if place is None else place
    if place.route not in ROUTES:
        raise NotApplicable(f"{case.site} is a call of {place.route}, which cannot be changed")
    # The other changes act on tensors, which FlexAttention takes as arguments. Its logits and mask
    # exist only inside its kernel, made by functions that the model compiles.
    if place.route == "flex" and not (change.softcap is None and change.mask is None):
        raise NotApplicable(
            f"{case.site} is FlexAttention, whose logits and mask are computed by the model's own "
            "functions: write cap * tanh(score / cap) into its score_mod, or the mask into its "
            "mask_mod"
        )
    parallel = isinstance(case.model, nn.parallel.DistributedDataParallel)
    if parallel and any(True for _ in change.parameters()):
        raise NotApplicable(
            "DistributedDataParallel does not synchronise parameters that are added later: treat "
            "model.module, and wrap it again"
        )
    module = module_at(case.model, place.module)
    if any(type(x) is type(change) and x.place == place for _, x in changes_in(module)):
        raise NotApplicable(
            f"{case.site} has {name.replace('_', '-')} already, and a second one would act on the first: "
            "undo that treatment, or take another remedy"
        )
    # `put` swaps the class of the module; a forward set on the object hides that of the class.
    if "forward" in vars(module):
        raise NotApplicable(
            f"the forward of {place.module or 'the model'} was replaced on the object itself, as "
            "hooks of other libraries do: remove that, treat, and put it back"
        )
    key = put(case.model, place, name, change)
    # By identity: the names in the model depend on where the module is, not on the change.
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
    """Put `change(*arguments)` at each place; returns the function that undoes all of them."""
    undo = ExitStack()
    with undone_by_error(undo.close):
        for place in places:
            undo.callback(put_change(case, name, change(*arguments), place)[0])
    return undo.close


def fold(case: RemedyCase, on_query: Tensor, on_key: Tensor) -> Callable[[], None] | None:
    """Scale the weights that project to query (H,) and key (K,) in place.

    Returns the function that undoes it; None if no weights scale exactly these.
    """
    return scale_rows(case.module, case.call, on_query, on_key, case.look)


def for_heads(case: RemedyCase, values: Tensor, others: Tensor) -> Tensor:
    """(H,): `values` for the heads of the finding, `others` for the rest."""
    sick = torch.zeros(case.place.heads, dtype=torch.bool, device=values.device)
    sick[case.heads] = True
    return torch.where(sick, values, others)
