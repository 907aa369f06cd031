"""Who is measured in which setting.

Without `--peers` a CPU measures everybody everywhere. On a GPU, where time is dear and compilers are
slow, `usual_on_gpu` is the rule: all suites together are to take half an hour on one NVIDIA H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.bench.bars import DETERMINISTIC, needed
from regard.bench.candidate import Candidate
from regard.bench.ours import OURS, AsChosen
from regard.bench.peers import DOTS, PEERS, Compiled
from regard.bench.results import Measured
from regard.bench.settings import SUITES, Setting, suite

CANDIDATES: tuple[Candidate, ...] = (*OURS, *PEERS)
CUDNN = DOTS[0]
# Where `square` on a GPU measures every peer: enough lengths to see how each one grows.
PEERS_HIDDEN, PEERS_LENGTHS = 16, (512, 2048, 8192)


class UsageError(ValueError):
    """A mistake in the arguments."""


class Job(NamedTuple):
    """A setting and who is measured in it."""

    setting: Setting
    candidates: list[Candidate]

    def missing(self, found: Measured | None) -> list[Candidate]:
        """Who was asked for and is not in what was found, or has no result there."""
        rows = {} if found is None else {row.name: row for row in found.rows}
        return [
            c
            for c in self.candidates
            if c.name not in rows
            or any(p.status == "pending" for p in rows[c.name].passes.values())
        ]

    def beside(self, found: Measured | None) -> list[Candidate]:
        """Who is measured where something was found before: those too whose numbers are replaced.

        Ratios are of rounds, so that all candidates of a setting have to run together.
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
) -> list[Job]:
    """The settings of the suites asked for, each once, the most important first.

    Raises:
        UsageError: an option makes no sense here.
    """
    names = suites or list(SUITES)
    if (lengths or hidden) and "square" not in names:
        raise UsageError(f"--lengths and --hidden are for --suite square, got {', '.join(names)}")
    named = None if peers is None else asked_for(peers, device)
    found: dict[str, Job] = {}
    for name in SUITES:
        if name in names:
            for setting in suite(name, device, lengths=lengths, hidden=hidden, quick=quick):
                chosen = candidates(name, setting, device, named)
                before = found.get(setting.key, Job(setting, [])).candidates
                both = [c for c in CANDIDATES if c in chosen or c in before]
                found[setting.key] = Job(setting, both)
    return list(found.values())


def candidates(
    name: str, setting: Setting, device: str, named: list[Candidate] | None
) -> list[Candidate]:
    """Whom a suite measures in one of its settings."""
    if named is not None:
        chosen = named
    else:
        chosen = usual_on_gpu(name, setting) if device == "cuda" else list(CANDIDATES)
    # What the plan picks for large calls is one of the others.
    return [c for c in chosen if name == "shapes" or not isinstance(c, AsChosen)]


def usual_on_gpu(name: str, setting: Setting) -> list[Candidate]:
    """The rule for a GPU where `--peers` names nobody.

    - `bars`: whom its bars compare.
    - `shapes`: everybody but the deterministic engine, and of dots cuDNN's.
    - `square`: ours, the compiled textbook and cuDNN's dot everywhere. At hidden 16 dot through every
      backend, which does not depend on the hidden width, and at three lengths all other peers.
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
        or isinstance(c, Compiled)
        or c is CUDNN
        or (narrow and c.family == "dot")
    ]


def asked_for(peers: str, device: str) -> list[Candidate]:
    """Ours, the device's usual dot, and the peers that are named."""
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
