"""Running claims: which ones need it, over several processes, each saved as soon as it is done."""

from __future__ import annotations

import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

import torch

import regard
from regard.claims.claim import Claim, Verdict
from regard.claims.registry import registered
from regard.claims.running.progress import ClaimProgress
from regard.claims.running.store import Result, ResultStore, figure_digests
from regard.claims.running.version import code_version
from regard.claims.running.worker import ClaimJob, Done, Failed, failed, work
from regard.measuring.memory import available
from regard.measuring.words import seconds as in_words
from regard.text import Language

# A fork would share threads and a GPU with its parent, which neither survives.
PROCESSES = multiprocessing.get_context("spawn")
# Seconds for a figure without a measurement, and bytes that a worker holds: both about.
DRAWING = 1.0
WORKER_BYTES = 2**30


@dataclass(frozen=True)
class RunOrder:
    """What is asked for.

    Attributes:
        full: at full size, not quick.
        seed: of all random numbers.
        device: where, as torch names it.
        language: of the figures.
        jobs: how many claims at once.
        again: also what is finished already.
    """

    full: bool = False
    seed: int = 0
    device: str = "cpu"
    language: Language = "en"
    jobs: int = 1
    again: bool = False


class Worker:
    """A process that runs claims, seen from here."""

    def __init__(self) -> None:
        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=work, args=(theirs,), daemon=True)
        with deaf_to_interrupts():
            self.process.start()
        theirs.close()  # now only the worker holds it: the pipe ends when the worker does

    def stop(self) -> None:
        """End it at once: what it has not handed over is lost with it."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def ending(self) -> str:
        """How it ended by itself, for a person."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process ended with status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process was ended by {name}" + ", perhaps out of memory" * (name == "SIGKILL")


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C, not even before their first line of Python."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ClaimRunner:
    """Claims on their way into a store.

    Attributes:
        kept: results that were there already and are not run again.
        ran: results of this run.
        failed: why a claim could not be finished, in one line, by id.
        before: the verdicts of last time.
        said: sentences about what was found in the store.
    """

    def __init__(self, claims: Sequence[Claim], store: ResultStore, order: RunOrder) -> None:
        self.store, self.order = store, order
        self.claims = {claim.id: claim for claim in claims}
        self.code = {name: code_version(claim) for name, claim in self.claims.items()}
        self.old, self.said = store.results(self.claims)
        self.before: dict[str, Verdict | None] = {name: r.said for name, r in self.old.items()}
        self.ran: dict[str, Result] = {}
        self.failed: dict[str, str] = {}
        answered = [name for name in self.claims if self.answered(name)]
        self.kept = {
            name: self.old[name]
            for name in answered
            if store.has_figures(self.old[name], order.language)
        }
        # Numbers of a result whose figure is missing, or in another language.
        self.drawn = {name: self.old[name].numbers for name in answered if name not in self.kept}
        self.todo = [claim for name, claim in self.claims.items() if name not in self.kept]
        self.waiting: list[Claim] = []
        self.idle: list[Worker] = []
        self.busy: dict[Connection, tuple[Worker, Claim]] = {}

    def answered(self, name: str) -> bool:
        """Whether there is a result of this code and seed, at this size or more."""
        old = self.old.get(name)
        if old is None or self.order.again:
            return False
        same = (old.code, old.seed) == (self.code[name], self.order.seed)
        return same and old.full >= self.order.full

    def expected(self, claim: Claim) -> float:
        """Seconds on one core."""
        return DRAWING if claim.id in self.drawn else claim.seconds[self.order.full]

    def shares(self) -> dict[str, float]:
        """Seconds of the whole run that each claim should take: those alone have it to themselves."""
        jobs = max(min(self.order.jobs, len(self.todo)), 1)
        return {c.id: self.expected(c) / (1 if self.alone(c) else jobs) for c in self.todo}

    def alone(self, claim: Claim) -> bool:
        """Whether nothing may run beside it."""
        return claim.alone and claim.id not in self.drawn

    def run(self, progress: ClaimProgress) -> None:
        """Run everything that is to do; each result is saved at once.

        Raises:
            ResultStoreError: a result could not be written.
        """
        try:
            self.phase([c for c in self.todo if not self.alone(c)], self.order.jobs, 1, progress)
            for worker in self.idle[1:]:
                worker.stop()
            del self.idle[1:]
            self.phase(
                [c for c in self.todo if self.alone(c)], 1, torch.get_num_threads(), progress
            )
        finally:
            for worker in [*self.idle, *(worker for worker, _ in self.busy.values())]:
                worker.stop()

    def phase(self, claims: list[Claim], most: int, threads: int, progress: ClaimProgress) -> None:
        """Run these, at most so many at once, the longest first."""
        self.waiting = sorted(claims, key=self.expected, reverse=True)
        while self.waiting or self.busy:
            while self.waiting and len(self.busy) < most:
                self.start(self.waiting.pop(0), threads, progress)
            for connection in wait(list(self.busy)):
                self.hear(connection, progress)  # type: ignore[arg-type] # they are connections

    def start(self, claim: Claim, threads: int, progress: ClaimProgress) -> None:
        """Hand a claim to a worker."""
        progress.begin(claim.id)
        order, numbers = self.order, self.drawn.get(claim.id)
        sent = type(claim) if registered(type(claim)) is claim else claim
        job = ClaimJob(sent, order.full, order.seed, order.device, threads, order.language, numbers)
        worker = self.idle.pop() if self.idle else Worker()
        try:
            worker.connection.send(job)
        except OSError as error:  # it died while it was idle
            worker.stop()
            self.fail(claim, failed(error, ""), progress)
        except Exception as error:  # an ingredient that cannot travel, as a lambda
            self.idle.append(worker)
            self.fail(claim, failed(error, ""), progress)
        else:
            self.busy[worker.connection] = worker, claim

    def hear(self, connection: Connection, progress: ClaimProgress) -> None:
        """Take what a worker says."""
        worker, claim = self.busy[connection]
        try:
            heard = connection.recv()
        except (EOFError, OSError):
            del self.busy[connection]
            why = worker.ending()
            worker.stop()
            self.fail(claim, Failed(why, f"{why}\n"), progress)
            return
        if isinstance(heard, float):
            progress.at(claim.id, heard)
            return
        del self.busy[connection]
        self.idle.append(worker)
        if isinstance(heard, Failed) and claim.id in self.drawn:
            self.measure_instead(claim, progress)
        elif isinstance(heard, Failed):
            self.fail(claim, heard, progress)
        else:
            self.keep(claim, heard, progress)

    def measure_instead(self, claim: Claim, progress: ClaimProgress) -> None:
        """The numbers on disk cannot be drawn, whatever happened to them: run the claim after all."""
        del self.drawn[claim.id]
        progress.at(claim.id, 0.0)
        if not self.alone(claim):  # those that are come in the next phase
            self.waiting.append(claim)

    def keep(self, claim: Claim, done: Done, progress: ClaimProgress) -> None:
        """Save a result."""
        result = self.result(claim, done)
        self.store.save(claim, result, done.figures, self.old.get(claim.id))
        self.ran[claim.id] = result
        took = f", {in_words(done.seconds)}" if claim.id not in self.drawn else ", drawn again"
        progress.end(claim.id, f"{result.judgement.verdict.value}{took}")

    def result(self, claim: Claim, done: Done) -> Result:
        """What a worker found, with what it stands for."""
        figures = figure_digests(done.figures, self.order.language)
        verdict = done.judgement.verdict
        if claim.id in self.drawn:
            old = self.old[claim.id]
            return replace(old, judgement=done.judgement, said=verdict, figures=figures)
        return Result(
            id=claim.id,
            full=self.order.full,
            seed=self.order.seed,
            numbers=done.numbers,
            judgement=done.judgement,
            seconds=round(done.seconds, 3),
            versions=versions(),
            hardware=done.hardware,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            code=self.code[claim.id],
            figures=figures,
            said=verdict,
        )

    def fail(self, claim: Claim, why: Failed, progress: ClaimProgress) -> None:
        """Note that a claim could not be finished; the others go on."""
        self.failed[claim.id] = why.error
        progress.end(claim.id, f"failed: {why.error}")
        self.store.log(claim.id, why.log)

    def changed(self, name: str) -> Verdict | None:
        """The verdict of last time, if it was another."""
        was, now = self.before.get(name), (self.ran | self.kept).get(name)
        return was if now is not None and was != now.judgement.verdict else None


def versions() -> dict[str, str]:
    """Of everything that numbers may depend on."""
    return {
        "regard": regard.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "scipy": importlib.metadata.version("scipy"),
    }


def default_jobs() -> int:
    """One for each core that this process may use, as far as the memory goes."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(min(cores, available(torch.device("cpu")) // WORKER_BYTES), 1)
