"""The evidence for a diagnosis: the numbers of every site, and what the model declares.

Shape legend: S steps, H heads, V vitals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.capture.names import named_modules
from regard.doctor.facts import Facts
from regard.nn.position import Sinusoidal

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

# Names of tables of positions: "pe", "wpe", "pos_embed", "embed_positions", but not "post_norm".
POSITIONS = re.compile(r"(^|_)(w?pe|pos|posit[a-z]*)(_|$)")
# The gradient at queries or keys, whichever is larger, over the gradient at the values.
GRADIENT_SHARE = "query_grad / value_grad"
NOTHING_ASKED: Mapping[str, str] = MappingProxyType({})
# A share of 1, up to rounding.
ALL_ALIKE = 1 - 1e-6


class Declared(NamedTuple):
    """What a model declares about one attention call.

    Attributes:
        causal: the attribute `is_causal` of the module, as in Hugging Face models; None without it.
        frozen: whether some parameters of the module do not require gradients; of the nearest module around
            it with parameters, where it has none.
        starts_at_zero: whether a trained weight of the model is all zero, as adapters and gates begin.
        fixed_positions: whether the model adds positions that cannot learn.
        position_size: root mean square of the model's largest table of positions, None without one.
    """

    causal: bool | None = None
    frozen: bool = False
    fixed_positions: bool = False
    position_size: float | None = None
    starts_at_zero: bool = False


class Evidence(NamedTuple):
    """The numbers of one site.

    Attributes:
        name: the name of the site.
        module: the path of its module.
        route: how it was captured.
        steps: the steps that are kept, oldest first.
        values: (S, H, V); NaN for what was not measured.
        vitals: names of the columns.
        facts: sizes and options of the last call, None where nothing is known.
        declared: what the model declares about it.
        asked: as `WatchedSite.asked`.
    """

    name: str
    module: str
    route: str
    steps: list[int]
    values: Tensor
    vitals: tuple[str, ...]
    facts: Facts | None = None
    declared: Declared = Declared()
    asked: Mapping[str, str] = NOTHING_ASKED

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.values.shape[1]

    def fewer_than(self, count: int) -> bool:
        """Whether the call is known to have fewer queries or keys than `count`."""
        return self.facts is not None and min(self.facts.queries, self.facts.keys) < count

    def of(self, vital: str) -> Tensor:
        """The values of a vital, (S, H); NaN where it is unknown."""
        if vital not in self.vitals:
            return self.values.new_full(self.values.shape[:2], torch.nan)
        return self.values[..., self.vitals.index(vital)]

    def now(self, vital: str) -> Tensor:
        """The last measured values of a vital, (H,)."""
        return filled(self.of(vital))[-1] if self.steps else self.values.new_zeros(0)


def filled(values: Tensor) -> Tensor:
    """(S, H) with NaN replaced by the last number before it: steps measure different levels."""
    known = ~values.isnan()
    place = torch.arange(values.shape[0], device=values.device)[:, None].expand_as(values)
    last = torch.where(known, place, 0).cummax(0).values if values.shape[0] else place
    return values.gather(0, last)


def gradient_share(of: Callable[[str], Tensor]) -> Tensor:
    """`GRADIENT_SHARE`, (S, H) or (H,), from a function that gives vitals by name."""
    largest = torch.maximum(of("query_grad"), of("key_grad"))
    # An infinite gradient stands for NaN or Inf, of which a ratio says nothing.
    return largest.masked_fill(largest.isinf(), torch.nan) / of("value_grad")


def tokens_differ(sites: Sequence[Evidence]) -> bool:
    """Whether the tokens of the input differ, as far as the first site shows.

    The same token everywhere, as in a first try with `torch.ones`, says nothing about the model.
    """
    if not sites:
        return False
    # The cheap level does not read values; there, equal keys show as logits that do not vary.
    varied = sites[0].now("logit_var") / sites[0].now("logit_bound").square()
    alike = (sites[0].now("value_alike") > ALL_ALIKE) | (varied < 1 - ALL_ALIKE)
    return not bool(alike.all())


def sequences_differ(sites: Sequence[Evidence]) -> bool:
    """Whether the sequences of a batch differ, as far as the first site shows."""
    return len(sites) > 0 and not bool((sites[0].now("value_place") > ALL_ALIKE).any())


def evidence(doctor: Doctor) -> list[Evidence]:
    """The evidence of every site that was measured, in the order of the forward pass."""
    modules = {
        name or type(module).__name__: module for name, module in named_modules(doctor.model)
    }
    model = doctor.model
    of_model = Declared(
        fixed_positions=has_fixed_positions(model),
        position_size=position_size(model),
        starts_at_zero=any(starts_at_zero(*named) for named in model.named_parameters()),
    )
    found = []
    for site in doctor.chart.order:
        steps, values = doctor.history(site.name)
        if not steps or not site.heads:
            continue
        found.append(
            Evidence(
                site.name,
                site.module,
                site.route,
                steps,
                values,
                doctor.vitals,
                site.facts,
                declared_by(modules, site.module, of_model),
                site.asked,
            )
        )
    return found


def declared_by(modules: Mapping[str, nn.Module], path: str, of_model: Declared) -> Declared:
    """What a module declares, beside what its model does."""
    module = modules.get(path)
    causal = getattr(module, "is_causal", None)
    causal = causal if isinstance(causal, bool) else None
    parameters = [] if module is None else list(module.parameters())
    while not parameters and "." in path:  # a module that only attends: the one around it projects
        path = path.rpartition(".")[0]
        parameters = list(modules[path].parameters()) if path in modules else []
    frozen = not all(x.requires_grad for x in parameters)
    return of_model._replace(causal=causal, frozen=frozen)


def starts_at_zero(name: str, x: Tensor) -> bool:
    """Whether a weight that is trained is all zero; biases usually are."""
    if not x.requires_grad or x.is_meta or name.endswith("bias"):
        return False
    return x.numel() > 0 and not bool(x.detach().any())


def position_tables(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that hold positions, recognised by their names.

    A table has at least two dims; the frequencies of rotary positions have one.
    """
    for name, x in (*model.named_buffers(), *model.named_parameters()):
        named = any(POSITIONS.search(word) for word in name.lower().split(".")[-2:])
        if named and x.is_floating_point() and x.ndim > 1:
            yield name, x


def has_fixed_positions(model: nn.Module) -> bool:
    """Whether the model has sinusoids, or a table of positions that does not learn."""
    if any(isinstance(x, Sinusoidal) and not list(x.parameters()) for x in model.modules()):
        return True
    return any(not x.requires_grad for _, x in position_tables(model))


def position_size(model: nn.Module) -> float | None:
    """Root mean square of the largest table of positions, None without one."""
    found = [float(x.detach().float().square().mean().sqrt()) for _, x in position_tables(model)]
    for module in model.modules():
        if isinstance(module, Sinusoidal):
            # A sine of amplitude a has the root mean square a / sqrt(2).
            found.append(abs(float(module.amplitude)) / 2**0.5)
    return max(found, default=None)
