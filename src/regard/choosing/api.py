"""`regard.choose`: which score for this model and this data.

Imports torch and the standard library alone; what it needs more (optuna, scipy) is loaded when called.
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
    """Train your model with every candidate score under equal budget, and say which to use.

    Candidates are score x stabiliser x hidden width. First each is trained at every learning rate,
    from one seed, by successive halving (Optuna's). Then the best few and scaled dot, each at its
    own best rate, are trained from `seeds` other seeds; the verdict compares those, paired by seed,
    on data that no rate was chosen by. Scaled dot is the null: an alternative has to beat it by more
    than noise and by as much as `matters`.

    Args:
        build_model: from a score to your model, an `nn.Module`; called anew for every training.
        data: (train, validation) or (train, validation, test), each a tuple of arrays
            (inputs ..., target) or a loader of such batches; or a function from a seed to that.
            Without a test part half of the validation part is kept for the result.
        dims: of query and key as the score gets them; one number where they are equal.
        heads: query heads of the score; several numbers to compare them.
        width: of projections, for each head; default the smaller of the dims, divided by the heads.
        projected: put learned projections in front of the scores; by default where dims differ. Your
            model projects where it is False.
        scores: names, or a dict of functions that build scores of your own. Default scaled dot,
            cosine, Gaussian, bilinear and additive.
        stabilizers: names: none, layer_norm, clipped_keys, unit_keys, soft_cap, temperature. Each is
            tried with the scores that it can change.
        hidden: hidden widths to try for pairwise scores.
        metric: "accuracy", "r2", "ndcg" or a function (output, target) to a number, more is better.
            Default by the target: accuracy for integers, r2 for floats.
        loss: what training lowers, a function (output, target); default that of the metric.
        minutes: when to stop; the verdict is then of what is finished.
        seeds: for the final comparison.
        steps: of one training; default as many as fit into the minutes.
        batch: rows in a step, where data are arrays.
        rates: learning rates that every candidate tries.
        matters: the smallest difference that matters, in units of the metric.
        finalists: how many alternatives get to the final.
        storage: a file for Optuna's journal, or the URL of a database, shared by machines.
        name: of the comparison in the storage.
        resume: go on with the last comparison of that name, or join it from another machine. Without
            it a new one begins; that an unfinished one of the same data waits is told.
        jobs: processes.
        device: where to train.
        vitals: let the doctor look at every finalist.
        progress: True for a bar, False for none and no word, or a function that is told.

    Returns:
        The verdict: winner, runner-up, margin with its interval, the cheapest that is
        not behind by as much as matters; it prints as text, and `verdict.save("report.html")` writes
        the report.

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
        raise ValueError(f"dims must be a number, or two of query and key, got {describe(dims)}")
    counts = (heads,) if isinstance(heads, int) else tuple(heads)
    check_sizes(query_dim=pair[0], key_dim=pair[1], seeds=seeds, steps=steps, batch=batch)
    check_sizes(finalists=finalists, jobs=jobs, width=width)
    check_positive(minutes=minutes)
    for rate in rates:
        check_positive(rates=rate)
    if not rates or not counts or not (matters >= 0 and math.isfinite(matters)):
        raise ValueError("rates and heads must not be empty, and matters must be 0 or more")
    wide = width or max(min(pair) // max(counts), 1)
    sizes = ScoreSizes(*pair, wide, pair[0] != pair[1] if projected is None else projected)
    asked = candidates(sizes, scores, stabilizers, hidden, counts)
    if progress and not callable(progress) and not resume:  # before there is a bar
        tell_unfinished(storage, name, data)
    with shown(progress) as tell:
        order = ChooseOrder(
            build_model, data, asked, metric, loss, minutes, seeds, steps, batch, sorted(rates),
            matters, finalists, storage, name, resume, jobs, torch.device(device), vitals, tell,
        )  # fmt: skip
        return run(order)


def tell_unfinished(storage: str | Path, name: str, data: Data) -> None:
    """Say that a run of the same data waits to be gone on with, as the command does."""
    from regard.choosing.training.series import left_behind
    from regard.choosing.training.show import UNFINISHED

    if left_behind(storage, name, data):
        print(UNFINISHED.format(resume="resume=True"), file=sys.stderr, flush=True)


def check_lists(**given: Any) -> None:
    """Raise for one name or number where several are asked for."""
    for name, value in given.items():
        if isinstance(value, (str, int, float)):
            raise ValueError(f"{name} must be a list, as [{value!r}], got {describe(value)}")


def need() -> None:
    """Say how to install what is missing."""
    for package in NEEDS:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"regard.choose needs {package}: {INSTALL}")


def __getattr__(name: str) -> object:
    """`Verdict` and `ChooseError` by this module, without loading them before they are used."""
    if name == "Verdict":
        from regard.choosing.training.verdict import Verdict

        return Verdict
    if name == "ChooseError":
        from regard.choosing.training.errors import ChooseError

        return ChooseError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
