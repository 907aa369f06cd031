"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard import plot
from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.kit import Kit
from regard.recipes.letters.contenders import comparison
from regard.recipes.letters.sizes import arguments
from regard.recipes.letters.sources import SETS, load
from regard.recipes.letters.speaker import LettersToSounds
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOVE = Text(
    "Down: the sounds. Across: the letters. Darker: more attention.",
    "竖：读音；横：字母；越深注意越多。",
)
# Tried in turn: the first whose letters the model knows. Both have silent letters.
EXAMPLES = ("thoughtful", "한국말")
VALUES = 12  # up to so many letters the weights are written into the squares


def read(lines: list[str]) -> list[str]:
    """Words, one a line; an empty line is an empty word."""
    return [line.strip() for line in lines]


def write(x: Sequence[str], found: Sequence[str | list[str]]) -> list[str]:
    """A line for each word: the word, a tab and its sounds; several best ones are separated by tabs."""
    return [
        "\t".join([word, *([one] if isinstance(one, str) else one)])
        for word, one in zip(x, found, strict=True)
    ]


def show(model: Recipe, x: Sequence[str] | str | None, language: Language = "en") -> Figure:
    """The alignment of a word with its sounds; of an example if none is given."""
    if not isinstance(model, LettersToSounds):
        raise RecipeError(f"expected LettersToSounds, got {type(model).__name__}")
    word = (x if isinstance(x, str) else x[0]) if x else example(model)
    letters, sounds, weights = model.attend(word)
    title = f"{word}\n{ABOVE.of(language)}"
    return plot.alignment(weights, letters, sounds, title=title, values=len(letters) < VALUES)


def example(model: LettersToSounds) -> str:
    """The first example whose letters the model knows, else the last."""
    model.check_fitted()
    known = set(model.letters_.known)
    return next((one for one in EXAMPLES if set(one) <= known), EXAMPLES[-1])


KIT = Kit(
    name="letters",
    estimator=LettersToSounds,
    sets=SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
    predict_options=("beam", "n_best"),
)
