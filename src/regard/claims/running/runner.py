"""Running claims in several processes: picks those without a current result and saves each when it is done."""

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
from regard.claims.claim import Claim, ClaimVerdict
from regard.claims.registry import registered
from regard.claims.running.store import Result, ResultStore, figure_digests
from regard.claims.running.version import code_version
from regard.claims.running.worker import ClaimJob, Done, Failed, failed, work
from regard.measuring.memory import available
from regard.measuring.progress import WorkProgress
from regard.measuring.words import seconds as in_words
from regard.text import Language

# Not "fork": a forked child has neither torch's threads nor a usable CUDA context.
PROCESSES = multiprocessing.get_context("spawn")
# Rough estimates: seconds to draw a figure without measuring, and bytes of memory of one worker.
DRAWING = 1.0
WORKER_BYTES = 2**30


@dataclass(frozen=True)
class RunOrder:
    """Settings of a run, as the user gives them.

    Attributes:
        full: full size instead of quick.
        seed: of all random numbers.
        device: torch's name of the device.
        language: of the figures.
        jobs: number of claims that run at once.
        again: also run claims that have a current result.
    """

    full: bool = False
    seed: int = 0
    device: str = "cpu"
    language: Language = "en"
    jobs: int = 1
    again: bool = False


class Worker:
    """The parent's handle of a worker process."""

    def __init__(self) -> None:
        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=work, args=(theirs,), daemon=True)
        with deaf_to_interrupts():
            self.process.start()
        # Now only the worker has this end open, so the pipe closes when the worker ends.
        theirs.close()

    def stop(self) -> None:
        """Kill the process; a result that it has not sent yet is lost."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def ending(self) -> str:
        """How the process ended without being stopped, in words."""
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
    """Processes started inside the `with` block ignore Ctrl-C from their very start.

    A child inherits the blocked signal. Ignoring SIGINT in Python would come too late for a Ctrl-C while
    the child is still importing torch.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ClaimRunner:
    """Runs claims and saves their results in a store.

    Attributes:
        kept: earlier results that are still current and are not run again, by id.
        ran: results of this run, by id.
        failed: the reason why a claim could not be finished, in one line, by id.
        before: the verdicts of the previous run, by id.
        said: messages about files in the store that could not be used.
    """

    def __init__(self, claims: Sequence[Claim], store: ResultStore, order: RunOrder) -> None:
        self.store, self.order = store, order
        self.claims = {claim.id: claim for claim in claims}
        self.code = {name: code_version(claim) for name, claim in self.claims.items()}
        self.old, self.said = store.results(self.claims)
        self.before: dict[str, ClaimVerdict | None] = {name: r.said for name, r in self.old.items()}
        self.ran: dict[str, Result] = {}
        self.failed: dict[str, str] = {}
        answered = [name for name in self.claims if self.answered(name)]
        self.kept = {
            name: self.old[name]
            for name in answered
            if store.has_figures(self.old[name], order.language)
        }
        # Numbers of current results whose figure is missing, or in another language or style: these are
        # only drawn again.
        self.drawn = {name: self.old[name].numbers for name in answered if name not in self.kept}
        self.todo = [claim for name, claim in self.claims.items() if name not in self.kept]
        self.waiting: list[Claim] = []
        self.idle: list[Worker] = []
        self.busy: dict[Connection, tuple[Worker, Claim]] = {}

    def answered(self, name: str) -> bool:
        """Whether the store has a result of this code and seed, at this size or larger."""
        old = self.old.get(name)
        if old is None or self.order.again:
            return False
        same = (old.code, old.seed) == (self.code[name], self.order.seed)
        return same and old.full >= self.order.full

    def expected(self, claim: Claim) -> float:
        """Expected seconds on one core."""
        return DRAWING if claim.id in self.drawn else claim.seconds[self.order.full]

    def shares(self) -> dict[str, float]:
        """Expected share of each claim in the duration of the run, in seconds, by id.

        Claims that run at the same time share the duration; one that runs alone takes all of its own.
        """
        jobs = max(min(self.order.jobs, len(self.todo)), 1)
        return {c.id: self.expected(c) / (1 if self.alone(c) else jobs) for c in self.todo}

    def alone(self, claim: Claim) -> bool:
        """Whether no other claim may run at the same time; drawing alone does not measure times."""
        return claim.alone and claim.id not in self.drawn

    def run(self, progress: WorkProgress) -> None:
        """Run every claim without a current result; each result is saved as soon as it is there.

        Raises:
            ResultStoreError: a result could not be written.
        """
        try:
            self.phase([c for c in self.todo if not self.alone(c)], self.order.jobs, 1, progress)
            # Claims that measure times run one by one: a single worker is enough, with all threads.
            for worker in self.idle[1:]:
                worker.stop()
            del self.idle[1:]
            self.phase(
                [c for c in self.todo if self.alone(c)], 1, torch.get_num_threads(), progress
            )
        finally:
            for worker in [*self.idle, *(worker for worker, _ in self.busy.values())]:
                worker.stop()

    def phase(self, claims: list[Claim], most: int, threads: int, progress: WorkProgress) -> None:
        """Run these claims, at most `most` at once and each with `threads` threads."""
        # Longest first: a long claim that starts last would leave the other cores idle at the end.
        self.waiting = sorted(claims, key=self.expected, reverse=True)
        while self.waiting or self.busy:
            while self.waiting and len(self.busy) < most:
                self.start(self.waiting.pop(0), threads, progress)
            for connection in wait(list(self.busy)):
                self.hear(connection, progress)  # type: ignore[arg-type] # they are connections

    def start(self, claim: Claim, threads: int, progress: WorkProgress) -> None:
        """Send a claim to an idle worker, or to a new one."""
        progress.begin(claim.id)
        order, numbers = self.order, self.drawn.get(claim.id)
        sent = type(claim) if registered(type(claim)) is claim else claim
        job = ClaimJob(sent, order.full, order.seed, order.device, threads, order.language, numbers)
        worker = self.idle.pop() if self.idle else Worker()
        try:
            worker.connection.send(job)
        except OSError as error:  # the worker died while it was idle
            worker.stop()
            self.fail(claim, failed(error, ""), progress)
        except Exception as error:  # an ingredient cannot be pickled, such as a lambda
            self.idle.append(worker)
            self.fail(claim, failed(error, ""), progress)
        else:
            self.busy[worker.connection] = worker, claim

    def hear(self, connection: Connection, progress: WorkProgress) -> None:
        """Handle a message from a worker: progress, a result, a failure, or the end of the process."""
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

    def measure_instead(self, claim: Claim, progress: WorkProgress) -> None:
        """Run a claim after all, because its stored numbers could not be drawn."""
        del self.drawn[claim.id]
        progress.at(claim.id, 0.0)
        if not self.alone(claim):  # a claim that runs alone is started by the next phase
            self.waiting.append(claim)

    def keep(self, claim: Claim, done: Done, progress: WorkProgress) -> None:
        """Save a result and report its verdict."""
        result = self.result(claim, done)
        self.store.save(claim, result, done.figures, self.old.get(claim.id))
        self.ran[claim.id] = result
        took = f", {in_words(done.seconds)}" if claim.id not in self.drawn else ", drawn again"
        progress.end(claim.id, f"{result.judgement.verdict.value}{took}")

    def result(self, claim: Claim, done: Done) -> Result:
        """The `Result` to store: what the worker sent, with size, seed, code, versions and time.

        A result that was only drawn again keeps all of these from its measurement.
        """
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

    def fail(self, claim: Claim, why: Failed, progress: WorkProgress) -> None:
        """Record that a claim could not be finished, and write its log; other claims continue."""
        self.failed[claim.id] = why.error
        progress.end(claim.id, f"failed: {why.error}")
        self.store.log(claim.id, why.log)

    def changed(self, name: str) -> ClaimVerdict | None:
        """The verdict of the previous run, if it differs from the current one."""
        was, now = self.before.get(name), (self.ran | self.kept).get(name)
        return was if now is not None and was != now.judgement.verdict else None


def versions() -> dict[str, str]:
    """Versions of the software that the numbers may depend on."""
    return {
        "regard": regard.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "scipy": importlib.metadata.version("scipy"),
    }


def default_jobs() -> int:
    """Number of cores that this process may use, limited by the free memory (1 GiB for each worker)."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(min(cores, available(torch.device("cpu")) // WORKER_BYTES), 1)
