"""A fuzzed call of the op as Python code that a person can run and change."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.testing.fuzz.cases import AnyCase
from regard.testing.fuzz.layouts import laid_out
from regard.testing.fuzz.op import build
from regard.testing.fuzz.opcase import OpCase

# Larger tensors are drawn again from the number of the case.
LITERAL = 400


def as_code(case: AnyCase) -> str:
    """The call as Python code; modules and wrong arguments by what runs them again."""
    if not isinstance(case, OpCase):
        return (
            "from regard.testing.fuzz.cases import draw, judge_case\n\n"
            f"print(judge_case(draw({case.seed})))  # {case}"
        )
    b = build(case)
    lines = [
        "import torch",
        "import regard",
        "from math import inf, nan",
        "from regard import Mask",
        "",
    ]
    names = []
    for i, (name, x) in enumerate(b.tensors.items()):
        given = laid_out(b.poison.put(name, x.detach()), case.layouts[i] if i < 3 else "plain")
        lines.append(f"{name} = {_tensor(given)}")
        names.append(name)
    for name, parameter in b.score.named_parameters():
        lines.append(f"# parameter {name} = {_tensor(parameter.detach())}")
    lines += [f"score = regard.{_score(b.score)}.to({case.torch_dtype})", f"mask = {_mask(b.mask)}"]
    keywords = [f"{name}={name}" for name in (*names, "score", "mask")]
    keywords = [x for x in keywords if x != "key=key" or not case.lowered]
    keywords += ["key=score.key(key)"] if case.lowered else []
    keywords += [f"{name}={value!r}" for name, value in b.options.items() if value != 1.0]
    keywords += [f"engine={case.engine!r}"] if case.engine is not None else []
    keywords += [f"want={case.want!r}"] if case.function == "attend" else []
    if case.function == "score":
        keywords = ["query", "score.key(key)" if case.lowered else "key", "score"]
    lines.append(f"result = regard.{case.function}({', '.join(keywords)})")
    return "\n".join(lines)


def _tensor(x: Tensor) -> str:
    if x.numel() > LITERAL:
        return f"...  # {x.dtype} of shape {tuple(x.shape)}, strides {x.stride()}"
    text = f"torch.tensor({x.tolist()}, dtype={x.dtype})"
    if 0 in x.shape:
        text = f"torch.empty({tuple(x.shape)}, dtype={x.dtype})"
    plain = torch.empty(x.shape).stride()
    return text if x.stride() == plain or 0 in x.shape else f"{text}  # strides {x.stride()}"


def _score(score: torch.nn.Module) -> str:
    inside = getattr(score, "score", None)
    parts = [] if inside is None else [f"regard.{_score(inside)}"]
    parts += [f"{name}={value!r}" for name, value in score.arguments().items()]  # type: ignore[operator]
    place = "stabilize." if type(score).__module__.endswith("stabilize") else ""
    return f"{place}{type(score).__name__}({', '.join(parts)})"


def _mask(mask: object) -> str:
    """By its parts, the numbers in them included."""
    if mask is None:
        return "None"
    parts = []
    for allowed in mask.allowed:  # type: ignore[attr-defined]
        parts.append(f"Mask.dense(torch.tensor({allowed.tolist()}, dtype=torch.bool))")
    lengths = {
        "keys": mask.key_lengths,  # type: ignore[attr-defined]
        "queries": mask.query_lengths,  # type: ignore[attr-defined]
    }
    given = [f"{name}=torch.tensor({x.tolist()})" for name, x in lengths.items() if x is not None]
    parts += [f"Mask.lengths({', '.join(given)})"] if given else []
    for band in mask.bands:  # type: ignore[attr-defined]
        parts.append(f"Mask.window({band.left}, {band.right}, {band.alignment!r})")
    for q, k in mask.packed:  # type: ignore[attr-defined]
        parts.append(f"Mask.segments(torch.tensor({q.tolist()}), torch.tensor({k.tolist()}))")
    return " & ".join(parts)
