"""Which candidates are measured in which setting.

Without `--peers` a CPU measures every candidate in every setting. On a GPU `usual_on_gpu` selects
fewer, because compilers are slow: all suites together should take half an hour on one NVIDIA H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.bench.bars import DETERMINISTIC, EAGER, needed
from regard.bench.candidate import Candidate
from regard.bench.ours import OURS, AsChosen
from regard.bench.peers import DOTS, PEERS, CompiledTextbook
from regard.bench.results import Measured
from regard.bench.settings import SUITES, Setting, first_look, suite

CANDIDATES: tuple[Candidate, ...] = (*OURS, *PEERS)
CUDNN = DOTS[0]
# Where `square` on a GPU measures every peer: enough lengths to see how each one grows.
PEERS_HIDDEN, PEERS_LENGTHS = 16, (512, 2048, 8192)


class UsageError(ValueError):
    """An invalid combination of arguments; the message says what would work."""


class BenchJob(NamedTuple):
    """A setting and the candidates to measure in it."""

    setting: Setting
    candidates: list[Candidate]

    def missing(self, found: Measured | None) -> list[Candidate]:
        """The requested candidates without a result in `found`, the earlier results of this setting."""
        rows = {} if found is None else {row.name: row for row in found.rows}
        return [
            c
            for c in self.candidates
            if c.name not in rows
            or any(p.status == "pending" for p in rows[c.name].passes.values())
        ]

    def beside(self, found: Measured | None) -> list[Candidate]:
        """The candidates to run: the requested ones and those in the earlier results `found`.

        Ratios are taken within rounds, so all candidates of a setting have to run together. The earlier
        numbers of the setting are replaced.
        """
        names = {row.name for row in found.rows} if found is not None else set()
        return [c for c in CANDIDATES if c in self.candidates or c.name in names]


def chosen_jobs(
    suites: Sequence[str] | None,
    device: str,
    peers: str | None,
    *,
    lengths: Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    quick: bool = False,
) -> list[BenchJob]:
    """The settings of the requested suites, each once, the most important first.

    Raises:
        UsageError: an option does not apply to these suites, or names an unknown peer.
    """
    named = None if peers is None else asked_for(peers, device)
    if quick and not (suites or lengths or hidden):
        chosen = quick_candidates(device) if named is None else named
        return [
            BenchJob(s, [c for c in chosen if s.len_q == 1 or not isinstance(c, AsChosen)])
            for s in first_look(device)
        ]
    names = suites or list(SUITES)
    if (lengths or hidden) and "square" not in names:
        raise UsageError(f"--lengths and --hidden are for --suite square, got {', '.join(names)}")
    found: dict[str, BenchJob] = {}
    for name in SUITES:
        if name in names:
            for setting in suite(name, device, lengths=lengths, hidden=hidden, quick=quick):
                chosen = candidates(name, setting, device, named)
                # Suites may share a setting: it is measured once, with the candidates of all of them.
                before = found.get(setting.key, BenchJob(setting, [])).candidates
                both = [c for c in CANDIDATES if c in chosen or c in before]
                found[setting.key] = BenchJob(setting, both)
    return list(found.values())


def candidates(
    name: str, setting: Setting, device: str, named: list[Candidate] | None
) -> list[Candidate]:
    """The candidates that a suite measures in one of its settings."""
    if named is not None:
        chosen = named
    else:
        chosen = usual_on_gpu(name, setting) if device == "cuda" else list(CANDIDATES)
    # `AsChosen` runs in `shapes` only: for large calls the plan picks an engine that is measured anyway.
    return [c for c in chosen if name == "shapes" or not isinstance(c, AsChosen)]


def quick_candidates(device: str) -> list[Candidate]:
    """What a first look compares: our engines, dot and the eager textbooks.

    No compiled peer: on two cores torch.compile alone would take longer than the two minutes.
    """
    dots = DOTS if device == "cpu" else (CUDNN,)
    return [
        c
        for c in CANDIDATES
        if (c.family == "ours" and c.name != DETERMINISTIC) or c in dots or c.name in EAGER
    ]


def usual_on_gpu(name: str, setting: Setting) -> list[Candidate]:
    """The candidates for a GPU without `--peers`.

    - `bars`: those that its bars compare.
    - `shapes`: all but the deterministic engine; for dot only cuDNN's backend.
    - `square`: our engines, the compiled textbook and cuDNN's dot everywhere. At hidden 16 also dot
      through every backend, since dot does not depend on the hidden width, and at three lengths all
      other peers.
    """
    if name == "bars":
        return [c for c in CANDIDATES if c.name in needed(setting.hidden)]
    if name == "shapes":
        return [
            c for c in CANDIDATES if c.name != DETERMINISTIC and (c.family != "dot" or c is CUDNN)
        ]
    narrow = setting.hidden == PEERS_HIDDEN
    if narrow and setting.len_q in PEERS_LENGTHS:
        return list(CANDIDATES)
    return [
        c
        for c in CANDIDATES
        if c.family == "ours"
        or isinstance(c, CompiledTextbook)
        or c is CUDNN
        or (narrow and c.family == "dot")
    ]


def asked_for(peers: str, device: str) -> list[Candidate]:
    """Our engines, the device's usual dot, and the peers named in `--peers`.

    Raises:
        UsageError: a peer is unknown.
    """
    wanted = [name.strip().lower() for name in peers.split(",")]
    if wanted == ["all"]:
        return list(CANDIDATES)
    named = {c.name.lower() for c in PEERS}
    for name in [] if wanted == ["none"] else wanted:
        if name not in named:
            known = ", ".join(c.name for c in PEERS)
            raise UsageError(f"--peers: unknown peer {name!r}. Peers: {known}; or all, or none")
    usual = DOTS if device == "cpu" else (CUDNN,)
    return [c for c in CANDIDATES if c.family == "ours" or c in usual or c.name.lower() in wanted]
