"""Letters to sounds (grapheme to phoneme): recurrent networks with additive, location or monotonic attention.

`speaker.py` is the estimator, `networks.py` its network, made of the parts of `translate`, `symbols.py` its vocabulary,
`rows.py` the checks of words; `errors.py` has the error rates, `sources.py` the sets, `sizes.py` the arguments for each,
`picture.py` draws, and `contenders.py` says what is compared.
"""

from regard.recipes.letters.kit import KIT
from regard.recipes.letters.sources import load
from regard.recipes.letters.speaker import LettersToSounds

__all__ = ["KIT", "LettersToSounds", "load"]
