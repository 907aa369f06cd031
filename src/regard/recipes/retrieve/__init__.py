"""Retrieval by attention: documents for a query, and an index that is searched and trained through.

`finder.py` is the estimator, `net.py` its network, `reading.py`, `words.py`, `minilm.py` and `glove.py` make vectors
of texts, `bags.py` holds them, `job.py` is the training, `ranking.py` the measures. `index.py` is `SoftIndex`, with
`searching.py` (FAISS), `ids.py` and `filing.py`. `data.py` has the sets, with `docstrings.py`, `cranfield.py` and
`tables.py`; `baselines.py` and `comparison.py` are what it is compared with, `picture.py` where a query found its
document.
"""

from regard.recipes.retrieve.data import load
from regard.recipes.retrieve.documents import Documents, Queries
from regard.recipes.retrieve.finder import DocumentFinder
from regard.recipes.retrieve.index import SoftIndex
from regard.recipes.retrieve.kit import KIT
from regard.recipes.retrieve.searching import SearchMethod

__all__ = ["KIT", "DocumentFinder", "Documents", "Queries", "SearchMethod", "SoftIndex", "load"]
