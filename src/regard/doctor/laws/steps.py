"""Steps are the whole: decoding token by token with a cache gives what one pass over all tokens gives.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor.laws.bench import FORWARD, SEED, LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.layout import arranged, tensors_in
from regard.doctor.laws.passes import SIDES, Key, Listening
from regard.doctor.laws.recording import Recorder
from regard.doctor.probing.inputs import names_of
from regard.doctor.signature import text_config

# Arguments and outputs that hold a cache.
CACHES = ("past_key_values", "past_key_value", "past_kv", "kv_cache", "cache", "past", "layer_past")
# Arguments that ask for one.
ASKS = ("use_cache", "return_cache", "with_cache")
STEPS = 2  # decoded alone; the tokens before them make the cache in one pass
# Kernels for one query sum in another order than those for many: so many times the rounding is allowed.
ROUNDINGS = 2000
ADVICE = (
    "positions of a step begin at the length of the cache, and not at 0",
    (
        "the mask of a step has a column for each cached key; is_causal=True aligns it at the top left, where one "
        "query sees the first key alone"
    ),
    "the new key and value are appended after the cached ones, and both caches are reordered together",
)
SOURCE = f"{ROUNDINGS} roundings of the dtype"


class StepPass(Listening):
    """A pass over some tokens that keeps what the last of them has at each attention call."""

    def __init__(self, bench: LawBench, count: int, stop: int) -> None:
        super().__init__(bench.base.streams)
        # Queries are those of this pass, keys those of the cache too.
        self.sizes = bench.sizes._replace(lengths=(count, stop, *bench.sizes.lengths))
        self.kept: dict[Key, Tensor] = {}

    def event(self, key: Key, x: Tensor) -> None:
        """Keep the row of the last token."""
        rows = arranged(x.detach(), self.sizes, of_call=key[1] in SIDES)
        if rows is not None and (rows[1] or key[1] in SIDES):
            self.kept[key] = rows[0][:, -1]


class Cached(NamedTuple):
    """How a model is decoded: the name of its cache, and the arguments that ask for one."""

    name: str
    asks: dict[str, bool]


def test(law: Law, bench: LawBench) -> Ruling:
    """Read all tokens but the last two into a cache, decode these two, and compare with the base pass."""
    how = cached_by(bench)
    reason = why_not(bench, how)
    if how is None or reason:
        return law.skipped(reason)
    length = bench.target.length  # type: ignore[union-attr] # `why_not` asks for a target
    try:
        passes = decoded(bench, how, length)
    except NoCache as error:
        return law.skipped(str(error))
    real = bench.declared.real.get(bench.target.name)  # type: ignore[union-attr]
    most = 0.0
    for at, seen in passes:
        keep = torch.ones(bench.sizes.batch, dtype=torch.bool) if real is None else real[:, at]
        moved = {key: apart(bench, key, x, at, keep) for key, x in seen.items()}
        outputs = {key: x for key, x in moved.items() if key[1].startswith("output:")}
        limit = limit_of(bench, outputs)
        most = max(most, *outputs.values(), 0.0)
        if any(x > limit for x in outputs.values()):
            return broken(law, bench, at, moved, limit)
    told = "with the padding of the batch" if real is not None else "without padding"
    return law.held(
        f"the last {STEPS} tokens decoded with {how.name}, {told}: outputs differ by {most:.1g}"
    )


class NoCache(Exception):
    """The model gave no cache."""


def cached_by(bench: LawBench) -> Cached | None:
    """The cache that the model's forward takes."""
    try:
        taken = inspect.signature(bench.inner.forward).parameters
    except (TypeError, ValueError):
        return None
    name = next((x for x in CACHES if x in taken), None)
    return None if name is None else Cached(name, {x: True for x in ASKS if x in taken})


def why_not(bench: LawBench, how: Cached | None) -> str:
    """Why the law does not apply, "" if it does."""
    target, config = bench.target, text_config(bench.inner)
    if how is None:
        return "the model takes no cache"
    if target is None or target.shifted or len(bench.streams) > 1:
        return "not tested for models of two streams"
    if bench.declared.causal is not True:
        return "only a causal model can be decoded; causal= is not declared"
    if target.length < STEPS + 2:
        return f"the sequences have fewer than {STEPS + 2} tokens"
    if getattr(config, "cache_implementation", None):
        return "the config asks for a cache of its own kind, which may be quantised"
    if bench.forward >= FORWARD:
        return f"the {FORWARD} passes are spent; check(laws=['steps-are-the-whole']) tests it"
    return ""


def decoded(bench: LawBench, how: Cached, length: int) -> list[tuple[int, dict[Key, Tensor]]]:
    """For each token decoded alone its place, and what was seen in its pass."""
    bench.forward += 1  # each token is read once: together that is one pass over the batch
    bench.restore()
    torch.manual_seed(SEED)
    found, cache, start = [], None, 0
    for stop in (length - STEPS, *range(length - STEPS + 1, length + 1)):
        listener = StepPass(bench, stop - start, stop)
        batch = part(bench, start, stop) | how.asks
        batch = batch if cache is None else {**batch, how.name: cache}
        with Recorder(bench.model, listener).start(), torch.no_grad():
            output = bench.model(**batch)
        cache = cache_in(output, how.name)
        if cache is None and stop < length:
            raise NoCache(f"the model takes {how.name} and returned none")
        listener.stack.clear()
        for name, x in tensors_in(output):
            listener.event(("", f"output:{name}", 1), x)
        if start:
            found.append((stop - 1, listener.kept))
        start = stop
    return found


def part(bench: LawBench, start: int, stop: int) -> dict[str, Any]:
    """The batch as keyword arguments, with its tokens from `start` to `stop`, and masks up to there."""
    target = bench.target
    assert target is not None
    found: dict[str, Any] = {}
    named: Mapping[str, Any] = names_of(bench.inner, bench.batch)
    if isinstance(bench.batch, Mapping):
        named = bench.batch
    for name, x in named.items():
        fits = (
            isinstance(x, Tensor)
            and x.ndim > 1
            and x.shape[:2] == (bench.sizes.batch, target.length)
        )
        if not fits:
            found[name] = x
        elif x is target.given or "position" in name:
            found[name] = x[:, start:stop]
        elif "label" not in name and "target" not in name:
            found[name] = x[:, :stop]
    return found


def cache_in(output: Any, name: str) -> Any:
    """The cache that a model returns: by its name, or the part of a tuple that is no tensor."""
    if isinstance(output, Mapping):
        return next((output[x] for x in (name, *CACHES) if output.get(x) is not None), None)
    if hasattr(output, name):
        return getattr(output, name)
    if isinstance(output, tuple | list):
        return next((x for x in output[1:] if not isinstance(x, Tensor) and x is not None), None)
    return None


def apart(bench: LawBench, key: Key, row: Tensor, at: int, keep: Tensor) -> float:
    """How far a row (B, F) is from that of the base pass, over the size of the tensor; 0 if it has none."""
    kept = bench.base.tensors.get(key)
    rows = None if kept is None else arranged(kept[0], bench.sizes, of_call=key[1] in SIDES)
    if rows is None or not rows[1] or rows[0].shape[1] <= at or rows[0][:, at].shape != row.shape:
        return 0.0
    before, after = rows[0][:, at][keep].float(), row[keep].float()
    size = float(rows[0].float().abs().max())
    if not before.numel() or size == 0.0:
        return 0.0
    return float((before - after).abs().nan_to_num(torch.inf).max()) / size


def limit_of(bench: LawBench, outputs: Mapping[Key, float]) -> float:
    """By how much an output may differ."""
    eps = max((torch.finfo(bench.base.tensors[k][0].dtype).eps for k in outputs), default=0.0)
    return min(ROUNDINGS * eps, 0.1)


def broken(law: Law, bench: LawBench, at: int, moved: Mapping[Key, float], limit: float) -> Ruling:
    """The ruling that names the first attention call that differs, and in what."""
    most = max(x for key, x in moved.items() if key[1].startswith("output:"))
    first = next((k for k, x in moved.items() if k[1] in SIDES and x > limit), None)
    site = bench.root if first is None else first[0]
    line = bench.calls[site].code if site in bench.calls else ""
    where = f"{site}{f' ({line})' if line else ''}"
    said = (
        f"Token {at} was decoded alone with a cache of the tokens before it, and its output differs from that of "
        f"one pass over all tokens. "
    )
    said += (
        "No attention call differs before the output does."
        if first is None
        else f"The first place is the {first[1]} of {where}."
    )
    finding = finding_of(
        law, site, said, ADVICE, moved=most, allowed=limit, what="difference of the outputs",
        source=SOURCE, title="decoding with a cache is not the whole pass",
    )  # fmt: skip
    return law.broken(
        "a token decoded with a cache differs from the same token in one pass", finding
    )


LAW = Law(
    "steps-are-the-whole",
    "steps are the whole",
    "A token decoded with a cache has the output that one pass over all tokens gives it.",
    test,
)
