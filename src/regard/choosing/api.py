"""`regard.choose`: compares scores on a model and its data by training, and recommends one.

This module imports only torch and the standard library. optuna and scipy are loaded when `choose` is
called, since `import regard` must not need them.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.arguments import check_positive, check_sizes
from regard.describe import describe
from regard.scores import Score

if TYPE_CHECKING:
    from regard.choosing.training.data import Data
    from regard.choosing.training.verdict import Verdict

NEEDS = ("optuna", "scipy")
INSTALL = "pip install 'regard[choose]'"
STORAGE = Path("regard-choose") / "study.journal"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


def choose(
    build_model: Callable[[Score], nn.Module],
    data: Sequence[Any] | Callable[[int], Sequence[Any]],
    *,
    dims: int | tuple[int, int],
    heads: int | Sequence[int] = 1,
    width: int | None = None,
    projected: bool | None = None,
    scores: Sequence[str] | Mapping[str, Callable[[], Score]] | None = None,
    stabilizers: Sequence[str] = ("none", "layer_norm", "clipped_keys"),
    hidden: Sequence[int] | None = None,
    metric: str | Callable | None = None,
    loss: Callable | None = None,
    minutes: float = 5.0,
    seeds: int = 5,
    steps: int | None = None,
    batch: int = 64,
    rates: Sequence[float] = RATES,
    matters: float = 0.01,
    finalists: int = 4,
    storage: str | Path = STORAGE,
    name: str = "choose",
    resume: bool = False,
    jobs: int = 1,
    device: str | torch.device = "cpu",
    vitals: bool = True,
    progress: Callable[[str, float, float], None] | bool = True,
) -> Verdict:
    """Train your model with every candidate score under equal budgets, and recommend one.

    A candidate is a score with a stabiliser and, for pairwise scores, a hidden width. First each
    candidate is trained from one seed at every learning rate, by Optuna's successive halving. Then the
    best few and scaled dot, each at its own best rate, are trained from `seeds` other seeds. The verdict
    compares these final trainings, paired by seed, on data that was not used to choose the rates.
    Scaled dot is the null: an alternative wins only if its lead exceeds noise and is at least `matters`.

    Args:
        build_model: a function from a score to your model, an `nn.Module`; called for every training.
        data: (train, validation) or (train, validation, test), each a tuple of arrays
            (inputs ..., target) or a loader of such batches; or a function from a seed to that.
            Without a test part, half of the validation part is held out for the result.
        dims: dims of query and key as the score gets them; one number if they are equal.
        heads: query heads of the score; several numbers to compare them.
        width: width of projections for each head; default the smaller of the dims, divided by the heads.
        projected: put learned projections in front of the scores; default True if the dims differ. With
            False your model does the projecting.
        scores: names, or a dict of functions that build your own scores. Default scaled dot, cosine,
            Gaussian, bilinear and additive.
        stabilizers: names among none, layer_norm, clipped_keys, unit_keys, soft_cap, temperature. Each
            is tried with the scores that it affects.
        hidden: hidden widths to try for pairwise scores.
        metric: "accuracy", "r2", "ndcg" or a function (output, target) to a number; higher is better.
            By default accuracy for integer targets and r2 for float targets.
        loss: the training loss, a function (output, target); default the loss of the metric.
        minutes: time limit; the verdict then uses the trainings that are finished.
        seeds: number of seeds of the final comparison.
        steps: steps of one training; default as many as fit into the minutes.
        batch: rows per step, if the data are arrays.
        rates: learning rates that every candidate tries.
        matters: the smallest difference that matters, in units of the metric.
        finalists: number of alternatives in the final comparison.
        storage: a file for Optuna's journal, or the URL of a database that several machines share.
        name: name of the comparison in the storage.
        resume: continue the last comparison of that name, or join it from another machine. By default a
            new one begins, and a message tells you if an unfinished one of the same data exists.
        jobs: number of processes.
        device: where to train.
        vitals: let the doctor examine every finalist.
        progress: True for a progress bar, False for no output, or a function that is called with a
            label, the fraction done and the seconds left.

    Returns:
        The verdict: winner, runner-up, margin with its interval, and the cheapest candidate whose
        deficit is below `matters`. It prints as text, and `verdict.save("report.html")` writes the
        report.

    Raises:
        ChooseError: every candidate failed, or the data or storage cannot be used.
    """
    need()
    from regard.choosing.training.candidates import ScoreSizes, candidates
    from regard.choosing.training.run import ChooseOrder, run
    from regard.choosing.training.show import shown

    if not callable(build_model):
        raise TypeError(f"build_model must be a function of a score, got {describe(build_model)}")
    check_lists(scores=scores, stabilizers=stabilizers, hidden=hidden, rates=rates)
    pair = (dims, dims) if isinstance(dims, int) else dims
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"dims must be a number, or two numbers for query and key, got {describe(dims)}"
        )
    counts = (heads,) if isinstance(heads, int) else tuple(heads)
    check_sizes(query_dim=pair[0], key_dim=pair[1], seeds=seeds, steps=steps, batch=batch)
    check_sizes(finalists=finalists, jobs=jobs, width=width)
    check_positive(minutes=minutes)
    check_choices(rates, counts, matters)
    # The same projection width for all head counts, so that only the number of heads differs.
    wide = width or max(min(pair) // max(counts), 1)
    sizes = ScoreSizes(*pair, wide, pair[0] != pair[1] if projected is None else projected)
    asked = candidates(sizes, scores, stabilizers, hidden, counts)
    # Printed before the progress bar starts, which would overwrite the message.
    if progress and not callable(progress) and not resume:
        tell_unfinished(storage, name, data)
    with shown(progress) as tell:
        order = ChooseOrder(
            build_model, data, asked, metric, loss, minutes, seeds, steps, batch, sorted(rates),
            matters, finalists, storage, name, resume, jobs, torch.device(device), vitals, tell,
        )  # fmt: skip
        return run(order)


def tell_unfinished(storage: str | Path, name: str, data: Data) -> None:
    """Print a message if the storage holds an unfinished run on the same data."""
    from regard.choosing.training.series import left_behind
    from regard.choosing.training.show import UNFINISHED

    if left_behind(storage, name, data):
        print(UNFINISHED.format(resume="resume=True"), file=sys.stderr, flush=True)


def check_lists(**given: Any) -> None:
    """Raise ValueError for an argument that is a single name or number instead of a list."""
    for name, value in given.items():
        if isinstance(value, (str, int, float)):
            raise ValueError(f"{name} must be a list such as [{value!r}], got {describe(value)}")


def check_choices(rates: Sequence[float], heads: Sequence[int], matters: float) -> None:
    """Raise ValueError for rates, head counts or a smallest difference that cannot be used."""
    for rate in rates:
        check_positive(rates=rate)
    if not rates or not heads:
        raise ValueError(f"rates and heads must not be empty, got {rates!r} and {heads!r}")
    if not (matters >= 0 and math.isfinite(matters)):
        raise ValueError(f"matters must be a finite number of 0 or more, got {matters!r}")


def need() -> None:
    """Raise ImportError with the install command if a needed package is missing."""
    for package in NEEDS:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"regard.choose needs {package}: {INSTALL}")


def __getattr__(name: str) -> object:
    """Load `Verdict` and `ChooseError` on first access: the verdict's module imports scipy."""
    if name == "Verdict":
        from regard.choosing.training.verdict import Verdict

        return Verdict
    if name == "ChooseError":
        from regard.choosing.training.errors import ChooseError

        return ChooseError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
