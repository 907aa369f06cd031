"""Runs one case three times: on an engine, in plain PyTorch of the same dtype, and in fp64.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

import copy
import functools
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard
from regard.testing import oracle
from regard.testing.cases import MASKS, OPTIONS, TINY, ScoreRow, Sizes
from regard.testing.oracle import MaskParts
from regard.testing.tolerance import Measure, compare, yardstick_dtype

STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
# Gradients are taken through each of these apart. A fault in one would hide behind the others.
LOSSES = {"output": ("output",), "lse, entropy": ("lse", "entropy"), "weights": ("weights",)}

Found = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One point of the contract: a score, a mask, an option, sizes, a dtype and a device."""

    score: ScoreRow
    dtype: torch.dtype = torch.float32
    mask: str = "none"
    option: str = "plain"
    sizes: Sizes = TINY
    device: str = "cpu"

    def __str__(self) -> str:
        """What a failure report calls it."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.score.name}, {dtype}, mask {self.mask}, {self.option}, {self.sizes}"

    @property
    def seed(self) -> int:
        """The same numbers on every run, machine and device."""
        return zlib.crc32(f"{self.score.name}|{self.mask}|{self.option}|{self.sizes}".encode())


@dataclass(frozen=True)
class Inputs:
    """A case with its numbers: tensors in fp64 that the dtype of the case holds exactly.

    Attributes:
        score: the score, in fp64.
        tensors: query, key, value, and bias, sink and temperature where the option has them.
        numbers: options that are numbers.
        parts: the mask.
        seen: who sees whom (B, H, Q, L), a bias of -inf counted.
        clear: rows (B, H, Q, 1) where rounding cannot change which key is the best; None where no
            row is a hard look-up.
        upstream: the gradients that flow into the results.
    """

    case: Case
    score: regard.Score
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    parts: MaskParts | None
    seen: Tensor
    clear: Tensor | None
    upstream: dict[str, Tensor]

    def copy(self, dtype: torch.dtype, device: str) -> tuple[regard.Score, dict[str, Tensor]]:
        """Score and tensors in another dtype, all of them ready for gradients."""
        score = copy.deepcopy(self.score).to(device=device, dtype=dtype)
        tensors = {
            name: x.to(device=device, dtype=dtype).requires_grad_()
            for name, x in self.tensors.items()
        }
        return score, tensors


@functools.lru_cache(maxsize=512)
def seen_pairs(mask: str, sizes: Sizes) -> tuple[MaskParts | None, Tensor]:
    """The parts of a mask of the table, and who sees whom."""
    parts = MASKS[mask](sizes)
    s = sizes
    return parts, oracle.visible(parts, s.batch, s.heads, s.queries, s.keys)


def draw_inputs(case: Case) -> Inputs:
    """Draw the numbers of a case."""
    s, row = case.sizes, case.score
    generator = torch.Generator().manual_seed(case.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def rounded(x: Tensor) -> Tensor:
        # fp64 cases hold numbers of fp32, so that the yardstick sees the same ones.
        return x.to(yardstick_dtype(case.dtype)).double()

    query_dim, key_dim = row.dims(s)
    heads, key_heads = (1, 1) if row.one_input_head else (s.heads, s.key_heads)
    tensors = {
        "query": draw(s.batch, heads, s.queries, query_dim),
        "key": draw(s.key_batch, key_heads, s.keys, key_dim),
        "value": draw(s.key_batch, s.value_heads, s.keys, s.value_dim),
    }
    options = OPTIONS[case.option](s, draw)
    tensors |= {name: x for name, x in options.items() if isinstance(x, Tensor)}
    tensors = {name: rounded(x) for name, x in tensors.items()}
    numbers = {name: x for name, x in options.items() if not isinstance(x, Tensor)}
    score = row.make(s, case.seed).to(yardstick_dtype(case.dtype)).double()
    parts, seen = seen_pairs(case.mask, s)
    if "bias" in tensors:
        seen = seen & (tensors["bias"] != -torch.inf)
    clear = None
    temperature = tensors.get("temperature", numbers.get("temperature", 1.0))
    if bool((torch.as_tensor(temperature) == 0).any()):
        with torch.no_grad():
            scores = row.formula(score, tensors["query"], tensors["key"])
        clear = clear_rows(scores, seen, case.dtype)
    rows = (s.batch, s.heads, s.queries)
    upstream = {
        "output": draw(*rows, s.value_dim),
        "lse": draw(*rows),
        "entropy": draw(*rows),
        "weights": draw(*rows, s.keys),
    }
    upstream = {name: rounded(x) for name, x in upstream.items()}
    if clear is not None:
        upstream = {
            name: x * (clear if x.ndim == 4 else clear[..., 0]) for name, x in upstream.items()
        }
    return Inputs(case, score, tensors, numbers, parts, seen, clear, upstream)


def clear_rows(scores: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (B, H, Q, 1) whose best key leads the next by more than rounding can make up."""
    if scores.shape[-1] < 2:
        return torch.ones(*scores.shape[:-1], 1, dtype=torch.bool)
    margin = 8 * torch.finfo(dtype).eps * float(scores.abs().max())
    top = scores.masked_fill(~seen, -torch.inf).topk(2, -1).values
    lonely = top[..., 1:] == -torch.inf
    return lonely | (top[..., :1] - top[..., 1:] > margin)


def build_mask(parts: MaskParts | None) -> regard.Mask | None:
    """The `regard.Mask` with these parts, put together with `&` as a user would."""
    if parts is None:
        return None
    masks = []
    if parts.key_lengths is not None or parts.query_lengths is not None:
        masks.append(regard.Mask.lengths(keys=parts.key_lengths, queries=parts.query_lengths))
    for left, right, alignment in parts.bands:
        causal = (left, right) == (None, 0)
        masks.append(
            regard.Mask.causal(alignment) if causal else regard.Mask.window(left, right, alignment)
        )
    masks += [regard.Mask.segments(*map(torch.tensor, pair)) for pair in parts.segments]
    masks += [regard.Mask.dense(allowed) for allowed in parts.dense]
    return functools.reduce(lambda x, y: x & y, masks)


def run_textbook(inputs: Inputs, dtype: torch.dtype, want: tuple[str, ...]) -> Found:
    """Results and gradients of the textbook in `dtype`, always on the CPU."""
    score, tensors = inputs.copy(dtype, "cpu")
    options = {n: x for n, x in tensors.items() if n not in ("query", "key", "value")}
    scores = inputs.case.score.formula(score, tensors["query"], tensors["key"])
    numbers = dict(inputs.numbers)
    if inputs.case.score.softcap is not None:
        numbers["softcap"] = inputs.case.score.softcap
    base = seen_pairs(inputs.case.mask, inputs.case.sizes)[1]
    result = oracle.textbook(scores, tensors["value"], base, **options, **numbers)
    found = {name: getattr(result, name) for name in ("output", *want)}
    return found | gradients(found, score, tensors, inputs.upstream)


def run_engine(
    inputs: Inputs, engine: str | None, want: tuple[str, ...], learn_bias: bool = True
) -> Found:
    """Results and gradients of an engine, through the public functions."""
    case = inputs.case
    score, tensors = inputs.copy(case.dtype, case.device)
    if not learn_bias and "bias" in tensors:
        tensors["bias"].requires_grad_(False)
    options = {n: x for n, x in tensors.items() if n not in ("query", "key", "value")}
    arguments = {**options, **inputs.numbers, "mask": build_mask(inputs.parts), "engine": engine}
    q, k, v = tensors["query"], tensors["key"], tensors["value"]
    if want:
        result = regard.attend(q, k, v, score, want=want, **arguments)
        found = {name: getattr(result, name) for name in ("output", *want)}
    else:
        found = {"output": regard.attention(q, k, v, score, **arguments)}
    return found | gradients(found, score, tensors, inputs.upstream)


def gradients(
    found: Found, score: regard.Score, tensors: dict[str, Tensor], upstream: dict[str, Tensor]
) -> Found:
    """The gradient of every tensor and parameter through each of `LOSSES`; 0 for none."""
    leaves = {f"score.{name}": x for name, x in score.named_parameters()}
    leaves |= {name: x for name, x in tensors.items() if x.requires_grad}
    grads = {}
    for through, names in LOSSES.items():
        ends = [found[name] for name in names if name in found and found[name].requires_grad]
        flows = [
            upstream[name].to(found[name])
            for name in names
            if name in found and found[name].requires_grad
        ]
        if not ends:
            continue
        given = torch.autograd.grad(
            ends, list(leaves.values()), flows, retain_graph=True, allow_unused=True
        )
        for (name, leaf), grad in zip(leaves.items(), given, strict=True):
            grad = torch.zeros_like(leaf) if grad is None else grad
            grads[f"gradient of {name} through {through}"] = grad
    return grads


def exact_places(inputs: Inputs) -> dict[str, Tensor]:
    """Where a result must be exact: at queries that see nothing and at keys that nobody sees."""
    seen = inputs.seen
    empty = ~seen.any(-1, keepdim=True)
    rows = empty[..., 0]
    places = {"output": empty, "weights": ~seen, "entropy": rows, "max_weight": rows}
    places["jacobian"] = rows
    by_row, by_key = seen.any(-1, keepdim=True), seen.any(-2).unsqueeze(-1)
    sides = {"query": by_row, "key": by_key, "value": by_key}
    if "bias" in inputs.tensors:
        sides["bias"] = seen
    for name, used in sides.items():
        unused = ~_any_to(used, inputs.tensors[name].shape)
        places |= {f"gradient of {name} through {through}": unused for through in LOSSES}
    return places


def _any_to(used: Tensor, shape: torch.Size) -> Tensor:
    """Reduce (B, H, ...) booleans with `any` to a tensor of fewer heads or broadcast dims."""
    shape = torch.Size((1,) * (4 - len(shape)) + tuple(shape))
    used = used.unflatten(1, (shape[1], -1)).any(2)
    for dim in (0, 2, 3):
        if shape[dim] == 1:
            used = used.any(dim, keepdim=True)
    return used


def measure(
    inputs: Inputs, engine: str | None, want: tuple[str, ...], learn_bias: bool = True
) -> list[Measure]:
    """Run an engine and measure everything that comes back."""
    dtype = inputs.case.dtype
    got = run_engine(inputs, engine, want, learn_bias)
    truth = run_textbook(inputs, torch.float64, want)
    plain = run_textbook(inputs, yardstick_dtype(dtype), want)
    return measure_found(inputs, got, plain, truth)


def measure_found(inputs: Inputs, got: Found, plain: Found, truth: Found) -> list[Measure]:
    """Compare all that an engine gave with the textbook."""
    exact, measures = exact_places(inputs), []
    for name, x in got.items():
        x, y, z = x.cpu().double(), plain[name].double(), truth[name]
        if inputs.clear is not None and name in ("output", "weights"):
            # Which of two equal keys is best is not for rounding to decide.
            x, y = (torch.where(inputs.clear, t, z) for t in (x, y))
        measures.append(compare(name, x, y, z, inputs.case.dtype, exact.get(name)))
    return measures
