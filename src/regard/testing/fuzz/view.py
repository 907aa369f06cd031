"""A module seen as attributes with other numbers in place of its parameters.

Textbook formulas read `score.weight`, `score.score.v` and so on. A `View` answers with the fp64 (or
perturbed) copy of the parameter, so that one module object serves every precision without a deepcopy.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from regard.testing import scores, wrappers
from regard.testing.cases import Formula
from regard.testing.fuzz.textbook import NOISE


def additive(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`sum_h v_h tanh(a_h + b_h + bias_h)`.

    Under `textbook.noisy` every tanh and its slope err by eps of 1: engines build tanh of exponentials, and the
    slope as a difference from 1, whose errors are absolute.
    """
    hidden, v = scores.hidden_units(score, q, k)
    unit = torch.tanh(hidden)
    if NOISE:
        eps, generator = NOISE[-1]
        signs = 2.0 * torch.randint(0, 2, (2, *unit.shape), generator=generator) - 1
        unit = unit + eps * signs[0] + eps * signs[1] * (hidden - hidden.detach())
        if score.gain is not None:
            v = v + _rounded_direction(score)[:, None, None, :]
    return (v * unit).sum(-1)


def _rounded_direction(score: Any) -> Tensor:
    """0, whose gradient is the rounding of that of `gain v / |v|`, (H, hidden).

    With u the direction and g what comes in, the gradient of v is `gain (g - u <u, g>) / |v|`: of one unit exactly 0,
    in any case a difference, whose terms err by eps of themselves.
    """
    eps, generator = NOISE[-1]
    own, length = score.v.detach(), score.v.detach().norm(dim=-1, keepdim=True)
    units = (own / length).abs()
    terms = units.unsqueeze(-1) * units.unsqueeze(-2) + torch.eye(own.shape[-1]).to(own)
    signs = 2.0 * torch.randint(0, 2, terms.shape, generator=generator) - 1
    terms = eps * signs * terms * (score.gain.detach()[:, None] / length).unsqueeze(-1)
    return ((score.v - own).unsqueeze(-2) @ terms).squeeze(-2)


def gaussian(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`-|q - k|^2 / (2 h^2)`.

    Under `textbook.noisy` it errs by eps of the squares: it is lowered to `<q, k> - |q|^2 / 2 - |k|^2 / 2`, whose
    terms are larger than their sum where keys lie many bandwidths apart.
    """
    logits = scores.gaussian(score, q, k)
    if not NOISE:
        return logits
    eps, generator = NOISE[-1]
    signs = 2.0 * torch.randint(0, 2, logits.shape, generator=generator) - 1
    squares = q.square().sum(-1).unsqueeze(-1)
    of_keys = k.square().sum(-1)
    squares = squares + scores.grouped(of_keys, q.shape[-3], -2).unsqueeze(-2)
    # About a point amid the keys, which is no further away than the furthest of them.
    squares = squares + 2 * (of_keys.max() if of_keys.numel() else 0)
    width = score.bandwidth or q.shape[-1] ** 0.25
    return logits + (eps * signs * squares).detach() / (2 * width**2)


@functools.lru_cache(maxsize=1)
def bare_formulas() -> dict[str, Formula]:
    """The formula of every score that wraps no other, by the name of its class; from the contract's rows."""
    state = torch.random.get_rng_state()
    built = [(row.build(2, 2, 1, 1), row.formula) for row in wrappers.SCORES.values()]
    torch.random.set_rng_state(state)
    found = {
        type(x).__name__: f
        for x, f in built
        if not isinstance(getattr(x, "score", None), nn.Module)
    }
    noisy: dict[Formula, Formula] = {scores.additive: additive, scores.gaussian: gaussian}
    return {name: noisy.get(f, f) for name, f in found.items()}


class View:
    """Attributes of `module`, its parameters replaced by those of `numbers` under the same names."""

    def __init__(self, module: nn.Module, numbers: dict[str, Tensor], prefix: str = "") -> None:
        self._module: Any = module
        self._numbers, self._prefix = numbers, prefix

    def __getattr__(self, name: str) -> Any:
        """A parameter by its number, a submodule as a view, anything else as it is."""
        module = self._module
        own = module._parameters.get(name)
        if own is not None:
            return self._numbers[self._prefix + name]
        child = module._modules.get(name)
        if child is not None:
            return View(child, self._numbers, f"{self._prefix}{name}.")
        return getattr(module, name)

    def __getitem__(self, index: int) -> View:
        """One of a `ModuleList`."""
        return getattr(self, str(index))


def formula_of(view: View) -> Formula:
    """The textbook formula of a score, wrappers and all."""
    kind = type(view._module).__name__
    if kind in bare_formulas():
        return bare_formulas()[kind]
    inside = formula_of(view.score)
    if kind == "Projected":
        return wrappers.projected(inside)
    if kind == "Tempered":
        return wrappers.tempered(inside)
    if kind == "Normalized":
        layer = type(view.query_norm._module).__name__ == "LayerNorm"
        return (wrappers.layer_normalized if layer else wrappers.rms_normalized)(inside)
    named = {"UnitKeys": wrappers.unit_keys, "ClippedKeys": wrappers.clipped_keys}
    return named.get(kind, wrappers.inside)(inside)


def logits_of(view: View, query: Tensor, key: Tensor) -> Tensor:
    """Raw logits (*, H, Q, L) by the textbook."""
    if query.shape[-1] == 0 and key.shape[-1] == 0:
        # A sum of no terms; formulas would divide by the root of 0.
        heads = query.shape[-3]
        return query.sum(-1).unsqueeze(-1) + scores.grouped(key.sum(-1), heads, -2).unsqueeze(-2)
    return formula_of(view)(view, query, key)
