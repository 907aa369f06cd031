"""The contract suite for authors of scores and engines: oracle, tolerances, cases and checks.

```python
from regard.testing import check_score

check_score(lambda query_dim, key_dim, heads, key_heads: MyScore(heads), my_formula)
```

It needs torch alone. The library's own tests run it under pytest.

`scores.py` and `wrappers.py` list the scores under contract with their formulas; `support.py` lists what each
engine refuses. No expected value may be derived from the code under test.
"""

from regard.testing.cases import DTYPES, SIZES, CaseSizes, ScoreRow
from regard.testing.contract import (
    ENGINES,
    QUICK_ENGINES,
    REFUSALS,
    EngineCall,
    Report,
    check_case,
    check_cases,
    check_engine,
    check_score,
    expected_support,
)
from regard.testing.options import MASKS, OPTIONS
from regard.testing.oracle import MaskParts, textbook
from regard.testing.poison import poisoned, small_tiles
from regard.testing.properties import check_derivatives, check_hidden, check_sides
from regard.testing.run import Case
from regard.testing.tolerance import Measure, compare
from regard.testing.wrappers import SCORES

Sizes, Call = CaseSizes, EngineCall  # their former names, for suites that were written with them

__all__ = [
    "DTYPES",
    "ENGINES",
    "MASKS",
    "OPTIONS",
    "QUICK_ENGINES",
    "REFUSALS",
    "SCORES",
    "SIZES",
    "Call",
    "Case",
    "CaseSizes",
    "EngineCall",
    "MaskParts",
    "Measure",
    "Report",
    "ScoreRow",
    "Sizes",
    "check_case",
    "check_cases",
    "check_derivatives",
    "check_engine",
    "check_hidden",
    "check_score",
    "check_sides",
    "compare",
    "expected_support",
    "poisoned",
    "small_tiles",
    "textbook",
]
