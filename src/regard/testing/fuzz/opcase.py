"""A fuzzed call of `attention`, `attend` or `score`: what is drawn of it, as plain data.

Shapes follow from sizes and flags, so that a case stays consistent when it is shrunk.

Shape legend: `*` leading dims, H query heads, K key heads, V value heads, Q query length, L key length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.testing.cases import DTYPES
from regard.testing.fuzz.layouts import LAYOUTS
from regard.testing.fuzz.masks import Part, draw_parts
from regard.testing.wrappers import SCORES

INNER = tuple(name for name, row in SCORES.items() if row.form == "inner")
PAIRWISE = tuple(name for name, row in SCORES.items() if row.form == "pairwise")
ANY_WIDTH = ("dot", "scaled_dot", "cosine fixed", "gaussian fixed")
TANH = tuple(name for name in PAIRWISE if "additive" in name)
ENGINES = (None, "reference", "cpu", "compiled", "sdpa", "plain", "sine")
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
# Engines that keep NaN of a partly visible key out of the rows that do not see it.
KEEPS_PARTLY_HIDDEN = ("reference", "cpu", "triton")


@dataclass(frozen=True)
class OpCase:
    """One call of the op.

    `shared` says of query, key and value which leading dims have size 1. `bias` and a dense mask hold a flag
    for each dim, False for size 1; `temperature` is a number, or ("tensor", flags, with zeros).
    """

    seed: int
    dtype: str = "fp32"
    engine: str | None = None
    function: str = "attention"
    score: str = "scaled_dot"
    lead: tuple[int, ...] = (1,)
    has_heads: bool = True
    shared: tuple[tuple[bool, ...], ...] = ((False,), (False,), (False,))
    heads: int = 1
    key_heads: int = 1
    value_heads: int = 1
    queries: int = 1
    keys: int = 1
    dim: int = 2
    value_dim: int = 2
    layouts: tuple[str, ...] = ("plain", "plain", "plain", "plain")
    mask: tuple[Part, ...] = ()
    bias: tuple[bool, ...] = ()
    bias_hides: bool = False
    wide_bias: bool = False
    sink: str = ""
    temperature: tuple = ("number", 1.0)
    softcap: float | None = None
    want: tuple[str, ...] = ()
    lowered: bool = False
    poison: str = ""
    grad: bool = False
    size: float = 1.0
    error: float | None = None

    @property
    def ndim(self) -> int:
        """Of query, key and value."""
        return len(self.lead) + 2 + self.has_heads

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]

    @property
    def hard(self) -> bool:
        """Whether the temperature is the number 0."""
        return self.temperature == ("number", 0.0)

    def shape(self, side: int) -> tuple[int, ...]:
        """Of the query (0), key (1) or value (2)."""
        row = SCORES[self.score]
        lead = tuple(1 if one else n for n, one in zip(self.lead, self.shared[side], strict=True))
        heads = (self.heads, self.key_heads, self.value_heads)[side]
        if row.one_input_head and side < 2:
            heads = 1
        query_dim, key_dim = self.dim, max(self.dim * 3 // 4, 1) if row.unequal else self.dim
        width = (query_dim, key_dim, self.value_dim)[side]
        length = self.queries if side == 0 else self.keys
        return (*lead, *((heads,) if self.has_heads else ()), length, width)

    @property
    def full_lead(self) -> tuple[int, ...]:
        """The leading dims that the call broadcasts to."""
        return tuple(
            1 if all(one) else n
            for n, one in zip(self.lead, zip(*self.shared, strict=True), strict=True)
        )

    def simpler(self) -> Iterator[OpCase]:
        """Cases with one thing less, the most telling first."""
        plain = OpCase(self.seed)
        for name in ("mask", "bias", "sink", "temperature", "softcap", "want", "poison", "size"):
            if getattr(self, name) != getattr(plain, name):
                yield replace(self, **{name: getattr(plain, name)})
        for name in ("lowered", "wide_bias", "bias_hides", "layouts", "grad", "function", "score"):
            if getattr(self, name) != getattr(plain, name):
                fit = {"want": ()} if name == "function" else {}
                yield replace(self, **{name: getattr(plain, name)}, **fit)
        if len(self.mask) > 1:
            for i in range(len(self.mask)):
                yield replace(self, mask=self.mask[:i] + self.mask[i + 1 :])
        if len(self.want) > 1:
            for name in self.want:
                yield replace(self, want=(name,))
        fixed = self.bias or self.temperature[0] != "number"
        if len(self.lead) > 1 and not fixed and all(p[0] != "dense" for p in self.mask):
            shared = tuple(one[1:] for one in self.shared)
            yield replace(self, lead=self.lead[1:], shared=shared)
        if self.heads > 1:
            yield replace(self, heads=1, key_heads=1, value_heads=1)
        for i, n in enumerate(self.lead):
            if n > 1:
                yield replace(self, lead=(*self.lead[:i], 1, *self.lead[i + 1 :]))
        for name in ("keys", "queries", "dim", "value_dim"):
            n = getattr(self, name)
            for smaller in sorted({1, 2, n // 2, n - 1}):
                if 0 < smaller < n:
                    yield replace(self, **{name: smaller})
        if self.dtype != "fp32":
            yield replace(self, dtype="fp32")

    def __str__(self) -> str:
        """What differs from the plainest case."""
        plain = OpCase(self.seed)
        parts = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__dataclass_fields__
            if name == "seed" or getattr(self, name) != getattr(plain, name)
        ]
        return f"OpCase({', '.join(parts)})"


def size_of(rng: random.Random, empty: float = 0.03) -> int:
    """A length: mostly up to 9, now and then around a block, 0 as often as `empty`."""
    draw = rng.random()
    if draw < empty:
        return 0
    if draw > 0.985:
        return rng.choice((17, 33, 130))
    return rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9))


def draw_case(seed: int, engine: str | None = "any") -> OpCase:
    """The call of one integer, by an engine of `ENGINES` or by the one that is named."""
    rng = random.Random(seed)  # noqa: S311 # cases, not secrets
    drawn = rng.choice(ENGINES)
    engine = drawn if engine == "any" else engine
    fitting = rng.random() < 0.95
    score = _draw_score(rng, engine if fitting else None)
    row = SCORES[score]
    ndim = rng.choice((2, 3, 3, 4, 4, 4, 4, 4, 4, 5))
    has_heads = ndim > 3
    lead = tuple(
        rng.choice((1, 1, 1, 2, 3)) if rng.random() > 0.02 else 0
        for _ in range(ndim - 2 - has_heads)
    )
    heads = rng.choice((1, 1, 2, 2, 3, 4, 6)) if has_heads else 1
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    sides = tuple(tuple(rng.random() < 0.15 for _ in lead) for _ in range(3))
    dim = 0 if score in ANY_WIDTH and rng.random() < 0.01 else max(size_of(rng, 0), 1)
    dim = min(dim, 33)
    if any(word in score for word in ("cosine", "unit", "normalised", "clipped")):
        # Of one number, or of two without their mean, the direction is constant: its gradient is rounding alone.
        dim = max(dim, 4)
    queries, keys = size_of(rng), size_of(rng)
    long = queries * keys * max(dim, 1) > 2**16
    dtype = rng.choice(("fp64", "fp32", "fp32", "bf16", "fp16"))
    case = OpCase(
        seed=seed,
        dtype=dtype,
        engine=engine,
        score=score,
        lead=lead,
        has_heads=has_heads,
        shared=sides,
        heads=heads,
        key_heads=rng.choice(divisors),
        value_heads=rng.choice(divisors),
        queries=queries,
        keys=9 if long else keys,
        dim=dim,
        value_dim=min(size_of(rng, 0.02), 33),
        grad=rng.random() < 0.35,
        size=_draw_size(rng, dtype),
    )
    if rng.random() < 0.3:
        layouts = tuple(rng.choice(LAYOUTS) if rng.random() < 0.6 else "plain" for _ in range(4))
        case = replace(case, layouts=layouts)
    case = _draw_options(rng, case, engine if fitting else None)
    if row.one_input_head:
        # The score makes as many heads as it was built for.
        case = replace(case, key_heads=case.key_heads if has_heads else 1)
    return _draw_poison(rng, case)


def _draw_size(rng: random.Random, dtype: str) -> float:
    """How large queries, keys and values are: mostly 1; large logits saturate every softmax."""
    if rng.random() < 0.7:
        return 1.0
    half = dtype in ("bf16", "fp16")
    return rng.choice((0.01, 1e-4, 3.0, 10.0) if half else (0.01, 1e-6, 8.0, 8.0, 100.0))


def _draw_score(rng: random.Random, engine: str | None) -> str:
    if engine == "sdpa":
        return rng.choice([name for name in INNER if SCORES[name].softcap is None])
    if engine == "plain":
        return rng.choice([name for name in PAIRWISE if SCORES[name].softcap is None])
    if engine == "sine":
        return rng.choice(TANH)
    if engine == "compiled":
        return rng.choice(PAIRWISE)
    return rng.choice((*INNER, *PAIRWISE, "scaled_dot", "additive"))


def _draw_options(rng: random.Random, case: OpCase, engine: str | None) -> OpCase:
    """Mask, bias and the rest; only what the engine serves where one is given."""
    few = engine in ("sdpa", "plain", "sine")
    changes: dict = {}
    if rng.random() < 0.55:
        changes["mask"] = draw_parts(rng, case.ndim, only_keys=engine == "plain")
    if rng.random() < 0.2 and engine != "plain":
        dims = 2 if case.ndim == 2 or rng.random() < 0.4 else case.ndim
        changes["bias"] = tuple(rng.random() < 0.7 for _ in range(dims))
        changes["bias_hides"] = rng.random() < 0.4
        changes["wide_bias"] = rng.random() < 0.3
    if rng.random() < 0.15 and engine not in ("sdpa", "plain"):
        changes["sink"] = rng.choice(("heads", "heads", "one", "scalar"))
    if rng.random() < 0.15 and engine not in ("sdpa", "plain") and not SCORES[case.score].softcap:
        changes["softcap"] = rng.choice((0.5, 2.0, 30.0))
    if rng.random() < 0.3:
        number = rng.choice((0.5, 2.0, 0.1, 1, 1.5))
        changes["temperature"] = ("number", number)
        if not few and rng.random() < 0.5:
            flags = rng.choice(("heads", "scalar", "rows"))
            if flags == "rows":
                flags = tuple(rng.random() < 0.7 for _ in range(case.ndim - 1))
            changes["temperature"] = ("tensor", flags, rng.random() < 0.4)
        elif not few and rng.random() < 0.3 and "sink" not in changes:
            changes["temperature"] = ("number", 0.0)
    if rng.random() < 0.35 and engine not in ("sdpa", "sine"):
        names = ("weights",) if engine == "plain" else STATISTICS
        if changes.get("temperature") == ("number", 0.0):
            names = ("entropy", "max_weight", "jacobian", "weights")
        changes["want"] = tuple(name for name in names if rng.random() < 0.5)
        changes["function"] = "attend"
    elif engine is None and rng.random() < 0.06:
        lowered = case.has_heads and rng.random() < 0.3
        return replace(case, function="score", engine=None, lowered=lowered)
    if case.has_heads and rng.random() < 0.1:
        changes["lowered"] = True
    return replace(case, **changes)


def _draw_poison(rng: random.Random, case: OpCase) -> OpCase:
    """NaN or infinities, hidden or seen. Lowered keys promise nothing of the tensor they came from."""
    if case.function == "score" or case.lowered or rng.random() > 0.3:
        return case
    kinds = ["hidden", "hidden inf"] if case.mask or case.bias_hides else []
    kinds += ["query"]
    if case.engine in KEEPS_PARTLY_HIDDEN or not (case.mask or case.bias):
        kinds += ["key", "value", "inf key"]
    return replace(case, poison=rng.choice(kinds))
