"""Errors of additive attention by the sine series, beside those of an exact kernel in bf16.

`python benchmarks/sine_errors.py` writes benchmarks/results/sine_errors.json. It simulates number
formats on the CPU, in fp64 with rounding where a GPU rounds; nothing is timed. From it follow
`FAST_RANK` and `MATCHED_RANK` (src/regard/sine/series.py): the shortest series within twice the
exact kernel's errors of the output, and of output and both gradients.

- exact: fp32 logits, the weights rounded to bf16 before their product with the values; the gradient
  of tanh is summed pair by pair in fp32; what leaves is rounded to bf16.
- exact, bf16 dS: the same, with dS rounded to bf16 before it meets the derivative of tanh, for
  comparison only.
- series: features, weights, dS, the features' gradients in fp16 or bf16; what leaves in bf16. dS is
  scaled by a power of two into fp16's range, as the kernel does with grad_out.

An error is ||found - fp64|| / ||fp64||, over the heads. Shapes: Q query rows of the L that the reach
is measured over, E hidden units, D values, R rank.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.sine.series import TABLES, SeriesRow

RESULTS = Path(__file__).parent / "results" / "sine_errors.json"
LENGTH, ROWS, HIDDEN, VALUES, HEADS = 4096, 64, 16, 64, 2
KINDS, RANKS = ("fast", "matched", "uniform", "normal"), (4, 5, 6, 7, 8)
# Name: distribution of a and b, and |v|_1.
CASES = {
    "normal": ("normal", 1.0, 5.0),
    "normal, |v| 2": ("normal", 1.0, 2.0),
    "normal, |v| 12": ("normal", 1.0, 12.0),
    "normal 0.5": ("normal", 0.5, 5.0),
    "normal 2": ("normal", 2.0, 5.0),
    "uniform on +-3": ("uniform", 3.0, 5.0),
    "Student t, 4 dof, 0.2": ("student", 0.2, 5.0),
    "Student t, 4 dof, 0.7": ("student", 0.7, 5.0),
}
NAMES = ("output", "da", "db")


class Head(NamedTuple):
    """Tensors of one head: a (Q, E), b (L, E), v (E), values (L, D), grad_out (Q, D), reach (E)."""

    a: Tensor
    b: Tensor
    v: Tensor
    values: Tensor
    grad: Tensor
    reach: Tensor


class Found(NamedTuple):
    """Output (Q, D), and gradients of a and b."""

    output: Tensor
    da: Tensor
    db: Tensor


def rounded(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """X in fp64 after rounding to dtype."""
    return x.to(dtype).double()


def draw(name: str, scale: float, size: float, seed: int) -> Head:
    """A head whose every input is a bf16 number."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: E731

    def side() -> Tensor:
        if name == "uniform":
            return 2 * torch.rand(LENGTH, HIDDEN, generator=g, dtype=torch.float64) - 1
        if name == "student":
            return normal(LENGTH, HIDDEN) / normal(4, LENGTH, HIDDEN).square().mean(0).sqrt()
        return normal(LENGTH, HIDDEN)

    a, b = (rounded(scale * side()) for _ in range(2))
    v = normal(HIDDEN)
    v, values, grad = v * (size / v.abs().sum()), normal(LENGTH, VALUES), normal(ROWS, VALUES)
    reach = a.abs().amax(0) + b.abs().amax(0)
    return Head(a[:ROWS], b, rounded(v), rounded(values), rounded(grad), reach)


def softmax(head: Head, logits: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of the logits; rounded to dtype where a GPU kernel does."""
    keep = (lambda x: x) if dtype is None else (lambda x: rounded(x, dtype))
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    total = weights.sum(-1, keepdim=True)
    output = keep(weights) @ head.values / total
    delta = (head.grad * keep(output)).sum(-1, keepdim=True)
    return output, weights / total * (head.grad @ head.values.mT - delta)


def exact(head: Head) -> tuple[Found, Found, Found]:
    """The truth in fp64, the exact kernel with bf16 inputs and outputs, and that with bf16 dS."""
    y = torch.tanh(head.a[:, None] + head.b)
    logits, slopes = y @ head.v, head.v * (1 - y * y)
    output, d_logits = softmax(head, logits, None)
    kernel, half_d_logits = softmax(head, rounded(logits, torch.float32), torch.bfloat16)
    truth, half = (
        [(d.unsqueeze(-1) * slopes).sum(dim) for dim in (1, 0)]
        for d in (d_logits, rounded(half_d_logits))
    )
    # With dS in fp32 only rounding on the way out is left.
    return (
        Found(output, *truth),
        Found(*map(rounded, (kernel, *truth))),
        Found(*map(rounded, (kernel, *half))),
    )


def by_series(
    head: Head, rows: list[SeriesRow], dtype: torch.dtype, shorter: list[SeriesRow] | None = None
) -> Found:
    """Through features in dtype, each hidden unit with the row for its own reach.

    With `shorter`, the unit with the least |v| takes a row from there, as one that lends columns does.
    """
    reaches = torch.tensor([row.reach for row in rows], dtype=torch.float64)
    places = torch.searchsorted(reaches, head.reach).clamp(max=len(rows) - 1).tolist()
    mine = [rows[place] for place in places]
    if shorter is not None:
        lender = int(head.v.abs().argmin())
        row = shorter[places[lender]]
        mine[lender] = row._replace(
            frequencies=[*row.frequencies, 0.0], coefficients=[*row.coefficients, 0.0]
        )
    w = torch.tensor([row.frequencies for row in mine], dtype=torch.float64)
    c = torch.tensor([row.coefficients for row in mine], dtype=torch.float64)
    pull = head.v * torch.tensor([row.linear for row in mine], dtype=torch.float64)
    wa, wb, vc = head.a.unsqueeze(-1) * w, head.b.unsqueeze(-1) * w, head.v.unsqueeze(-1) * c
    phi = rounded(torch.stack([vc * wa.sin(), vc * wa.cos()], 1).flatten(1), dtype)
    psi = rounded(torch.stack([wb.cos(), wb.sin()], 1).flatten(1), dtype)
    output, d_logits = softmax(head, phi @ psi.mT + head.b @ pull, dtype)
    d_logits = scaled(d_logits, dtype)
    d_phi = scaled(d_logits @ psi, dtype).unflatten(1, (2, *w.shape)).unbind(1)
    d_psi = scaled(d_logits.mT @ phi, dtype).unflatten(1, (2, *w.shape)).unbind(1)
    da = ((d_phi[0] * wa.cos() - d_phi[1] * wa.sin()) * vc * w).sum(-1)
    db = ((d_psi[1] * wb.cos() - d_psi[0] * wb.sin()) * w).sum(-1)
    da = da + d_logits.sum(1).unsqueeze(-1) * pull
    db = db + d_logits.sum(0).unsqueeze(-1) * pull
    return Found(*map(rounded, (output, da, db)))


def scaled(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded after a power of two that brings the largest entry near 1024."""
    scale = 2.0 ** (10 - math.ceil(math.log2(float(x.abs().max()))))
    return rounded(x * scale, dtype) / scale


def relative(found: list[Found], truth: list[Found]) -> dict[str, float]:
    """Relative errors by name, over the heads together."""
    errors = {}
    for place, name in enumerate(NAMES):
        pairs = [(x[place], y[place]) for x, y in zip(found, truth, strict=True)]
        off = sum(float((x - y).square().sum()) for x, y in pairs)
        errors[name] = math.sqrt(off / sum(float(y.square().sum()) for _, y in pairs))
    return errors


def measure(name: str, scale: float, size: float) -> dict:
    """Errors of the exact kernel and of every series in one case, and the shortest that keep up."""
    heads = [draw(name, scale, size, seed) for seed in range(HEADS)]
    truth, kernel, half = (list(x) for x in zip(*(exact(head) for head in heads), strict=True))
    reaches = torch.cat([head.reach for head in heads])
    result: dict = {
        "reach": [float(reaches.min()), float(reaches.max())],
        # Where it is not, the engine falls back to the exact kernel; the numbers say why.
        "within the tables": float(reaches.max()) <= TABLES["fast"][4][-1].reach,
        "exact": relative(kernel, truth),
        "exact, bf16 dS": relative(half, truth),
        "series": {},
    }
    for kind in KINDS:
        for rank in RANKS:
            for dtype in (torch.float16, torch.bfloat16):
                found = [by_series(head, TABLES[kind][rank], dtype) for head in heads]
                label = f"{kind} {rank} {str(dtype).removeprefix('torch.')}"
                result["series"][label] = relative(found, truth)
    shorter = TABLES["fast"][3]
    found = [by_series(head, TABLES["fast"][4], torch.float16, shorter) for head in heads]
    result["series"]["fast 4 lending float16"] = relative(found, truth)
    bar = {key: 2 * value for key, value in result["exact"].items()}
    for kind, keys in (("fast", NAMES[:1]), ("matched", NAMES)):
        good = [
            rank
            for rank in RANKS
            if all(result["series"][f"{kind} {rank} float16"][key] <= bar[key] for key in keys)
        ]
        result[f"{kind} rank"] = min(good, default=None)
    return result


def main() -> None:
    results = {}
    for label, case in CASES.items():
        found = results[label] = measure(*case)
        numbers = lambda errors: " ".join(f"{x:.1e}" for x in errors.values())  # noqa: E731
        low, high = found["reach"]
        print(f"{label} (reach {low:.1f} to {high:.1f}): exact {numbers(found['exact'])};", end=" ")
        print(f"fast from rank {found['fast rank']}, matched from {found['matched rank']}")
        for name, errors in found["series"].items():
            if name.endswith("bfloat16"):
                continue
            print(f"  {name:<20} {numbers(errors)}", flush=True)
    RESULTS.write_text(json.dumps({"torch": torch.__version__, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
