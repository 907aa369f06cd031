"""Translation: recurrent networks with Bahdanau or Luong attention, and a transformer, with any score.

`python -m regard.recipes.translate.experiment` trains all that is compared on Multi30k, and
`python -m regard.recipes.translate.small_device` asks which score suits a narrow encoder.
"""

from regard.recipes.translate.kit import KIT
from regard.recipes.translate.translator import Translator

__all__ = ["KIT", "Translator"]
