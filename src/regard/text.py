"""What a reader sees, in every language of the report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Text(NamedTuple):
    """One sentence or word in English and in Chinese."""

    en: str
    zh: str

    def of(self, language: Language) -> str:
        """In the language asked for."""
        return self.zh if language == "zh" else self.en
