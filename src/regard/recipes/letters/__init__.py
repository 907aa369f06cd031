"""Letters to sounds (grapheme to phoneme): recurrent networks with additive, location or monotonic attention."""

from regard.recipes.letters.kit import KIT
from regard.recipes.letters.sources import load
from regard.recipes.letters.speaker import LettersToSounds

__all__ = ["KIT", "LettersToSounds", "load"]
