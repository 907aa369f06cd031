"""Alignment of series: the score matrix as a cost for DTW, learned from classes of series.

`series.py` checks arrays in the layouts of aeon and tslearn, `data.py` has the sets, `net.py` turns a score into a cost,
`warping.py` runs DTW on costs by aeon and tslearn and `kernels.py` where neither can, `windows.py` chooses the start,
`job.py` is the training, `classifier.py` the estimator, `alignment.py` path, energy and lag of a pair, `picture.py` its
picture, `baselines.py` and `contenders.py` what it is compared with.
"""

from regard.recipes.align.alignment import SeriesAlignment, align
from regard.recipes.align.classifier import SeriesAligner
from regard.recipes.align.data import load
from regard.recipes.align.kit import KIT

__all__ = ["KIT", "SeriesAligner", "SeriesAlignment", "align", "load"]
