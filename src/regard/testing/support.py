"""Which calls each engine refuses, written from its documentation and not by asking the engine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import HAS_TRITON
from regard.engines.native import absent
from regard.forms import Inner
from regard.testing.cases import TINY, ScoreRow
from regard.testing.options import MASKS, OPTIONS
from regard.testing.run import Case

ENGINES = ("sdpa", "compiled", "cpu", "triton", "plain", "reference")
# `triton` runs only when asked for: every case would compile its own kernels, or interpret them.
QUICK_ENGINES = ("sdpa", "compiled", "cpu", "plain", "reference")


class EngineCall(NamedTuple):
    """A call of an engine: the case, the statistics wanted, gradients of the bias, and the device."""

    case: Case
    want: tuple[str, ...] = ()
    learn_bias: bool = True
    device: str = "cpu"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the case; their values do not matter here."""
        return OPTIONS[self.case.option](self.case.sizes, lambda *shape: torch.zeros(shape))


def _softcap(call: EngineCall) -> bool:
    return "softcap" in call.options or call.case.score.softcap is not None


def _hard(call: EngineCall) -> bool:
    temperature = call.options.get("temperature", 1.0)
    return not isinstance(temperature, Tensor) and temperature == 0


def _mask_differs(call: EngineCall) -> bool:
    sizes = call.case.sizes
    parts = MASKS[call.case.mask](sizes)
    if parts is None or sizes.queries == 1:
        return False
    by_place = parts.bands or parts.segments or parts.query_lengths is not None
    return bool(by_place) or any(x.shape[-2] != 1 for x in parts.dense)


@functools.lru_cache(maxsize=256)
def activation_of(row: ScoreRow) -> str | None:
    """The activation of a pairwise score; None for an inner score."""
    score, (query_dim, key_dim) = row.make(TINY), row.dims(TINY)
    heads, key_heads = (1, 1) if row.one_input_head else (TINY.heads, TINY.key_heads)
    query, key = torch.ones(1, heads, 2, query_dim), torch.ones(1, key_heads, 2, key_dim)
    form = score.lower(query.double(), key.double())
    return None if isinstance(form, Inner) else form.activation


# Every documented refusal that a case of the tables can run into: the reason, and when it applies.
REFUSALS: dict[str, list[tuple[str, Callable[[EngineCall], bool]]]] = {
    "reference": [],
    "cpu": [("another device", lambda call: call.device != "cpu")],
    "compiled": [
        ("a machine without numba", lambda call: absent() is not None),
        ("another device", lambda call: call.device != "cpu"),
        ("an inner score", lambda call: call.case.score.form == "inner"),
        ("fp64", lambda call: call.case.dtype == torch.float64),
        (
            "activations other than tanh and LeakyReLU",
            lambda call: activation_of(call.case.score) not in ("tanh", "leaky_relu"),
        ),
    ],
    "triton": [
        ("a machine without Triton 3.6", lambda call: not HAS_TRITON),
        (
            "the CPU, but for Triton's interpreter",
            lambda call: call.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
        ),
        (
            "fp64 on a GPU",
            lambda call: call.device != "cpu" and call.case.dtype == torch.float64,
        ),
        (
            "activations other than tanh and LeakyReLU",
            lambda call: activation_of(call.case.score) not in (None, "tanh", "leaky_relu"),
        ),
    ],
    "plain": [
        ("an inner score", lambda call: call.case.score.form == "inner"),
        ("a bias", lambda call: "bias" in call.options),
        ("a sink", lambda call: "sink" in call.options),
        ("a soft cap", _softcap),
        ("dropout", lambda call: "dropout" in call.options),
        (
            "a temperature tensor",
            lambda call: isinstance(call.options.get("temperature"), Tensor),
        ),
        ("temperature 0", _hard),
        ("statistics other than weights", lambda call: bool({*call.want} - {"weights"})),
        ("masks that differ by query", _mask_differs),
    ],
    "sdpa": [
        ("a pairwise score", lambda call: call.case.score.form == "pairwise"),
        ("a soft cap", _softcap),
        ("a sink", lambda call: "sink" in call.options),
        (
            "a temperature tensor",
            lambda call: isinstance(call.options.get("temperature"), Tensor),
        ),
        ("temperature 0", _hard),
        ("statistics", lambda call: bool(call.want)),
        (
            "the gradient of a bias on the CPU",
            lambda call: call.learn_bias and "bias" in call.options and call.device == "cpu",
        ),
    ],
}


def expected_support(engine: str, call: EngineCall) -> bool:
    """Whether the engine's documentation says that it serves the call.

    An engine without a row in `REFUSALS` is expected to serve every call.
    """
    return not any(holds(call) for _, holds in REFUSALS.get(engine, []))
