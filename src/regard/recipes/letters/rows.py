"""Checks of words and their sounds.

The sounds of a word are one text with spaces between sounds, or a list of such texts: a word may be said in several
ways.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from regard.describe import describe
from regard.recipes.columns import as_list, checked_texts
from regard.recipes.estimator import RecipeError

Sounds = str | Sequence[str]
UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]


class Word(NamedTuple):
    """A word: its letters, and every way to say it, each a tuple of sounds, the usual way first."""

    letters: str
    ways: tuple[tuple[str, ...], ...]


def checked_sounds(y: Any, name: str = "y") -> list[tuple[tuple[str, ...], ...]]:
    """For each word every way to say it, in the Unicode form NFC; none for an empty text or list.

    Raises:
        RecipeError: it is missing, a single text, or an entry is neither a text nor a list of texts.
    """
    if y is None:
        raise RecipeError(
            f"{name} is missing: give the sounds of each word, with spaces between sounds"
        )
    found = []
    for number, one in enumerate(as_list(y, name, "sounds of words")):
        ways = [one] if isinstance(one, str) else one
        if not isinstance(ways, Sequence) or not all(isinstance(way, str) for way in ways):
            raise RecipeError(
                f"{name}[{number}] must be sounds with spaces between, or a list of such texts for a word "
                f"that is said in several ways, got {describe(one)}"
            )
        # One form for all: a nasal vowel is one character or two, by the keyboard it was typed on.
        said = [unicodedata.normalize("NFC", way).split() for way in ways]
        found.append(tuple(tuple(way) for way in said if way))
    return found


def checked_pairs(x: Any, y: Any, form: UnicodeForm) -> list[Word]:
    """Words in a Unicode form with their sounds, row by row.

    Raises:
        RecipeError: there are not as many sounds as words.
    """
    words, sounds = checked_texts(x, "x", "words"), checked_sounds(y)
    if len(words) != len(sounds):
        raise RecipeError(
            f"x has {len(words)} words and y the sounds of {len(sounds)}: give one entry for each word"
        )
    return [Word(spelled(one, form), ways) for one, ways in zip(words, sounds, strict=True)]


def spelled(word: str, form: UnicodeForm) -> str:
    """The letters of a word: in lower case and one Unicode form, without space around."""
    return unicodedata.normalize(form, word.strip().lower())


def trainable(rows: Sequence[Word]) -> list[Word]:
    """The words that have letters and sounds.

    Raises:
        RecipeError: there is none.
    """
    found = [one for one in rows if one.letters and one.ways]
    if not found:
        raise RecipeError(
            f"there is nothing to train on: of {len(rows)} words none has letters and sounds"
        )
    return found
