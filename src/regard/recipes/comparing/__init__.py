"""Comparisons of recipes: every score and baseline under equal tuning, with intervals, a table and a page.

`runner.py` runs what a `Comparison` of `kit.py` lists, `workers.py` does so in parallel processes, `work.py` says
what one run is, and `store.py` keeps one file for each finished run, so that a killed comparison goes on where it was.
`intervals.py` has the statistics, `results.py` the summary, `sentences.py` the verdict. `table.py`, `report/` and
`page.py` show it. Contenders, settings and baselines are the recipes' own.
"""

from regard.recipes.comparing.results import Compared
from regard.recipes.comparing.runner import compare

__all__ = ["Compared", "compare"]
