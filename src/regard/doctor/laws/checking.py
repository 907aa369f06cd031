"""`check`: test the attention of a model by laws, and leave no trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from regard.describe import describe
from regard.doctor.laws import LAWS
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.declared import declare
from regard.doctor.laws.law import Law, LawVerdict, Ruling
from regard.doctor.laws.map import InfluenceMap, map_of
from regard.doctor.laws.restoring import untouched
from regard.doctor.laws.result import Checked
from regard.mask import Mask

FAILED = "could not be tested"
# A law that is broken at the same place as one of these follows from it.
EXPLAINS = {
    "evaluation-is-a-function": ("distribution-over-keys",),
    "distribution-over-keys": (
        "one-sample-one-answer",
        "who-may-see-whom",
        "padding-is-not-read",
        "gradients-arrive",
        "queries-and-keys-matter",
        "order-is-seen",
    ),
    "who-may-see-whom": ("order-is-seen",),
    "one-sample-one-answer": ("own-token", "who-may-see-whom", "padding-is-not-read"),
    "own-token": ("who-may-see-whom", "padding-is-not-read"),
}
# Decoding compares with the whole pass, which has to be right first, wherever it is broken.
COMPARES = "steps-are-the-whole"
NO_MATTER = ("gradients-arrive", "order-is-seen", "precision-is-enough")


def check(
    model: nn.Module,
    batch: Any,
    *,
    causal: bool | Tensor | Mask | None = None,
    padding: Tensor | str | bool | None = None,
    positions: str | bool | None = None,
    labels: Tensor | None = None,
    segments: Tensor | None = None,
    batch_first: bool | None = None,
    laws: Sequence[str] | None = None,
    on_law: Callable[[str, int, int], None] | None = None,
) -> Checked:
    """Test the attention of a model by laws that hold for every correct model, whatever its weights.

    A law compares two runs of the model: one token is replaced, and outputs that may not see it must stay
    as they are. This takes at most 12 forward and 3 backward passes over the batch, in evaluation mode.
    Weights, buffers, `.grad`, random numbers, training mode and hooks are the same afterwards, bit for bit,
    also after an error or Ctrl-C.

    What is not declared here is taken from `is_causal` of modules, from the names of arguments, from the
    config, and from labels; the result says from what. What is not declared is not tested, which the
    result says too.

    Args:
        model: any module.
        batch: a tensor, or a tuple or dict of all arguments. A few short sequences are enough, better two
            or more, of different tokens and with padding if the model ever sees padding.
        causal: whether outputs may see earlier tokens only; or a boolean mask (T, T) or (B, T, T), or a
            `regard.Mask`, of who may see whom in one layer, True = may see.
        padding: (B, T), True = a real token; or the name of the argument that holds it; False for none.
        positions: "rotary", "relative" or "alibi" act in every layer; True for any other kind, False for
            a model that must not know the order.
        labels: what outputs are scored on, if the model does not take them.
        segments: (B, T), which sequence a token belongs to, where several are packed into one row.
        batch_first: whether the first dim of inputs is the samples; by default as torch's modules say.
        laws: names in `LAWS` to test; None for all.
        on_law: called with the law that begins, the number of laws done, and the total.

    Returns:
        Findings, the ruling of each law, and what was declared: `print` shows it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"check takes an nn.Module, got {describe(model)}")
    chosen = [law for law in LAWS if laws is None or law.name in laws]
    unknown = [] if laws is None else [name for name in laws if name not in {x.name for x in LAWS}]
    if unknown:
        raise ValueError(f"unknown laws {unknown}; known are {', '.join(x.name for x in LAWS)}")
    say = on_law or (lambda name, done, total: None)
    started = time.perf_counter()
    with untouched(model) as restore:
        bench = LawBench(model, batch, batch_first, restore)
        declared = declare(bench, causal, padding, positions, labels, segments)
        rulings = []
        for done, law in enumerate(chosen):
            say(law.title, done, len(chosen))
            rulings.append(tested(law, bench))
        drawn = map_of(bench)
    return Checked(
        bench.root, without_consequences(rulings), list(bench.calls), dict(declared.sources),
        bench.forward, bench.backward, time.perf_counter() - started, drawn,
    )  # fmt: skip


def tested(law: Law, bench: LawBench) -> Ruling:
    """The ruling of a law; an error of the model on changed inputs is a law that was not tested."""
    try:
        return law.test(law, bench)
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        return law.skipped(f"{FAILED}: {type(error).__name__}: {said}")


def without_consequences(rulings: list[Ruling]) -> list[Ruling]:
    """The rulings, where a law that only follows another at the same place is not told twice."""
    # The second call of a module has its name and a number.
    broken = {x.law: x.findings[0].site.partition("#")[0] for x in rulings if x.findings}
    kept = []
    for ruling in rulings:
        causes = [
            law for law, others in EXPLAINS.items()
            if ruling.law in others and ruling.law in broken and broken.get(law) == broken[ruling.law]
        ]  # fmt: skip
        if ruling.padded and "padding-is-not-read" in broken:
            # A query under padding may see anything, and who reads padding sees what it has seen.
            causes.append("padding-is-not-read")
        if ruling.law == COMPARES and ruling.findings:
            causes += [x for x in broken if x not in (COMPARES, *NO_MATTER)]
        if not causes:
            kept.append(ruling)
            continue
        why = f"cannot be told while {causes[0]} is broken at {broken[causes[0]]}"
        kept.append(Ruling(ruling.law, LawVerdict.SKIPPED, why))
    return kept


__all__ = ["InfluenceMap", "check"]
