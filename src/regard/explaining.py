"""`explain`: how a call of attention, or every attention call of a model, is run.

Of tensors it is `regard.attention.explain`. Of a module it runs the module once, watched by the capture of
the doctor, and returns one `Site` for each place that attends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor, nn

from regard.attention import explain as explain_call
from regard.engines.plan import Plan
from regard.forms import KeySide
from regard.mask import Mask
from regard.scores import Score

NOTHING = (
    "no attention was seen: explain(module, *inputs) sees regard.attention, GraphAttention, torch's SDPA, "
    "MultiheadAttention and FlexAttention, and softmax attention written out"
)


@dataclass(frozen=True)
class Site:
    """One place of a model that attends, and how it runs.

    Attributes:
        path: of the module that makes the call, such as "layers.0.self_attn".
        kind: "regard" for `regard.attention`, "edges" for attention over the edges of a graph, "sdpa" for
            torch's scaled_dot_product_attention, "flex" for FlexAttention, "softmax" for attention written
            out, as in torch's MultiheadAttention with need_weights=True.
        plan: the engine, its error bound, and why others refuse. Engines of torch are named "torch:math",
            "torch:flash_attention" and so on.
        calls: how many calls of this path ran like this.
    """

    path: str
    kind: str
    plan: Plan
    calls: int = 1

    def __str__(self) -> str:
        """The path and the plan."""
        again = f", {self.calls} calls" if self.calls > 1 else ""
        return f"{self.path} ({self.kind}{again})\n{self.plan}"


class Sites(list[Site]):
    """The sites of a model in the order of their first call; prints as a table, with the reasons below."""

    def __str__(self) -> str:
        """The table."""
        if not self:
            return NOTHING
        rows = [("path", "calls", "score", "engine", "error at most")]
        for site in self:
            bound = site.plan.error_bound
            known = "not known" if math.isnan(bound) else f"{bound:.1e}"
            engine = site.plan.engine or "none"
            rows.append((site.path, str(site.calls), site.plan.score, engine, known))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        # Layers of a model usually have the same reasons: each list of them is printed once.
        reasons: dict[str, list[str]] = {}
        for site in self:
            reasons.setdefault(_reasons(site.plan), []).append(site.path)
        for text, paths in reasons.items():
            lines += ["", ", ".join(dict.fromkeys(paths)), text] if text else []
        return "\n".join(lines)


def _reasons(plan: Plan) -> str:
    lines = [
        f"  {name} refused: {reason}" for name, all_ in plan.refused.items() for reason in all_
    ]
    return "\n".join(lines + [f"  note: {note}" for note in plan.notes])


@overload
def explain(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None = None,
    *,
    want: Iterable[str] = (),
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    dropout: float = 0.0,
    error: float | None = None,
    engine: str | None = None,
) -> Plan: ...
@overload
def explain(module: nn.Module, /, *inputs: Any, **kwargs: Any) -> Sites: ...
def explain(*args: Any, **kwargs: Any) -> Any:
    """The plan of a call, `explain(query, key, value, ...)`, or of every site of a module.

    With tensors the arguments are those of `regard.attention`, and `want`: see `regard.attention.explain`. The
    score is lowered, but no engine runs.

    With a module, `explain(module, *inputs, **kwargs)` runs `module(*inputs, **kwargs)` once, in evaluation
    mode and without gradients, and returns `Sites`: a `Site` with its plan for every place that attends.
    Training modes, buffers, gradients and random numbers are the same afterwards. Compiled modules run
    uncompiled. Evaluation mode has no dropout, which kernels over the edges of a graph refuse.

    ```python
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    print(regard.explain(layer, torch.randn(2, 10, 64)))
    ```
    """
    if args and isinstance(args[0], nn.Module):
        from regard.doctor.sites import find_sites

        return find_sites(args[0], args[1:], kwargs)
    return explain_call(*args, **kwargs)
