"""`Text`: a sentence or word that users see, in English and Chinese."""

from __future__ import annotations

from typing import Literal, NamedTuple

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Text(NamedTuple):
    """One sentence or word in English and in Chinese."""

    en: str
    zh: str

    def of(self, language: Language) -> str:
        """The text in the given language."""
        return self.zh if language == "zh" else self.en


def encodable(text: str) -> bool:
    """Whether a text is one in Unicode: bytes that are no UTF-8 reach Python as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
