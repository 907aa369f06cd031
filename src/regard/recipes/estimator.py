"""`Recipe`: the estimator that every recipe is, in the manner of scikit-learn.

Arguments of the constructor are kept as they are and checked in `fit`, so that `sklearn.base.clone`, grid searches
and pipelines work. Names of what `fit` learns end in an underscore.
"""

from __future__ import annotations

import copy
import json
import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import nn

import regard
from regard import Score
from regard.arguments import checked_device
from regard.describe import describe
from regard.measuring.failures import first_line
from regard.measuring.files import write_atomic
from regard.recipes.arguments import check_training
from regard.recipes.bounded import bounded
from regard.recipes.datasets import Dataset, Part
from regard.recipes.fingerprint import fingerprint_of
from regard.recipes.metrics import Metric
from regard.recipes.training import TrainingHistory, TrainingProgress
from regard.scores.lookup import check_name

RECIPE_ENTRY = "regard-recipe"
LARGEST_FILE = 2 * 2**30  # bytes of a saved model that `load` accepts


class RecipeError(ValueError):
    """A mistake in the data or the arguments of a recipe; the message says what would work."""


class Recipe(BaseEstimator):
    """Base class of recipes.

    A subclass has a constructor that stores its arguments, among them `score` (a name, a `Score` or None for
    scaled dot), `seed` and `device`; `fit`, `predict` and `statistics`; and for saving `learned`, `restore`.

    Attributes:
        metric: the quality that `score` and `quality` return and comparisons rank by; a property where it follows
            from the arguments.
        model_: the trained network.
        history_: what the training did.
        chosen_score: the argument `score`; `score` itself is the method.
    """

    name: ClassVar[str]
    metric: Metric
    model_: nn.Module
    history_: TrainingHistory
    chosen_score: str | Score | None
    seed: int
    device: str | torch.device | None

    def __setattr__(self, name: str, value: Any) -> None:
        # The argument `score` has the name of sklearn's method, which it would hide: kept under another.
        super().__setattr__("chosen_score" if name == "score" else name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; `score` is the one that was given, not the method."""
        found = super().get_params(deep)
        return found | {"score": self.chosen_score} if "score" in found else found

    @abstractmethod
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train.

        Args:
            x: inputs, row by row.
            y: targets.
            validation: (x, y) by which training stops; None keeps a tenth of the rows apart.
            checkpoint: a file, written every few seconds. If it exists, training goes on from it to the
                result that an uninterrupted training has; one of other arguments or data is refused. So is one of
                a `Score` object with other weights: build it after `torch.manual_seed`.
            progress: is told about steps and validations.
        """

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """The predicted targets of the inputs."""

    @abstractmethod
    def statistics(self, x: Any, y: Any) -> np.ndarray:
        """For each row the numbers (N, K) from which `metric` computes the quality."""

    @abstractmethod
    def learned(self) -> dict[str, Any]:
        """What `fit` learned beside the weights, as JSON: vocabularies, widths, scales."""

    @abstractmethod
    def restore(self, learned: dict[str, Any]) -> None:
        """Set what `learned` returned, and build `model_` with fresh weights."""

    def score(self, x: Any, y: Any) -> float:
        """The quality of the predictions for these rows, where greater is better, as sklearn's searches need it.

        An error, such as RMSE or the word error rate, is negative; `quality` gives it as tables show it.
        """
        return self.metric.gain(self.quality(x, y))

    def quality(self, x: Any, y: Any) -> float:
        """The quality of the predictions for these rows, by `metric`: an error is positive."""
        found = self.statistics(x, y)
        if not len(found):
            raise RecipeError("x is empty: give at least one row")
        return self.metric.value(found)

    def __sklearn_tags__(self) -> Any:
        """What sklearn asks: for a classifier it splits rows by class, and `is_classifier` is true."""
        # Since sklearn 1.6, which is the first to ask for tags; the type checker knows an older one.
        from sklearn.utils import ClassifierTags, RegressorTags  # type: ignore[missing-module-attribute]

        found = super().__sklearn_tags__()  # type: ignore[missing-attribute]
        found.estimator_type = self.estimator_kind()
        found.target_tags.required = True
        if found.estimator_type == "classifier":
            found.classifier_tags = ClassifierTags()
        elif found.estimator_type == "regressor":
            found.regressor_tags = RegressorTags()
        return found

    def estimator_kind(self) -> str | None:
        """What sklearn calls such an estimator: "classifier", "regressor", or None for neither."""
        return None

    def fit_dataset(self, data: Dataset, **options: Any) -> Self:
        """`fit` on the training part of a set, with its validation part."""
        held = (data.validation.x, data.validation.y)
        return self.fit(data.train.x, data.train.y, validation=held, **options)

    def score_part(self, part: Part) -> float:
        """`quality` on one part of a set, as results and comparisons give it: an error is positive."""
        return self.quality(part.x, part.y)

    def criterion(self, quality: float) -> tuple[str, str]:
        """The name and the value, as results are told, of a quality in `history_`, where greater is better."""
        return self.metric.title.en, self.metric.show(self.metric.gain(quality))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write arguments, vocabularies and weights to one safetensors file, atomically.

        Raises:
            RecipeError: an argument cannot be written as JSON, such as a `Score` object.
        """
        import safetensors.torch

        self.check_fitted()
        facts = {"recipe": self.name, "arguments": self.arguments(), "learned": self.learned()}
        facts["release"] = regard.__version__
        weights = {k: v.detach().cpu().clone() for k, v in self.model_.state_dict().items()}
        content = safetensors.torch.save(weights, {"format": "pt", RECIPE_ENTRY: json.dumps(facts)})
        write_atomic(Path(path), content)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str | torch.device | None = None
    ) -> Self:
        """Read a file that `save` wrote. Nothing in it is executed.

        Raises:
            RecipeError: the file is damaged, or of another recipe.
        """
        facts, weights = read_saved(Path(path))
        if facts.get("recipe") != cls.name:
            raise RecipeError(
                f"{path} was saved by the recipe {facts.get('recipe')!r}, not {cls.name!r}"
            )
        try:
            found = cls(**facts["arguments"] | {"device": None if device is None else str(device)})
            with bounded(weights):
                found.restore(facts["learned"])
            found.model_.load_state_dict(weights)
        except RecipeError:
            raise
        except (
            LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError,
        ) as error:  # fmt: skip
            raise RecipeError(
                f"{path} is damaged, or does not fit this release of regard: {first_line(error)}"
            ) from None
        found.model_.to(found.chosen_device()).eval()
        return found

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON, without the device.

        Raises:
            RecipeError: an argument has no JSON, such as a `Score` object.
        """
        found = {k: v for k, v in self.get_params(deep=False).items() if k != "device"}
        for key, value in found.items():
            try:
                json.dumps(value)
            except TypeError:
                raise RecipeError(
                    f"{key}={value!r} cannot be saved: give a name, or save `model_` by regard.nn.save"
                ) from None
        return found

    def identity(self, *rows: Any) -> dict[str, str]:
        """Arguments and data as short texts: what a checkpoint must agree with, beside plan, seed and shapes.

        Args:
            rows: all that `fit` was given to train and validate on.
        """
        left_out = ("device", "checkpoint_every")  # they do not change what is computed
        given = {k: v for k, v in self.get_params(deep=False).items() if k not in left_out}
        found = {"arguments": repr(sorted(given.items())), "data": fingerprint_of(*rows)}
        # The repr of a module shows sizes, not the weights that training starts from.
        modules = [
            one.state_dict() for _, one in sorted(given.items()) if isinstance(one, nn.Module)
        ]
        if modules:
            found["weights of the score"] = fingerprint_of(*modules)
        return found

    def chosen_device(self) -> torch.device:
        """The device that was given, else the GPU if there is one, else the CPU."""
        if self.device is not None:
            with building():
                return checked_device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def check_training(self) -> None:
        """Refuse arguments that no training can have, by name; a recipe checks the others.

        Raises:
            RecipeError: names the argument and what would work.
        """
        with building():
            check_training(self.get_params(deep=False))
        self.chosen_device()

    def check_fitted(self) -> None:
        """Raise sklearn's NotFittedError if `fit` was not called."""
        if not hasattr(self, "model_"):
            kind = type(self).__name__
            raise NotFittedError(f"this {kind} is not trained: call fit or {kind}.load first")


def own_score(score: str | Score | None) -> str | Score | None:
    """The score for one model: a `Score` object is copied, so that two fits do not share weights.

    Raises:
        RecipeError: a name that no score has.
    """
    check_score(score)
    return copy.deepcopy(score) if isinstance(score, Score) else score


def check_score(score: object) -> None:
    """Refuse a name that no score has, with the nearest one; other values pass."""
    try:
        check_name(score)
    except ValueError as error:
        raise RecipeError(str(error)) from None


@contextmanager
def building() -> Iterator[None]:
    """Errors of arguments, such as that of a score that does not fit its heads, as `RecipeError`."""
    try:
        yield
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(str(error)) from None


def checked_validation(validation: Any) -> tuple[Any, Any]:
    """The validation rows (x, y) that `fit` was given.

    Raises:
        RecipeError: it is no pair.
    """
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise RecipeError(
            f"validation must be a pair (x, y) of inputs and targets, got {describe(validation)}"
        )
    return validation[0], validation[1]


def read_saved(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The facts and weights in a file that `Recipe.save` wrote.

    Raises:
        RecipeError: there is no such file, or it is damaged or of another kind.
    """
    import safetensors

    if not path.is_file():
        raise RecipeError(f"there is no file {path}")
    if path.stat().st_size > LARGEST_FILE:
        raise RecipeError(
            f"{path} is larger than {LARGEST_FILE // 2**30} GiB: no model of a recipe"
        )
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[RECIPE_ENTRY])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        if not isinstance(facts, dict):
            raise ValueError("its description is no object")
    # A RecursionError is JSON that is nested too deeply.
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not a model saved by a recipe ({error})") from None
    return facts, weights
