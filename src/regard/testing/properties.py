"""Further checks of the contract: derivatives, sides lowered separately, NaN in hidden inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard.activations import ACTIVATIONS
from regard.forms import Form, Inner
from regard.testing.cases import CaseSizes, ScoreRow
from regard.testing.oracle import grouped
from regard.testing.run import (
    Case,
    Inputs,
    any_to,
    build_mask,
    draw_inputs,
    expect,
    measure,
    run_engine,
)
from regard.testing.support import EngineCall, expected_support
from regard.testing.tolerance import compare, yardstick_dtype

# Small, because difference quotients run the function twice for each input number.
SMALL = CaseSizes(1, 2, 1, 1, queries=3, keys=4, dim=3, value_dim=2)
# Options and the mask to run them under. The second mask leaves some queries without keys.
TOGETHER = {"plain": "causal & lengths", "everything soft": "dense empty rows"}


def form_logits(form: Form, dtype: torch.dtype) -> Tensor:
    """The raw logits (B, H, Q, L) of a lowered score, by the definition of its form."""
    q, k = form.query.to(dtype), grouped(form.key, form.query.shape[-3]).to(dtype)
    if isinstance(form, Inner):
        logits = form.scale * (q @ k.mT)
        logits = logits if form.alpha is None else logits + form.alpha.to(dtype).unsqueeze(-1)
        if form.beta is None:
            return logits
        return logits + grouped(form.beta.to(dtype), q.shape[-3], -2).unsqueeze(-2)
    units = ACTIVATIONS[form.activation].value(q.unsqueeze(-2) + k.unsqueeze(-3), form.parameter)
    return (units * form.v.to(dtype).unsqueeze(-2)).sum(-1)


def lowered(score: regard.Score, q: Tensor, k: Tensor) -> Tensor:
    """The logits of a score's own lowered form: the formula if the author gives none."""
    return form_logits(score.lower(q, k), q.dtype)


class _With(nn.Module):
    """A function of a score as a module, so that `functional_call` can replace its parameters."""

    def __init__(self, score: regard.Score, run: Callable[[regard.Score], Any]) -> None:
        super().__init__()
        self.score, self.run = score, run

    def forward(self) -> Any:
        return self.run(self.score)


def as_function(inputs: Inputs, engine: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """Output, LSE and entropy as a function of all tensors and parameters, and these as its arguments."""
    leaves = dict(inputs.tensors)
    leaves |= {f"score.{name}": x.detach() for name, x in inputs.score.named_parameters()}
    mask = build_mask(inputs.parts)

    def attend(*given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(leaves, given, strict=True))
        tensors = {name: x for name, x in named.items() if name in inputs.tensors}
        parameters = {name: x for name, x in named.items() if name not in inputs.tensors}

        def run(score: regard.Score) -> tuple[Tensor, ...]:
            arguments: dict[str, Any] = tensors | inputs.numbers | {"score": score}
            result = regard.attend(**arguments, mask=mask, engine=engine, want=("lse", "entropy"))
            assert result.lse is not None and result.entropy is not None
            # A query that sees nothing has LSE -inf, which has no difference quotient.
            return result.output, result.lse.nan_to_num(neginf=0.0), result.entropy

        return torch.func.functional_call(_With(inputs.score, run), parameters, ())

    return attend, [x.clone().requires_grad_() for x in leaves.values()]


def check_derivatives(row: ScoreRow, engine: str, *, second: bool = False) -> list[str]:
    """Check derivatives of output, LSE and entropy by difference quotients, `second` ones too.

    Returns:
        What failed, in words.
    """
    failures = []
    for option, mask in TOGETHER.items():
        bent = row.softcap is not None and option != "plain"
        case = Case(row, torch.float64, mask, "sink" if bent else option, SMALL)
        function, leaves = as_function(draw_inputs(case), engine)
        try:
            gradcheck(function, leaves)
            if second:
                gradgradcheck(function, leaves, fast_mode=True)
        except RuntimeError as error:  # GradcheckError is one, and so are errors of the function
            failures.append(f"engine {engine}, {case}: {error}")
    return failures


def check_hidden(
    row: ScoreRow, engine: str, *, statistics: bool = True, device: str = "cpu"
) -> list[str]:
    """Check that NaN in padding changes no output, no statistic and no gradient.

    Padding is a key and value that no query sees, or a query that sees nothing. The score must keep this
    promise as well as the engine: the gradient of a projection is a sum over all keys, and 0 * NaN is
    NaN.

    Returns:
        What failed, in words.
    """
    failures = []
    for mask in ("lengths", "dense keys"):
        expected = expect(Case(row, torch.float32, mask))
        inputs = expected.inputs
        want = inputs.statistics if statistics else ()
        if not expected_support(engine, EngineCall(inputs.case, want, device=device)):
            continue
        by_key = inputs.seen.any(-2).unsqueeze(-1)
        used = {"query": inputs.seen.any(-1, keepdim=True), "key": by_key, "value": by_key}
        for name, seen in used.items():
            clean = inputs.tensors[name]
            garbage = torch.where(any_to(seen, tuple(clean.shape)), clean, torch.nan)
            dirty = replace(inputs, tensors=inputs.tensors | {name: garbage})
            found = measure(expected, run_engine(dirty, engine, want, True, device))
            failures += [
                f"engine {engine}, {inputs.case}, NaN in hidden {name}: {x}"
                for x in found
                if not x.passed
            ]
    return failures


def check_sides(row: ScoreRow, dtype: torch.dtype) -> list[str]:
    """Check that sides lowered separately, and each key alone, give the logits of the formula.

    Caching and reordering keys depends on this.

    Returns:
        What failed, in words.
    """
    inputs, logits = draw_inputs(Case(row, dtype)), {}
    for work in (torch.float64, yardstick_dtype(dtype)):
        score, tensors = inputs.copy(work, "cpu")
        with torch.no_grad():
            logits[work] = row.formula(score, tensors["query"], tensors["key"])
    truth, plain = logits[torch.float64], logits[yardstick_dtype(dtype)]
    score, tensors = inputs.copy(dtype, "cpu")
    q, k = tensors["query"], tensors["key"]
    working = torch.promote_types(dtype, torch.float32)
    with torch.no_grad():

        def joined(keys: Tensor) -> Tensor:
            side = score.key(keys)
            return form_logits(score.join(score.query_for(q, side), side), working)

        found = {
            "regard.score": regard.score(q, k, score),
            "query and key lowered apart": joined(k),
            "each key lowered alone": torch.cat([joined(x) for x in k.split(1, -2)], -1),
        }
    measures = [compare(what, got, plain, truth, dtype) for what, got in found.items()]
    return [f"score {row.name}, {dtype}: {x}" for x in measures if not x.passed]
