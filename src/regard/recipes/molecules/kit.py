"""The recipe as the commands see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.kit import Kit
from regard.recipes.molecules.comparison import arguments, comparison
from regard.recipes.molecules.data import MOLECULE_SETS, load
from regard.recipes.molecules.drawing import DEFAULT, figure
from regard.recipes.molecules.features import parsed
from regard.recipes.molecules.predictor import MoleculePredictor
from regard.text import Language

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read(lines: list[str]) -> list[str]:
    """The SMILES of lines: the first word of each, so that a name may follow; empty lines are left out.

    Raises:
        RecipeError: there is none, or one does not parse.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(line.split()[0])
            parsed(found[-1], f"line {number}" if len(lines) > 1 else "")
    if not found:
        raise RecipeError("the input is empty: give at least one SMILES")
    return found


def write(x: list[str], predicted: Any) -> list[str]:
    """One line for each molecule: its SMILES, a tab and the prediction."""
    return [f"{smiles}\t{shown(value)}" for smiles, value in zip(x, predicted, strict=True)]


def shown(value: Any) -> str:
    """A number with the four digits that a prediction may have, or a class as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(model: Recipe, x: Any, language: Language) -> Figure:
    """The attended bonds of the first molecule given, or of aspirin."""
    if not isinstance(model, MoleculePredictor):
        raise RecipeError(f"expected a MoleculePredictor, got {type(model).__name__}")
    return figure(model, x[0] if x else DEFAULT, language)


KIT = Kit(
    name="molecules",
    estimator=MoleculePredictor,
    sets=tuple(MOLECULE_SETS),
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
