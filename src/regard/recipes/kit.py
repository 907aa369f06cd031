"""`Kit`: what the command line and comparisons need of a recipe, gathered in one value.

Every recipe's package exports `KIT`. A comparison trains `Contender`s: the scores, and the baselines without attention
or by other people's layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.recipes.datasets import Dataset
from regard.recipes.estimator import Recipe, RecipeError
from regard.text import Text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from regard.recipes.metrics import Metric
    from regard.text import Language


@dataclass(frozen=True)
class Evaluated:
    """The result of one contender, setting and seed.

    Attributes:
        validation: the quality by which settings are chosen, by the set's metric.
        statistics: of the test rows (N, K), from which the metric computes the test quality.
        parameters: of the model; 0 if it has none to count.
        train_seconds: of the training, by `clock.worked`.
        predict_seconds: to predict the test rows, by the same clock.
        extra: other numbers worth a column, such as chrF, or a curve.
    """

    validation: float
    statistics: np.ndarray
    parameters: int
    train_seconds: float
    predict_seconds: float
    extra: dict[str, Any] = field(default_factory=dict)


Kind = Literal["score", "control", "baseline"]


@dataclass(frozen=True)
class Contender:
    """One row of a comparison.

    Attributes:
        name: short and unique: "additive", "no attention", "PyG GATv2Conv".
        title: for tables.
        kind: a score in our model, our model without attention, or a baseline of another kind.
        settings: what is tried, each a dict of arguments; the one with the best validation is kept. All
            contenders get equally many, unless they have nothing to tune.
        run: trains one setting from one seed and evaluates it. `report` is told the share that is done, 0 to 1.
        about: what a reader should know: what differs from the other rows.
        fixed: the arguments beside the setting, defaults included, as `fixed_arguments` finds them: a run with other
            ones is another run.
    """

    name: str
    title: Text
    kind: Kind
    settings: tuple[Mapping[str, Any], ...]
    run: Callable[[Mapping[str, Any], int, Callable[[float], None]], Evaluated]
    about: Text | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)


def fixed_arguments(model: Recipe) -> dict[str, Any]:
    """All arguments of a row's estimator, defaults included, without the seed and the device."""
    return {k: v for k, v in model.arguments().items() if k != "seed"}


@dataclass(frozen=True)
class Comparison:
    """What `compare` does for one set of a recipe.

    Attributes:
        name: for files: "translate-multi30k-de-en".
        title: heading.
        metric: by which contenders are ranked.
        contenders: the rows, scores first.
        reference: name of the row that all others are compared with, scaled dot as a rule.
        seeds: of a full run.
        notes: what a reader must know: splits, budgets, traps.
        same_test_rows: whether all seeds are evaluated on the same test rows; False where each splits anew.
    """

    name: str
    title: Text
    metric: Metric
    contenders: tuple[Contender, ...]
    reference: str
    seeds: tuple[int, ...]
    notes: tuple[Text, ...] = ()
    same_test_rows: bool = True


@dataclass(frozen=True)
class Kit:
    """A recipe as the commands see it.

    Attributes:
        name: of the recipe.
        estimator: its class.
        sets: names of all sets, the embedded default first.
        arguments: from a set's name to the constructor's arguments at the default size for it.
        load: `load(name, data=None, download=False, limit=None)`: the set of that name, from the user's folder
            (None: `REGARD_DATA`) or a download; `limit` keeps that many training rows, for quick looks.
        read: from the text of an input file or of arguments to inputs of `predict`.
        write: from inputs and predictions to lines of output.
        show: a picture of what a trained recipe attends to for an input, or for a default one.
        comparison: `comparison(dataset, full, device)`: what is compared on the set; not `full` is a quick look
            with fewer settings, seeds and epochs.
    """

    name: str
    estimator: type[Recipe]
    sets: tuple[str, ...]
    arguments: Callable[[str], dict[str, Any]]
    load: Callable[..., Dataset]
    read: Callable[[list[str]], Any]
    write: Callable[[Any, Any], list[str]]
    show: Callable[[Recipe, Any, Language], Figure]
    comparison: Callable[[Dataset, bool, str | None], Comparison]

    def dataset(
        self,
        name: str | None,
        data: str | None,
        download: bool = False,
        limit: int | None = None,
    ) -> Dataset:
        """The set of that name, or the default, with at most `limit` training rows; see `load`.

        Raises:
            RecipeError: there is no such set.
        """
        if name is not None:
            self.check_set(name)
        return self.load(name or self.sets[0], data=data, download=download, limit=limit)

    def check_set(self, name: str) -> None:
        """Refuse a name that no set has.

        Raises:
            RecipeError: names the sets.
        """
        if name not in self.sets:
            raise RecipeError(
                f"--set {name}: the recipe {self.name} has no such set; its sets are {', '.join(self.sets)}"
            )

    def default_path(self) -> Path:
        """Where `train` saves a model unless told otherwise."""
        return Path(f"{self.name}.safetensors")
