"""The measured numbers of the chapters in docs/learn/, and where the committed results hold them.

`MEASURED` has one list for each chapter. `SETTINGS` names the other numbers of the part "What was measured":
sizes and bars that the experiment was given, and ids.
"""

from __future__ import annotations

from regard.choosing.evidence import CitedNumber, fact


def lead(told: str, kind: str, size: int, times: float) -> CitedNumber:
    """CitedNumber of claim E5: the lead of additive over dot in points; -100 for the lead of dot."""
    path = f"numbers>pairs>{kind}>{{}}>size={size}>quality"
    return CitedNumber(told, "E5", path.format("additive"), path.format("scaled dot"), times=times)


def heads(told: str, score: str, path: str) -> CitedNumber:
    """CitedNumber of claim F2 for one score."""
    return CitedNumber(told, "F2", f"numbers>scores>{score}>{path}")


UNSCALED = "facts>label=additive − dot, d = 512"
UNDECIDED = (
    CitedNumber("3.0", "C10", f"{UNSCALED}>value"),
    CitedNumber("3.3", "C10", f"{UNSCALED}>low", times=-1),
    CitedNumber("9.4", "C10", f"{UNSCALED}>high"),
)
MEASURED: dict[int, tuple[CitedNumber, ...]] = {
    1: (
        fact("50.05", "A1", "weight of the third item", times=100),
        fact("1.4516", "A1", "output"),
        fact("2", "A1", "largest deviation from the hand computation", times=1e16),
    ),
    2: (
        CitedNumber("98", "B4", "numbers>accuracy>additive", times=100),
        fact("51", "B4", "accuracy of the best multiplicative score"),
        CitedNumber("62", "B4", "numbers>half-plane", times=100),
        CitedNumber("97", "B4", "numbers>parameters>additive"),
        CitedNumber("97", "B4", "numbers>parameters>scaled dot"),
    ),
    3: (
        fact("0.0026", "C3", "gradient left at a losing key, d = 64"),
        fact("64", "C3", "Jacobian left at d = 64"),
        CitedNumber("32", "C3", "numbers>keys"),
        *UNDECIDED,
    ),
    4: (
        fact("0.2", "A5", "soft: movement over change/(4T), at most", times=100, plus=-100),
    ),
    5: (
        fact("4", "C5", "additive gradient left"),
        fact("7", "C5", "change of additive entropy, of ln n"),
        fact("0.1", "C5", "entropy of scaled dot, of ln n"),
        fact("15", "G1", "captured, additive", times=100),
        CitedNumber("1024", "G1", "numbers>factors>8"),
    ),
    6: (
        fact("31", "D2", "error per query / learned fixed", times=-100, plus=100),
        fact("30", "D2", "error per query / best fixed on the test", times=-100, plus=100),
        fact("51", "A4", "best key is nearest, unequal norms, least", times=100),
    ),
    7: (
        heads("0.44", "scaled dot", "accuracy>0"),
        heads("0.63", "scaled dot", "accuracy>1"),
        heads("0.998", "scaled dot", "accuracy>2"),
        heads("1.1", "scaled dot", "apart>head"),
        heads("4.2", "scaled dot", "apart>mean"),
        heads("0.45", "additive", "accuracy>0"),
        heads("0.93", "additive", "accuracy>2"),
        heads("2.4", "additive", "apart>head"),
        fact("1.00", "F1", "separation, two questions"),
        fact("0.05", "F1", "separation, one question"),
        CitedNumber("0.11", "F1", "numbers>additive>together>after>*>1",
                 "numbers>additive>together>after>*>0"),
    ),
    8: (
        lead("33", "like", 64, -100),
        lead("57", "unlike", 64, -100),
        lead("21", "folded", 64, 100),
        lead("60", "folded", 32768, 100),
        lead("7", "like", 32768, 100),
        *UNDECIDED,
    ),
}  # fmt: skip
SETTINGS: dict[int, set[str]] = {
    1: {"10", "16"},
    2: set(),
    3: {"16", "64", "256", "512", "95", "0", "1", "3", "2"},
    4: {"10", "12", "4", "1"},
    5: {"1000", "10", "30", "4096", "1", "0"},
    6: {"1", "2"},
    7: {"8"},
    8: {"64", "32768", "12", "14", "12.5"},
}
