"""The picture of the recipe: how much each sound of a word attends to each of its letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard import plot
from regard.figures.canvas import composed
from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.letters.rows import spelled
from regard.recipes.letters.speaker import LettersToSounds
from regard.recipes.letters.symbols import END
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND = Text(
    f"Down: sounds. Across: letters. {END}: the end. Darker: more attention.",
    f"竖：读音；横：字母；{END}：词尾；越深注意越多。",
)
# A model does not know its language, but one letter tells: the first of these that it knows picks the word. All the
# words are ours, and all have letters that are silent or said together.
EXAMPLES = {"가": "한국말", "œ": "oiseaux", "ï": "schrijven", "": "thoughtful"}
VALUES = 12  # up to so many letters the weights are written into the squares


def show(model: Recipe, x: Sequence[str] | str | None, language: Language = "en") -> Figure:
    """The alignment of a word with its sounds; of an example if none is given."""
    if not isinstance(model, LettersToSounds):
        raise RecipeError(f"expected LettersToSounds, got {type(model).__name__}")
    word = (x if isinstance(x, str) else x[0]) if x else example(model)
    return figure(model, word, f"{word}\n{LEGEND.of(language)}")


def figure(model: LettersToSounds, word: str, title: str | None = None) -> Figure:
    """The alignment of a word with its sounds."""
    letters, sounds, weights = model.attend(word)
    return plot.alignment(weights, letters, sounds, title=title, values=len(letters) <= VALUES)


def captioned(model: LettersToSounds, way: Text) -> dict[str, str]:
    """The picture of the example for a report: SVG, and in both languages what it shows.

    Args:
        model: a trained model.
        way: how it attends.
    """
    word = example(model)
    drawing = composed(lambda: figure(model, word), ["svg"])["svg"].decode()
    return {
        "en": f"{word}, {way.en}. {LEGEND.en}",
        "zh": f"{word}，{way.zh}。{LEGEND.zh}",
        "svg": drawing,
    }


def example(model: LettersToSounds) -> str:
    """The word of `EXAMPLES` that fits the model's language best."""
    model.check_fitted()
    known = set(model.letters_.known)
    return next(word for mark, word in EXAMPLES.items() if set(spelled(mark, model.form)) <= known)
