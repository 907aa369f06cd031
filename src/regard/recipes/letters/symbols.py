"""`Symbols`: letters or sounds as numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regard.recipes.translate.subwords import END, EOS, SPECIAL, UNK


class Symbols:
    """The symbols of one side, numbered after the special marks that both sides share.

    Args:
        known: the symbols, without special marks.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = list(known)
        self.numbers = {one: number for number, one in enumerate(known, len(SPECIAL))}

    @classmethod
    def learn(cls, rows: Iterable[Sequence[str]]) -> Symbols:
        """The symbols that occur in the rows, sorted."""
        return cls(sorted({one for row in rows for one in row}))

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.known)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self.numbers

    def encode(self, row: Sequence[str]) -> list[int]:
        """The numbers of symbols, with the end mark; an unknown symbol is `UNK`."""
        return [*(self.numbers.get(one, UNK) for one in row), EOS]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """The symbols of numbers, without special marks."""
        return [self.known[one - len(SPECIAL)] for one in numbers if one >= len(SPECIAL)]

    def shown(self, numbers: Sequence[int]) -> list[str]:
        """A label for each number, special marks too."""
        first = len(SPECIAL)
        return [
            self.known[one - first] if one >= first else END if one == EOS else "?"
            for one in numbers
        ]


def known_in(row: Sequence[int]) -> bool:
    """Whether an encoded row has a symbol that is known, beside its marks."""
    return any(one >= len(SPECIAL) for one in row)
