"""Anomalies in series of one or several channels by attention between windows, with scores for live data.

`series.py` checks series, `windows.py` makes windows and moving means, `net.py` is the network, `judging.py` what it
says of windows, `job.py` its training, `threshold.py` the false-alarm rate, `detector.py` the estimator, `stream.py`
live data, `data.py`, `nab.py` and `planted.py` the sets, `measures.py` average precision and VUS-PR, `sensitivity.py`
derivatives by the amplitude of an anomaly, `baselines.py` and `comparison.py` what it is compared with.
"""

from regard.recipes.anomaly.data import load
from regard.recipes.anomaly.detector import AnomalyDetector, AttendedWindow
from regard.recipes.anomaly.kit import KIT
from regard.recipes.anomaly.planted import planted
from regard.recipes.anomaly.stream import Stream, Streamed

__all__ = ["KIT", "AnomalyDetector", "AttendedWindow", "Stream", "Streamed", "load", "planted"]
