"""The picture of the recipe: how much each piece of a translation attends to each piece of the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard import plot
from regard.figures.canvas import composed
from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.translate.decoding import piece_log_prob
from regard.recipes.translate.subwords import EOS, SPACE, SPECIAL
from regard.recipes.translate.translator import Translator
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

END = "■"
LEGEND = Text(
    f"Down: translation. Across: sentence. {END}: the end. Darker: more attention.",
    f"竖：译文；横：原文；{END}：句末；越深注意越多。",
)
# Sentences of our own: those of Multi30k may not be shown. A model does not know its languages, so that it draws the
# one that it translates with the greatest probability for a piece.
EXAMPLES = (
    "Dienstag, 4. Juli 2028",
    "Zwei Kinder spielen mit einem Ball im Park.",
    "Two children are playing with a ball in the park.",
)
VALUES = 12  # up to so many pieces the weights are written into the squares


def show(model: Recipe, x: Sequence[str] | str | None, language: Language = "en") -> Figure:
    """The alignment of a sentence with its translation; of an example if none is given."""
    if not isinstance(model, Translator):
        raise RecipeError(f"expected Translator, got {type(model).__name__}")
    sentence = (x if isinstance(x, str) else x[0]) if x else example(model)
    return figure(model, sentence, f"{sentence}\n{LEGEND.of(language)}")


def figure(model: Translator, sentence: str, title: str | None = None) -> Figure:
    """The alignment of a sentence with its translation."""
    source, target, weights = model.attend(sentence)
    return plot.alignment(
        weights, bare(source), bare(target), title=title, values=len(source) <= VALUES
    )


def captioned(model: Translator, way: Text) -> dict[str, str]:
    """The picture of the example for a report: SVG, and in both languages what it shows.

    Args:
        model: a trained model.
        way: how it attends.
    """
    sentence = example(model)
    drawing = composed(lambda: figure(model, sentence), ["svg"])["svg"].decode()
    return {
        "en": f"{sentence}: {way.en}. {LEGEND.en}",
        "zh": f"{sentence}：{way.zh}。{LEGEND.zh}",
        "svg": drawing,
    }


def example(model: Translator) -> str:
    """The sentence of `EXAMPLES` that the model is surest of; the first one if all are too long for it."""
    model.check_fitted()
    sure = {
        sentence: piece_log_prob(model.model_, row, model.search(), model.max_length)
        for sentence, row in zip(EXAMPLES, model.encoded(EXAMPLES), strict=True)
        if len(row) <= model.max_length
    }
    return max(sure, key=sure.__getitem__, default=EXAMPLES[0])


def bare(pieces: list[str]) -> list[str]:
    """Pieces for labels: spaces in place of their marks, and a square for the end mark."""
    return [
        END if piece == SPECIAL[EOS] else piece.replace(SPACE, " ").strip() or " "
        for piece in pieces
    ]
