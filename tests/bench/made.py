"""Results with numbers of the kind that occur, so that nothing needs to be measured."""

from __future__ import annotations

from regard.bench.candidate import BOTH, PASSES, Candidate
from regard.bench.ours import OURS
from regard.bench.peers import PEERS
from regard.bench.results import BenchRow, Measured, Pass
from regard.bench.settings import Setting, bars, shapes, square
from regard.bench.store import Results
from regard.measuring.times import Times

GPU = {
    "device": "cuda",
    "name": "NVIDIA H200",
    "cores": 16,
    "threads": 16,
    "torch": "2.11.0",
    "regard": "0.1.0",
    "triton": "3.6.0",
    "memory_bytes": 150_000_000_000,
}
# Nanoseconds for each pair of a head, of which hidden units cost a part, and backward's factor.
SPEED = {
    "sine fast": (5e-4, 0.05, 3.4),
    "sine matched": (7e-4, 0.08, 4.0),
    "exact": (1.0e-3, 0.4, 3.6),
    "exact determ.": (1.0e-3, 0.4, 5.0),
    "textbook eager": (0.02, 0.25, 2.2),
    "textbook linear": (0.02, 0.21, 2.2),
    "textbook compiled": (0.01, 0.03, 40.0),
    "FlexAttention": (0.05, 0.3, 6.0),
    "Keras": (0.02, 0.26, 2.4),
    "dot flash": (9e-4, 0.0, 3.5),
    "dot efficient": (1.4e-3, 0.0, 3.9),
    "dot math": (7e-3, 0.0, 2.6),
}
TENSORS = {"textbook eager": 3.0, "textbook linear": 2.6, "textbook compiled": 1.0, "Keras": 3.2}
ERRORS = {"sine fast": (3e-3, 3e-2), "sine matched": (2e-3, 6e-3)}
OURS_BY_NAME = ["sine fast", "sine matched", "exact", "exact determ."]
DOTS_BY_NAME = ["dot cuDNN", "dot flash", "dot efficient", "dot math"]


def made_up(settings: list[Setting] | None = None) -> Results:
    """A run on a GPU."""
    chosen = settings
    if chosen is None:
        lengths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
        chosen = [*bars("cuda"), *shapes("cuda"), *square("cuda", lengths, [16, 32, 64, 128])]
    results = Results(dict(GPU), 0)
    for setting in chosen:
        results.add(made_setting(setting))
    return results


def made_setting(setting: Setting) -> Measured:
    rows = [made_row(setting, candidate) for candidate in (*OURS, *PEERS)]
    return Measured(setting, rows, rounds=7, seconds=12.0)


def made_row(setting: Setting, candidate: Candidate) -> BenchRow:
    row = BenchRow.start(candidate)
    name, s = candidate.name, setting
    if name == "FlexAttention" and s.hidden > 32:
        for p in row.passes.values():
            p.status, p.reason = "unavailable", "its kernel unrolls every hidden unit"
        return row
    for which in PASSES:
        row.passes[which] = made_pass(s, name, which == BOTH)
    if s.numbers * TENSORS.get(name, 0) / s.all_heads * 2 > 140e9:
        for p in row.passes.values():
            p.status, p.reason, p.times = "skipped", "CUDA out of memory", Times()
    return row


def made_pass(s: Setting, name: str, backward: bool) -> Pass:
    fixed, each, factor = SPEED.get(name, (5.6e-4, 0.0, 3.6))
    cost = fixed * (1 + each * s.hidden * 3) * (factor if backward else 1.0)
    pairs = s.all_heads * s.len_q * s.len_k
    time = 2e-5 + 1e-9 * cost * pairs
    line = s.all_heads * 8.0 * s.len_k * 64
    peak = line + TENSORS.get(name, 0) * s.numbers * 2 + 13 * s.pairs * (name == "dot math")
    scaled = 1 if peak > 100e9 or time > 0.5 else None
    errors = ERRORS.get(name, (2.3e-3, 2e-3))
    found = Pass("measured", "", Times([time, 1.04 * time, 0.97 * time]), int(peak), scaled)
    found.error, found.plain_error, found.limit = errors[backward], 2.4e-3, 1e-2
    return found
