"""Gradients arrive: after one backward every trained projection of an attention call has one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import BACKWARD, SEED, LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.layout import tensors_in
from regard.doctor.laws.passes import Key, Listening
from regard.doctor.laws.recording import Recorder
from regard.doctor.running import call

ADVICE = (
    "look for detach(), .data, torch.no_grad() or inference_mode() between the projection and the loss",
    "an output layer or gate that is zero and frozen passes nothing back",
    "freeze on purpose with requires_grad_(False): then this is no finding",
)
SOURCE = "a gradient that is exactly zero, or none"
# A standard deviation for weights that are exactly zero: usual initialisations have about this one.
JITTER = 0.02
NAMES = ("query", "key", "value")


class Dead(NamedTuple):
    """What gets no gradient at one call."""

    site: str
    parts: tuple[str, ...]


class GradientPass(Listening):
    """A pass that keeps the sides of attention calls with their graph."""

    def __init__(self, streams: Any) -> None:
        super().__init__(streams)
        self.kept: dict[tuple[str, str], Tensor] = {}

    def side(self, site: str, what: str, x: Tensor) -> None:
        """Keep a side."""
        if what in NAMES:
            self.kept[site, what] = x

    def event(self, key: Key, x: Tensor) -> None:
        """Other tensors are not needed."""


def test(law: Law, bench: LawBench) -> Ruling:
    """One backward of a random sum of the outputs, in evaluation mode; twice where something is zero."""
    if not bench.calls:
        return law.skipped("no attention was seen")
    if not any(x.requires_grad for x in bench.model.parameters()):
        return law.skipped("all weights are frozen")
    try:
        dead = dead_parts(bench, jitter=False)
        again = dead
        if dead and has_zeros(bench.model):
            again = dead_parts(bench, jitter=True)
    except RuntimeError as error:
        return law.skipped(f"backward failed: {' '.join(str(error).split())[:120]}")
    if dead is None or again is None:
        return law.skipped("the output carries no gradient at all: the whole forward is without")
    sites = {x.site for x in dead} - {x.site for x in again}
    if not again:
        why = f"query, key and value of {len(bench.calls)} attention calls, and their weights"
        starts = f"; behind weights that start at zero: {', '.join(sorted(sites)[:3])}"
        return law.held(why + (starts if sites else ""))
    first = again[0]
    line = bench.calls[first.site].code
    where = f"{first.site}{f' ({line})' if line else ''}"
    said = f"After a backward these have no gradient at {where}: {', '.join(first.parts[:6])}."
    said += f" Calls with this: {', '.join(x.site for x in again[:6])}." if len(again) > 1 else ""
    finding = finding_of(
        law, first.site, said, ADVICE, moved=0.0, allowed=0.0, what="largest gradient",
        source=SOURCE, severity=Severity.FAILURE, title="no gradient arrives", above=False,
    )  # fmt: skip
    return law.broken(f"{len(again)} attention calls are cut off from the loss", finding)


def has_zeros(model: nn.Module) -> bool:
    """Whether trained weights hold exact zeros."""
    return any(bool((x == 0).any()) for x in model.parameters() if x.requires_grad)


def dead_parts(bench: LawBench, *, jitter: bool) -> list[Dead] | None:
    """What gets no gradient, by call; None if no output carries one."""
    assert bench.backward < BACKWARD
    listener = GradientPass(bench.base.streams)
    weights = {name: x for name, x in bench.model.named_parameters() if x.requires_grad}
    used = {name: jittered(x) if jitter else x for name, x in weights.items()}
    bench.forward += 1
    bench.backward += 1
    bench.restore()
    torch.manual_seed(SEED)
    with Recorder(bench.model, listener).start(), torch.enable_grad():
        output = call_with(bench, used) if jitter else call(bench.model, bench.batch)
    outputs = [x for _, x in tensors_in(output) if x.requires_grad]
    if not outputs:
        return None
    loss = sum(((x.float() * torch.randn_like(x.float())).sum() for x in outputs), torch.zeros(()))
    sides = {key: x for key, x in listener.kept.items() if x.requires_grad}
    wanted = [*used.values(), *sides.values()]
    got = torch.autograd.grad(loss, wanted, allow_unused=True)
    alive = [g is not None and bool((g != 0).any()) for g in got]
    of_weights = dict(zip(used, alive[: len(used)], strict=True))
    unused = {name for name, g in zip(used, got, strict=False) if g is None}
    of_sides = dict(zip(sides, alive[len(used) :], strict=True))
    found = []
    for site in bench.calls:
        parts = [
            *dead_sides(bench, listener, of_sides, site),
            *dead_weights(bench, listener, of_weights, unused, site),
        ]
        if parts:
            found.append(Dead(site, tuple(parts)))
    return [x for x in found if not elsewhere(bench, of_sides, x)]


def elsewhere(bench: LawBench, alive: dict[tuple[str, str], bool], dead: Dead) -> bool:
    """Whether the same module passes these gradients on in another of its calls.

    A decoder of two streams leaves the first one's last call without use.
    """
    path = bench.calls[dead.site].path
    if path == bench.root:  # all layers of attention that is written in the model itself
        return False
    others = [site for site, made in bench.calls.items() if made.path == path and site != dead.site]
    return any(all(alive.get((site, part)) is True for part in dead.parts) for site in others)


def call_with(bench: LawBench, weights: dict[str, Tensor]) -> Any:
    """The output with other weights, which the model has only during this call."""
    given = bench.batch
    if isinstance(given, Tensor):
        given = (given,)
    args, kwargs = ((), given) if hasattr(given, "items") else (tuple(given), {})
    return torch.func.functional_call(bench.model, weights, args, dict(kwargs))


def jittered(x: Tensor) -> Tensor:
    """A copy of a weight whose exact zeros are small numbers."""
    generator = torch.Generator(device=x.device).manual_seed(SEED)
    noise = JITTER * torch.randn(x.shape, generator=generator, device=x.device)
    return torch.where(x.detach() == 0, noise.to(x.dtype), x.detach()).requires_grad_()


def dead_sides(
    bench: LawBench, listener: GradientPass, alive: dict[tuple[str, str], bool], site: str
) -> list[str]:
    """The sides of a call without a gradient, unless they are frozen on purpose."""
    facts, module = bench.facts.get(site), bench.modules.get(bench.calls[site].path)
    # With one visible key the weights are 1 whatever query and key are.
    names = NAMES if facts is not None and facts.visible else ("value",)
    weights = [] if module is None else list(module.parameters())
    trained = bool(weights) and all(x.requires_grad for x in weights)
    dead = []
    for what in names:
        if (site, what) not in listener.kept:
            continue
        cut = (site, what) not in alive
        if (cut and trained) or alive.get((site, what)) is False:
            dead.append(what)
    return dead


def dead_weights(
    bench: LawBench, listener: GradientPass, alive: dict[str, bool], unused: set[str], site: str
) -> list[str]:
    """The matrices below the module of a call that ran and have no gradient.

    Vectors are left out: the gradient of a key's bias is zero, for softmax does not see a shift.
    """
    path = bench.calls[site].path
    facts = bench.facts.get(site)
    if path == bench.root or path not in bench.modules:
        return []
    if facts is None or not facts.visible:
        return []
    dead = []
    for name, x in bench.modules[path].named_parameters():
        whole = f"{path}.{name}"
        owner = whole.rpartition(".")[0]
        # Of a weight of the module itself it is not known whether it was used at all.
        ran = whole not in unused if owner == path else listener.counts[owner] > 0
        if x.ndim > 1 and ran and alive.get(whole) is False:
            dead.append(whole)
    return dead


LAW = Law(
    "gradients-arrive",
    "gradients arrive",
    "Every trained projection of an attention call gets a gradient, and query, key and value pass it on.",
    test,
)
