"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

from collections.abc import Sequence

from regard.recipes.kit import Kit
from regard.recipes.letters.contenders import comparison
from regard.recipes.letters.picture import show
from regard.recipes.letters.sizes import arguments
from regard.recipes.letters.sources import LETTERS_SETS, load
from regard.recipes.letters.speaker import LettersToSounds


def read(lines: list[str]) -> list[str]:
    """Words, one a line; an empty line is an empty word."""
    return [line.strip() for line in lines]


def write(x: Sequence[str], found: Sequence[str | list[str]]) -> list[str]:
    """A line for each word: the word, a tab and its sounds; several best ones are separated by tabs."""
    return [
        "\t".join([word, *([one] if isinstance(one, str) else one)])
        for word, one in zip(x, found, strict=True)
    ]


KIT = Kit(
    name="letters",
    estimator=LettersToSounds,
    sets=LETTERS_SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
