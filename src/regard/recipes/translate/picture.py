"""The picture of the recipe: how much each piece of a translation attends to each piece of the sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.recipes.translate.alignment import Alignments
from regard.recipes.translate.decoding import piece_log_prob
from regard.recipes.translate.subwords import END, EOS, SPACE, SPECIAL
from regard.recipes.translate.translator import Translator
from regard.text import Text

if TYPE_CHECKING:
    from torch import Tensor

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


def attended(model: Translator, sentence: str) -> tuple[list[str], list[str], Tensor]:
    """Labels of the source, labels of the translation, and the weights (translation, source)."""
    source, target, weights = model.attend(sentence)
    return bare(source), bare(target), weights


ALIGNMENTS = Alignments(Translator, LEGEND, example, attended)
show, captioned = ALIGNMENTS.show, ALIGNMENTS.captioned
