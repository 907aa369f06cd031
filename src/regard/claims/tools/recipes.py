"""Training recipes inside claims: what they need, and their progress as a run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from regard.claims.claim import Claim
from regard.recipes.catalog import INSTALL, listed, missing

if TYPE_CHECKING:
    from regard.recipes.datasets import Dataset


class RecipeClaim(Claim):
    """A claim that trains a recipe: it cannot run where the packages of the recipe are not installed."""

    recipe: ClassVar[str]

    def missing(self) -> str:
        """What is not installed, and how to install it; empty if nothing is missing."""
        names = missing(listed(self.recipe))
        return f"the recipe {self.recipe} needs {', '.join(names)}: {INSTALL}" if names else ""


def fitted(model: Any, data: Dataset, tell: Callable[[float], None]) -> Any:
    """The estimator after training on a set, with its progress told as a share from 0 to 1."""
    from regard.recipes.evaluating import ShareDone

    model.fit_dataset(data, progress=ShareDone(tell))
    tell(1.0)  # training may stop before its last step
    return model
