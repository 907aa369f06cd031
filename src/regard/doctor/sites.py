"""`find_sites`: every attention call of one run of a model, with the plan of how it runs.

The routes are those of `capture`. A call of ours is told with its score and its `engine=`; for torch's SDPA
torch is asked which of its backends runs, and why not the others.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention import explain
from regard.doctor.capture import Active, Capture, Mode
from regard.doctor.capture.capture import FUSED_OFF
from regard.doctor.capture.mode import sdpa_arguments
from regard.doctor.chart import Chart, Ticket
from regard.doctor.running import undisturbed
from regard.doctor.seen import Seen
from regard.engines.edge_plan import explain_edges
from regard.engines.edges.call import EdgeCall
from regard.engines.plan import Plan, make_plan
from regard.explaining import Site, Sites
from regard.mask import Mask
from regard.observed import EDGE_LISTENERS, LISTENERS, WATCHERS
from regard.problem import Problem
from regard.scores import Score, named_score

# The backends besides math, in the order of their names here.
FUSED = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
FAST_PATH = (
    "in evaluation without gradients torch may run the whole layer as one fused kernel instead, which it "
    "does not do while anything watches"
)
WRITTEN_OUT = "it is written out as products and a softmax, which builds the Q x L weights"
NEED_WEIGHTS = (
    "need_weights=False lets torch's MultiheadAttention call SDPA, which has fused kernels"
)


class SiteChart(Chart):
    """A chart that measures nothing and hands the calls to a function: path, route, what was seen."""

    def __init__(self, tell: Callable[[str, str, Seen], None]) -> None:
        super().__init__()
        self.tell = tell

    def record(self, module: str, route: str, seen: Seen) -> Ticket | None:
        """Hand over a call; there are no gradients to read."""
        self.tell(module, route, seen)
        return None


class SiteMode(Mode):
    """The capture's mode, which also hands over calls of torch's SDPA as they were made."""

    def __init__(self, capture: Capture, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(capture)
        self.tell = tell

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Hand over SDPA, then do what the capture does."""
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention" and self.capture.looking():
            self.tell(sdpa_arguments(args, kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class Finder:
    """Collects the sites of one run."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.found = module, Sites()
        self.chart = SiteChart(self.of_route)
        self.capture = Capture(module, self.chart)

    def run(self, inputs: tuple, kwargs: dict[str, Any]) -> Sites:
        """Run the module once, watched, and put everything back."""
        capture = self.capture
        with ExitStack() as undo, torch.no_grad(), undisturbed(self.module):
            capture.hook()
            undo.callback(capture.unhook)
            capture.active = Active(SiteMode(capture, self.of_sdpa))
            undo.callback(capture.active.close)
            WATCHERS.append(capture)
            undo.callback(WATCHERS.remove, capture)
            LISTENERS.append(self.of_regard)
            undo.callback(LISTENERS.remove, self.of_regard)
            EDGE_LISTENERS.append(self.of_edges)
            undo.callback(EDGE_LISTENERS.remove, self.of_edges)
            self.module(*inputs, **kwargs)
        fused = self.chart.notes.get(FUSED_OFF, [])
        return Sites(self.with_fast_path(site, fused) for site in self.found)

    def of_regard(self, problem: Problem, score: Score | str | None, engine: str | None) -> None:
        """A call of `regard.attention`, before its engine runs."""
        if self.capture.looking():
            self.add("regard", make_plan(problem, named_score(score), engine))

    def of_edges(self, call: EdgeCall, score: Score) -> None:
        """A call over the edges of a graph, before it runs."""
        if self.capture.looking():
            self.add("edges", explain_edges(call, score))

    def of_sdpa(self, given: dict[str, Any]) -> None:
        """A call of torch's SDPA, before it runs."""
        self.add("sdpa", sdpa_plan(given))

    def of_route(self, path: str, route: str, seen: Seen) -> None:
        """A call that the capture found: those that are told otherwise are left out here."""
        if route == "flex":
            notes = ["torch compiles it with its score_mod and mask_mod"]
            self.add("flex", torch_plan("torch:flex_attention", "FlexAttention", notes=notes))
        elif route == "softmax":
            notes = [WRITTEN_OUT]
            # The model itself has its class name as path.
            owner = dict(self.module.named_modules()).get(path, self.module)
            notes += [NEED_WEIGHTS] if isinstance(owner, nn.MultiheadAttention) else []
            self.add("softmax", torch_plan("torch:written_out", "softmax", notes=notes))

    def add(self, kind: str, plan: Plan) -> None:
        """Keep a call: one that ran like an earlier one of its path is counted there."""
        path = self.capture.stack[-1].name
        for i, site in enumerate(self.found):
            bound = max(site.plan.error_bound, plan.error_bound)
            same = replace(site.plan, error_bound=0.0) == replace(plan, error_bound=0.0)
            if (site.path, site.kind) == (path, kind) and same:
                kept = replace(site.plan, error_bound=bound)
                self.found[i] = replace(site, plan=kept, calls=site.calls + 1)
                return
        self.found.append(Site(path, kind, plan))

    def with_fast_path(self, site: Site, fused: list[str]) -> Site:
        """The site, with a note if torch may leave its call out in evaluation."""
        inside = any(site.path == path or site.path.startswith(f"{path}.") for path in fused)
        if site.kind in ("regard", "edges") or not inside:
            return site
        return replace(site, plan=replace(site.plan, notes=[*site.plan.notes, FAST_PATH]))


def find_sites(module: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> Sites:
    """The sites of a module, in the order of their first call in `module(*inputs, **kwargs)`."""
    return Finder(module).run(inputs, kwargs)


def torch_plan(engine: str, score: str, **fields: Any) -> Plan:
    """The plan of a call that torch runs; its form and bound are not known unless given."""
    known: dict[str, Any] = {"form": "torch's", "error_bound": math.nan} | fields
    return Plan(engine=engine, score=score, **known)


def sdpa_plan(given: dict[str, Any]) -> Plan:
    """Which backend of torch runs a call of SDPA, why the others do not, and what regard would do."""
    names = [name for name in FUSED if hasattr(SDPBackend, name)]
    # On the CPU there are two: the fused kernel that torch calls flash attention, and math.
    names = names if given["query"].is_cuda else names[:1]
    chosen = choice(given)
    refused, also = {}, []
    for name in names:
        backend = getattr(SDPBackend, name)
        if backend != chosen:
            reasons = reasons_against(backend, given)
            refused |= {short(backend): reasons} if reasons else {}
            also += [] if reasons else [short(backend)]
    also += [] if chosen == SDPBackend.MATH else [short(SDPBackend.MATH)]
    fields: dict[str, Any] = {"refused": refused, "also": also}
    ours = own_plan(given)
    if ours is not None:
        note = f"regard.attention would run this call with engine {ours.engine!r}"
        fields |= {"form": ours.form, "error_bound": ours.error_bound, "notes": [note]}
    return torch_plan(short(chosen), "scaled_dot", **fields)


def short(backend: SDPBackend | None) -> str:
    """The name of a backend as an engine; torch's SDPA itself where torch does not tell."""
    return "torch:sdpa" if backend is None else f"torch:{backend.name.lower()}"


def choice(given: dict[str, Any]) -> SDPBackend | None:
    """The backend that torch picks, None where it does not tell (nested tensors, other devices)."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    try:
        return SDPBackend(
            torch._fused_sdp_choice(**{name: given[name] for name in names if name in given})
        )
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def reasons_against(backend: SDPBackend, given: dict[str, Any]) -> list[str]:
    """What torch warns of when it may use this backend alone; empty if it would run."""
    with warnings.catch_warnings(record=True) as said, sdpa_kernel([backend]):
        warnings.simplefilter("always")
        if choice(given) == backend:
            return []
    found = [re.sub(r"\s*\(Triggered internally.*", "", str(x.message), flags=re.S) for x in said]
    kept = [x for x in found if not x.endswith("because:") and "disabled" not in x]
    return list(dict.fromkeys(kept)) or ["torch does not pick it for this call"]


def own_plan(given: dict[str, Any]) -> Plan | None:
    """What `regard.attention` would do with the tensors of a call of SDPA, None where it takes no such call."""
    query, mask = given["query"], given.get("attn_mask")
    options: dict[str, Any] = {"dropout": given.get("dropout_p", 0.0)}
    if given.get("is_causal"):
        options["mask"] = Mask.causal("top_left")
    try:
        if isinstance(mask, Tensor):
            whole = mask.reshape(*[1] * (query.ndim - mask.ndim), *mask.shape)
            options["mask" if mask.dtype == torch.bool else "bias"] = whole
        if scale := given.get("scale"):
            options["temperature"] = query.shape[-1] ** -0.5 / scale
        return explain(query, given["key"], given["value"], **options)
    except (ValueError, TypeError, RuntimeError):
        return None
