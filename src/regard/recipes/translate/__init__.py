"""Translation: recurrent networks with Bahdanau or Luong attention, and a transformer, with any score.

`translator.py` is the estimator, on `searched.py`, which letters share; `networks.py` its networks, `job.py` and
`batches.py` its training, `decoding.py` its search, `subwords.py` its vocabulary, `bleu.py` its metrics, `picture.py`
and `alignment.py` its picture; `multi30k.py` and `dates.py` are the sets, `contenders.py` what is compared, `timing.py`
epochs at equal time, and `small_device.py` asks which score suits a narrow encoder. `measure_timing.py` and
`device_costs.py` are programs that measure for these two.
"""

from regard.recipes.translate.kit import KIT, load
from regard.recipes.translate.translator import Translator

__all__ = ["KIT", "Translator", "load"]
