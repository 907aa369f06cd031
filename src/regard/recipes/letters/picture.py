"""The picture of the recipe: how much each sound of a word attends to each of its letters."""

from __future__ import annotations

from regard.recipes.letters.rows import spelled
from regard.recipes.letters.speaker import LettersToSounds
from regard.recipes.translate.alignment import Alignments
from regard.recipes.translate.subwords import END
from regard.text import Text

LEGEND = Text(
    f"Down: sounds. Across: letters. {END}: the end. Darker: more attention.",
    f"竖：读音；横：字母；{END}：词尾；越深注意越多。",
)
# A model does not know its language, but one letter tells: the first of these that it knows picks the word. All the
# words are ours, and all have letters that are silent or said together.
EXAMPLES = {"가": "한국말", "œ": "oiseaux", "ï": "schrijven", "": "thoughtful"}


def example(model: LettersToSounds) -> str:
    """The word of `EXAMPLES` that fits the model's language best."""
    model.check_fitted()
    known = set(model.letters_.known)
    return next(word for mark, word in EXAMPLES.items() if set(spelled(mark, model.form)) <= known)


ALIGNMENTS = Alignments(LettersToSounds, LEGEND, example, LettersToSounds.attend)
show, captioned = ALIGNMENTS.show, ALIGNMENTS.captioned
