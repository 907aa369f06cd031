"""BLEU and chrF by the package sacrebleu, from numbers that are kept for each sentence.

Both are qualities of a corpus: counts of matching n-grams are summed over sentences before they are divided. The
counts of a sentence are therefore its statistics, and the quality of any selection of sentences follows from their
sum, exactly as sacrebleu computes it.

Shape legend: N sentences; statistics of BLEU are (N, 10): lengths of translation and reference, then for n = 1 to 4
the matches and the n-grams of the translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from regard.recipes.metrics import Metric
from regard.text import Text

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU, CHRF


@cache
def scorer(lowercase: bool) -> BLEU:
    """Sacrebleu's BLEU with its standard tokens (13a), told that a full stop may stand alone."""
    from sacrebleu.metrics import BLEU

    return BLEU(lowercase=lowercase, force=True)


@cache
def character_scorer(lowercase: bool) -> CHRF:
    """Sacrebleu's chrF2."""
    from sacrebleu.metrics import CHRF

    return CHRF(lowercase=lowercase)


def bleu_statistics(
    translations: Sequence[str], references: Sequence[str], lowercase: bool
) -> np.ndarray:
    """The statistics (N, 10) from which `corpus_bleu` follows."""
    # The only way to the counts of single sentences is a method that sacrebleu's own bootstrap uses.
    found = scorer(lowercase)._extract_corpus_statistics(list(translations), [list(references)])
    return np.array(found, dtype=np.float64).reshape(len(translations), 10)


def corpus_bleu(statistics: np.ndarray) -> float:
    """BLEU, 0 to 100, of the sentences with these statistics (N, 10)."""
    total = statistics.sum(0).astype(np.int64).tolist()
    return scorer(lowercase=False)._compute_score_from_stats(total).score


def corpus_chrf(translations: Sequence[str], references: Sequence[str], lowercase: bool) -> float:
    """chrF2, 0 to 100."""
    found = character_scorer(lowercase).corpus_score(list(translations), [list(references)])
    return found.score


def signatures(lowercase: bool) -> dict[str, str]:
    """What sacrebleu prints to say exactly which BLEU and chrF were computed.

    The signatures name the number of references, which sacrebleu knows only after a first computation.
    """
    found = {}
    for name, metric in (("BLEU", scorer(lowercase)), ("chrF", character_scorer(lowercase))):
        metric.corpus_score(["a"], [["a"]])
        found[name] = str(metric.get_signature())
    return found


METRIC = Metric("bleu", Text("BLEU", "BLEU"), corpus_bleu, bounds=(0.0, 100.0))
