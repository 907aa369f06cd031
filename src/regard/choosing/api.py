"""`regard.choose`: compares scores on a model and its data by training, and recommends one.

This module imports only torch and the standard library. optuna and scipy are loaded when `choose` is
called, since `import regard` must not need them.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    build_model: Callable[[Score], nn.Module] | Any = None,
    data: Data | None = None,
    *,
    query: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    value: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    mask: str | Sequence[str] | None = None,
    lengths: str | None = None,
    drop: str | Sequence[str] | None = None,
    kind: Literal["auto", "classification", "regression", "ranking"] = "auto",
    queries: Any = None,
    documents: Any = None,
    judgements: Any = None,
    dims: int | tuple[int, int] | None = None,
    heads: int | Sequence[int] | None = None,
    width: int | None = None,
    projected: bool | None = None,
    scores: Sequence[str] | Mapping[str, Callable[[], Score]] | None = None,
    stabilizers: Sequence[str] = ("none", "layer_norm", "clipped_keys"),
    hidden: Sequence[int] | None = None,
    metric: str | Callable | None = None,
    loss: Callable | None = None,
    group: Any = None,
    split: Any = None,
    standardize: bool | Literal["auto"] = "auto",
    baselines: bool | None = None,
    control: bool | None = None,
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
    """Train your model, or one of ours on your data, with every candidate score, and recommend one.

    `regard.choose(Model, data, dims=8)` compares scores in your model. `regard.choose(frame, target="label")`
    compares them in a model of ours on a frame, a dict of columns or a file; docs/choose.md shows
    which columns play which part.

    A candidate is a score with a stabiliser and, for pairwise scores, a hidden width. First each
    candidate is trained from one seed at every learning rate, by Optuna's successive halving. Then the
    best few and scaled dot, each at its own best rate, are trained from `seeds` other seeds. The verdict
    compares these final trainings, paired by seed, on data that was not used to choose the rates.
    Scaled dot with the same heads and width is the null of a candidate: an alternative wins only if its
    lead exceeds noise and is at least `matters`.

    Args:
        build_model: a function from a score to your model, an `nn.Module`; called for every training. Or
            your data: a frame (pandas, polars, Arrow), a dict of columns or arrays, or a path.
        data: (train, validation) or (train, validation, test), each a tuple of arrays
            (inputs ..., target) or a loader of such batches; or a function from a seed to that.
            Without a test part, half of the validation part is held out for the result. Or one set
            of arrays (inputs ..., target), which is split for you.
        query: of a frame, the columns of the query: a name, a prefix, a range "q_0..q_7" or a list of these.
        key: the columns of the keys, k0_x, k0_y, k1_x, ...; without a query, columns that attend to one
            another.
        value: the columns of what keys carry, if the answer is computed from it.
        target: the column of the answer; alone, every other column is a key.
        mask: columns that say which keys of a row are real.
        lengths: the column that says how many keys of a row are real.
        drop: columns to leave out.
        kind: what the target is.
        queries: a table of queries, ids and numbers; with `documents` and `judgements`.
        documents: a table of documents, ids and numbers.
        judgements: a table or a file of query id, document id and relevance.
        dims: dims of query and key as the score gets them; one number if they are equal. Not needed for a
            model with `regard.nn.MultiheadAttention` inside, as `replace_attention` makes it.
        heads: query heads of the score; several numbers to compare them. Default 1.
        width: width of projections over all heads; default the smaller of the dims.
        projected: put learned projections in front of the scores; default True if the dims differ. With
            False your model does the projecting.
        scores: names, or a dict of functions that build your own scores. Default scaled dot, cosine,
            Gaussian, bilinear and additive.
        stabilizers: names among none, layer_norm, clipped_keys, unit_keys, soft_cap, temperature. Each
            is tried with the scores that it affects.
        hidden: hidden widths over all heads to try for pairwise scores.
        metric: "accuracy", "r2", "ndcg" or a function (output, target) to a number; higher is better.
            By default accuracy for integer targets and r2 for float targets.
        loss: the training loss, a function (output, target); default the loss of the metric.
        group: for one set of arrays, a name or number for each row; rows of a group stay in one part. For
            a frame, the name of that column.
        split: for one set of arrays, the part of each row: train, validation or test; for a frame its name.
        standardize: scale inputs and float targets to mean 0 and variance 1 on the training part, for
            every candidate alike; the metric gets targets as they were. "auto" does it for files and
            frames, and leaves what goes into your own model as it is.
        baselines: train models without attention too: nearest neighbours, a linear model, gradient
            boosting; needs scikit-learn. By default if the data is one set of arrays, a file or a frame.
        control: train the best finalist again on shuffled targets, which shows what it reaches without
            learning. By default unless data is a function.
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
    arguments = dict(locals())
    need()
    from regard.choosing.tasks.frames import is_data

    if is_data(build_model) or queries is not None:
        from regard.choosing.tasks.asked import choose_on_data

        return choose_on_data(arguments)
    check_parts(arguments)
    return choose_for_model(arguments)


def choose_for_model(given: dict[str, Any]) -> Verdict:
    """The verdict for a model of the user's own, from the arguments of `choose`."""
    from regard.choosing.training.order import ordered_by
    from regard.choosing.training.run import run
    from regard.choosing.training.show import shown

    check_arguments(given)
    order, progress = ordered_by(given), given["progress"]
    # Printed before the progress bar starts, which would overwrite the message.
    if progress and not callable(progress) and not order.resume:
        tell_unfinished(order.storage, order.name, order.data)
    with shown(progress) as tell:
        return run(replace(order, progress=tell))


def check_parts(arguments: dict[str, Any]) -> None:
    """Raise ValueError for names of columns that come without a frame."""
    names = (
        "query",
        "key",
        "value",
        "target",
        "mask",
        "lengths",
        "drop",
        "documents",
        "judgements",
    )
    given = [name for name in names if arguments[name] is not None]
    if given:
        raise ValueError(
            f"{given[0]}= names columns of a frame, which is the first argument: regard.choose(frame, "
            f"{given[0]}=...); a model of your own gets arrays, data=(inputs ..., target)"
        )


def check_arguments(given: dict[str, Any]) -> None:
    """Raise TypeError or ValueError for an argument of `choose` that cannot be."""
    build = given["build_model"]
    if not callable(build):
        raise TypeError(f"build_model must be a function of a score, got {describe(build)}")
    check_lists(**{name: given[name] for name in ("scores", "stabilizers", "hidden", "rates")})
    counts = ("seeds", "steps", "batch", "finalists", "jobs")
    check_sizes(**{name: given[name] for name in counts})
    check_positive(minutes=given["minutes"])
    for rate in given["rates"]:
        check_positive(rates=rate)
    if not given["rates"]:
        raise ValueError(f"rates must not be empty, got {given['rates']!r}")
    matters, standardize = given["matters"], given["standardize"]
    if not (matters >= 0 and math.isfinite(matters)):
        raise ValueError(f"matters must be a finite number of 0 or more, got {matters!r}")
    if standardize not in (True, False, "auto"):
        raise ValueError(f'standardize must be True, False or "auto", got {describe(standardize)}')


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
