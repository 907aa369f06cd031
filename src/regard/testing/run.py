"""Runs a case on an engine, in plain PyTorch of the same dtype, and in fp64, and compares them.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

import copy
import functools
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from regard.testing import oracle
from regard.testing.cases import TINY, CaseSizes, ScoreRow, on_grid
from regard.testing.options import MASKS, OPTIONS
from regard.testing.oracle import MaskParts, Textbook
from regard.testing.tolerance import Measure, compare, yardstick_dtype

STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
# The other statistics are infinite at temperature 0, and asking for them is an error.
HARD_STATISTICS = ("entropy", "max_weight", "jacobian", "weights")
# Gradients are taken through each of these alone: summed, a large one would hide a mistake in another.
LOSSES = {"output": ("output",), "lse, entropy": ("lse", "entropy"), "weights": ("weights",)}

Found = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One point of the contract: a score, a mask, an option, sizes and a dtype."""

    score: ScoreRow
    dtype: torch.dtype = torch.float32
    mask: str = "none"
    option: str = "plain"
    sizes: CaseSizes = TINY

    def __str__(self) -> str:
        """The name of the case in a report."""
        dtype = str(self.dtype).removeprefix("torch.")
        shape = "" if self.sizes == TINY else f", {self.sizes}"
        return f"score {self.score.name}, {dtype}, mask {self.mask}, option {self.option}{shape}"

    @property
    def seed(self) -> int:
        """The seed of the inputs: the same for every dtype, run, machine and device."""
        return zlib.crc32(f"{self.score.name}|{self.mask}|{self.option}|{self.sizes}".encode())


@dataclass(frozen=True)
class Inputs:
    """The inputs of a case: tensors in fp64 whose values the dtype of the case holds exactly.

    Attributes:
        case: the case that they were drawn for.
        score: the score, in fp64.
        tensors: query, key, value, and those of bias, sink and temperature that the option has.
        numbers: options that are numbers.
        parts: the mask.
        seen: which queries see which keys (B, H, Q, L); a bias of -inf hides too.
        clear: rows (B, H, Q, 1) in which rounding cannot change the best key; None if no row is a hard
            look-up.
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

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics that may be asked for."""
        return HARD_STATISTICS if self.numbers.get("temperature") == 0 else STATISTICS

    def copy(self, dtype: torch.dtype, device: str) -> tuple[regard.Score, dict[str, Tensor]]:
        """Copies of the score and the tensors in another dtype, all of which require gradients."""
        score = copy.deepcopy(self.score).to(device=device, dtype=dtype)
        tensors = {
            name: x.to(device=device, dtype=dtype, copy=True).requires_grad_()
            for name, x in self.tensors.items()
        }
        return score, tensors


class Expected(NamedTuple):
    """The textbook's results for a case in fp64 and in plain PyTorch, and the sizes of their terms."""

    inputs: Inputs
    truth: Found
    plain: Found
    sizes: dict[str, float]


@functools.lru_cache(maxsize=512)
def seen_pairs(mask: str, sizes: CaseSizes) -> tuple[MaskParts | None, Tensor]:
    """The parts of a mask in the table `MASKS`, and the booleans (B, H, Q, L) that they amount to."""
    parts, s = MASKS[mask](sizes), sizes
    return parts, oracle.visible(parts, s.batch, s.heads, s.queries, s.keys)


def draw_inputs(case: Case) -> Inputs:
    """The random inputs of a case."""
    s, row = case.sizes, case.score
    generator = torch.Generator().manual_seed(case.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    # Inputs of fp64 cases are exact in fp32, so that the yardstick, which runs in fp32, gets the same.
    held = yardstick_dtype(case.dtype)
    query_dim, key_dim = row.dims(s)
    heads, key_heads = (1, 1) if row.one_input_head else (s.heads, s.key_heads)
    query = draw(1 if s.shared_queries else s.batch, heads, s.queries, query_dim)
    key = draw(1 if s.shared_keys else s.batch, key_heads, s.keys, key_dim)
    if row.kinked:
        query, key = on_grid(query, 1 / 16), on_grid(key)
    tensors = {"query": query, "key": key}
    tensors["value"] = draw(1 if s.shared_values else s.batch, s.value_heads, s.keys, s.value_dim)
    options = OPTIONS[case.option](s, draw)
    tensors |= {name: x for name, x in options.items() if isinstance(x, Tensor)}
    tensors = {name: x.to(held).double() for name, x in tensors.items()}
    numbers = {name: x for name, x in options.items() if not isinstance(x, Tensor)}
    score = row.make(s, case.seed).to(held).double()
    parts, seen = seen_pairs(case.mask, s)
    if "bias" in tensors:
        seen = seen & (tensors["bias"] != -torch.inf)
    rows = (s.batch, s.heads, s.queries)
    shapes = {"output": (*rows, s.value_dim), "lse": rows, "entropy": rows}
    shapes["weights"] = (*rows, s.keys)
    upstream = {name: draw(*shape).to(held).double() for name, shape in shapes.items()}
    clear = None
    temperature = tensors.get("temperature", numbers.get("temperature", 1.0))
    # In a hard look-up rounding may decide between nearly equal keys. No gradient flows into such rows.
    if bool((torch.as_tensor(temperature) == 0).any()):
        with torch.no_grad():
            scores = row.formula(score, tensors["query"], tensors["key"])
        clear = clear_rows(scores.expand(seen.shape), seen, case.dtype)
        for name, x in upstream.items():
            upstream[name] = x * (clear if x.ndim == 4 else clear[..., 0])
    return Inputs(case, score, tensors, numbers, parts, seen, clear, upstream)


def clear_rows(scores: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (B, H, Q, 1) whose best key leads the next by more than rounding can change."""
    if scores.shape[-1] < 2:
        return torch.ones(*scores.shape[:-1], 1, dtype=torch.bool)
    margin = 8 * torch.finfo(dtype).eps * float(scores.abs().max())
    first, second = scores.masked_fill(~seen, -torch.inf).topk(2, -1).values.split(1, -1)
    return (second == -torch.inf) | (first - second > margin)


def build_mask(parts: MaskParts | None) -> regard.Mask | None:
    """The `regard.Mask` with these parts, combined with `&` as a user would."""
    if parts is None:
        return None
    masks = []
    if parts.key_lengths is not None or parts.query_lengths is not None:
        masks.append(regard.Mask.lengths(keys=parts.key_lengths, queries=parts.query_lengths))
    for left, right, alignment in parts.bands:
        if (left, right) == (None, 0):
            masks.append(regard.Mask.causal(alignment))
        else:
            masks.append(regard.Mask.window(left, right, alignment))
    masks += [regard.Mask.segments(*map(torch.tensor, pair)) for pair in parts.segments]
    masks += [regard.Mask.dense(allowed) for allowed in parts.dense]
    return functools.reduce(lambda x, y: x & y, masks)


@functools.lru_cache(maxsize=512)  # holds one score in one dtype while the engines take turns
def expect(case: Case) -> Expected:
    """The inputs of a case and the textbook's results for them, with all statistics."""
    inputs = draw_inputs(case)
    truth, sizes = run_textbook(inputs, torch.float64, inputs.statistics)
    plain, _ = run_textbook(inputs, yardstick_dtype(case.dtype), inputs.statistics)
    return Expected(inputs, truth, plain, sizes)


def run_textbook(
    inputs: Inputs, dtype: torch.dtype, want: tuple[str, ...] = ()
) -> tuple[Found, dict[str, float]]:
    """Results and gradients of the textbook in `dtype`, always on the CPU; sizes if that is fp64."""
    case = inputs.case
    score, tensors = inputs.copy(dtype, "cpu")
    options: dict[str, Any] = {n: x for n, x in tensors.items() if n not in ("query", "key")}
    options |= inputs.numbers
    if case.score.softcap is not None:
        options["softcap"] = case.score.softcap
    scores = case.score.formula(score, tensors["query"], tensors["key"])
    seen = seen_pairs(case.mask, case.sizes)[1]
    result = oracle.textbook(scores, seen=seen, **options)
    found = {name: getattr(result, name) for name in ("output", *want)}
    grads = gradients(found, score, tensors, inputs.upstream)
    sizes = term_sizes(result, score, tensors, inputs) if dtype == torch.float64 else {}
    return {name: x.detach() for name, x in (found | grads).items()}, sizes


def run_engine(
    inputs: Inputs, engine: str | None, want: tuple[str, ...], learn_bias: bool, device: str
) -> Found:
    """Results and gradients of an engine, through the public functions."""
    score, tensors = inputs.copy(inputs.case.dtype, device)
    if "bias" in tensors:
        tensors["bias"].requires_grad_(learn_bias)
    arguments: dict[str, Any] = tensors | inputs.numbers
    arguments |= {"score": score, "mask": build_mask(inputs.parts), "engine": engine}
    if want:
        result = regard.attend(**arguments, want=want)
        found = {name: getattr(result, name) for name in ("output", *want)}
    else:
        found = {"output": regard.attention(**arguments)}
    return found | gradients(found, score, tensors, inputs.upstream)


def learned(score: regard.Score, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters and tensors whose gradients are taken, by name."""
    leaves = {f"score.{name}": x for name, x in score.named_parameters()}
    return leaves | {name: x for name, x in tensors.items() if x.requires_grad}


def gradients(
    found: Found, score: regard.Score, tensors: dict[str, Tensor], upstream: dict[str, Tensor]
) -> Found:
    """The gradient of every tensor and parameter through each of `LOSSES`; zeros if there is none."""
    leaves, grads = learned(score, tensors), {}
    for through, names in LOSSES.items():
        ends = {name: found[name] for name in names if name in found}
        ends = {name: x for name, x in ends.items() if x.requires_grad}
        flows = [upstream[name].to(x) for name, x in ends.items()]
        given = [None] * len(leaves)
        if ends:
            given = torch.autograd.grad(
                list(ends.values()), list(leaves.values()), flows, None, True, allow_unused=True
            )
        elif not any(name in found for name in names):
            continue
        for (name, leaf), grad in zip(leaves.items(), given, strict=True):
            found_grad = torch.zeros_like(leaf) if grad is None else grad
            grads[f"gradient of {name} through {through}"] = found_grad
    return grads


def term_sizes(
    result: Textbook, score: regard.Score, tensors: dict[str, Tensor], inputs: Inputs
) -> dict[str, float]:
    """The size of the terms that cancel in each result.

    LSE, entropy and the largest logit are sums and differences of logits, whose size is that before a
    soft cap. The gradient of a logit is `p (x - mean of x)`, where x is the gradient that arrives at its
    weight: its terms are as large as `p max |x|`. For the output, x is `<gradient, value>`, as large as
    the sum of its absolute terms. For the entropy it is -log p, a difference of logits. A soft cap
    multiplies by `1 - tanh^2`, whose terms are as large as 1.

    These terms are propagated back, and what arrives at a leaf is the size of its gradient. They are
    propagated once as they are and once with the sign of the logit: the derivative by a temperature or a
    gain has that sign, and would cancel over the pairs.
    """
    chances, outcomes = result.chances.detach(), result.outcomes.detach()
    bare = result.tempered.detach().masked_fill(~inputs.seen, 0)
    logit = max(float(x.nan_to_num(neginf=0).abs().max()) for x in (outcomes, bare))
    sizes = dict.fromkeys(("logit", "lse", "entropy", "max_logit"), logit)
    up = {name: x.abs() for name, x in inputs.upstream.items()}
    value = oracle.grouped(inputs.tensors["value"].abs(), outcomes.shape[1])
    surprise = -torch.where(chances > 0, chances, 1).log().amin(-1).clamp(max=-1)
    reach = {
        "output": (up["output"] @ value.mT).masked_fill(~inputs.seen, 0).amax(-1),
        "lse, entropy": up["lse"] + up["entropy"] * surprise,
        "weights": up["weights"].amax(-1),
    }
    capped = inputs.case.score.softcap is not None or "softcap" in inputs.numbers
    leaves, sign = learned(score, tensors), bare.sign()
    for through, most in reach.items():
        terms = chances * most.unsqueeze(-1) * result.soft
        of_keys = terms[..., : bare.shape[-1]]
        signed = torch.cat([of_keys * sign, terms[..., bare.shape[-1] :]], -1)
        ends = [(result.outcomes, terms), (result.outcomes, signed)]
        ends += [(result.tempered, of_keys), (result.tempered, of_keys * sign)] if capped else []
        found = [_largest_gradients(end, leaves, flow) for end, flow in ends]
        for name, *each in zip(leaves, *found, strict=True):
            sizes[f"gradient of {name} through {through}"] = max(each)
    return sizes


def _largest_gradients(end: Tensor, leaves: dict[str, Tensor], flow: Tensor) -> list[float]:
    """The largest entry of the gradient of each leaf; 0 if it has none."""
    given = torch.autograd.grad(end, list(leaves.values()), flow, None, True, allow_unused=True)
    return [0.0 if grad is None else float(grad.detach().abs().max()) for grad in given]


def exact_places(inputs: Inputs) -> dict[str, Tensor]:
    """Booleans, True where a result must be exact: queries that see nothing and keys no query sees."""
    seen = inputs.seen
    empty = ~seen.any(-1, keepdim=True)
    places = {"output": empty, "weights": ~seen}
    places |= dict.fromkeys(("entropy", "max_weight", "jacobian"), empty[..., 0])
    by_key = seen.any(-2).unsqueeze(-1)
    sides = {"query": ~empty, "key": by_key, "value": by_key}
    if "bias" in inputs.tensors:
        sides["bias"] = seen
    for name, used in sides.items():
        unused = ~any_to(used, tuple(inputs.tensors[name].shape))
        places |= {f"gradient of {name} through {through}": unused for through in LOSSES}
    return places


def any_to(used: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Booleans (B, H, ...) reduced by `any` to a shape with fewer heads or with broadcast dims."""
    shape = (1,) * (4 - len(shape)) + shape
    used = used.unflatten(1, (shape[1], -1)).any(2)
    for dim in (0, 2, 3):
        if shape[dim] == 1:
            used = used.any(dim, keepdim=True)
    return used


def measure(expected: Expected, got: Found) -> list[Measure]:
    """The errors of every result of an engine against the textbook."""
    inputs, truth, plain, sizes = expected
    exact, measures = exact_places(inputs), []
    for name in got:
        x, y, z = got[name].detach().cpu(), plain[name], truth[name]
        if inputs.clear is not None and name in ("output", "weights") and x.shape == z.shape:
            # Rounding may decide between two nearly equal keys, so such rows are not compared.
            x, y = (torch.where(inputs.clear, t.double(), z) for t in (x, y))
        measures.append(
            compare(
                name,
                x,
                y,
                z,
                inputs.case.dtype,
                size=sizes.get(name, 0.0),
                logit=sizes["logit"],
                exact=exact.get(name),
            )
        )
    return measures
