"""Results on disk: one JSON file and one figure for each claim, whole or not there at all."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.claims.claim import Claim, Fact, Judgement, Numbers, Verdict
from regard.claims.registry import ID, order, survey
from regard.claims.running.version import code_version, looks_version
from regard.measuring.files import held, json_bytes, set_aside, write_atomic
from regard.measuring.times import finite
from regard.text import Language, Text

SCHEMA = "regard.claims/1"
SUFFIXES = ("svg", "png")
REPORT = "report.html"
# What a run that was killed may leave behind: see `write_atomic`.
HALF_WRITTEN = re.compile(rf"\.({ID}\.(json|log|png|svg)|{re.escape(REPORT)})\.\w+")
# A result has kilobytes and a few levels; what is far beyond comes from elsewhere.
LARGEST_FILE, DEEPEST = 2**26, 50
LONGEST_REASON = 200
# What a terminal takes for a command, and halves of letters that no file can hold.
NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class ResultStoreError(ValueError):
    """The folder cannot be used; the message says what to do."""


class Corrupt(ValueError):
    """A file that is no result of this claim; the message says why."""


class Outdated(Corrupt):
    """A whole result, but of other code, whose numbers this code cannot judge."""


@dataclass(frozen=True)
class Result:
    """One finished claim.

    Attributes:
        id: of the claim.
        full: measured at full size, not quick.
        seed: of its random numbers.
        numbers: what was measured.
        judgement: what the claim's code of today says of the numbers; where there is none of that
            id any more, what it said then.
        seconds: that it took.
        versions: of regard, torch, python and scipy.
        hardware: as `regard.measuring.machine` tells it.
        finished: when, in UTC, as ISO 8601 writes it.
        code: digest of the code it was measured with.
        figures: language, digest of the drawing code, and digests of the files by suffix.
        said: the verdict in the file: the one of last time.
    """

    id: str
    full: bool
    seed: int
    numbers: Numbers
    judgement: Judgement
    seconds: float
    versions: dict[str, str]
    hardware: dict[str, Any]
    finished: str
    code: str = ""
    figures: dict[str, str] = field(default_factory=dict)
    said: Verdict | None = None


def load_results(folder: Path, known: dict[str, Claim] | None = None) -> dict[str, Result]:
    """Every result in the folder that can be read, by id and in the order of the ids.

    Args:
        folder: where `regard claims run` wrote; without one there are no results.
        known: the claims that judge the numbers; by default all there are.
    """
    return examine(folder, survey().claims if known is None else known)[0]


def examine(folder: Path, known: dict[str, Claim]) -> tuple[dict[str, Result], dict[str, Corrupt]]:
    """The results, and what is wrong with the files that are none, both by id.

    Raises:
        ResultStoreError: the folder or a file in it cannot be read.
    """
    results: dict[str, Result] = {}
    corrupt: dict[str, Corrupt] = {}
    try:
        found = [path.stem for path in folder.iterdir()] if folder.exists() else []
        names = {name for name in found if re.fullmatch(ID, name)}
        paths = [path for name in names if (path := folder / f"{name}.json").exists()]
        for path in sorted(paths, key=lambda path: order(path.stem)):
            try:
                results[path.stem] = read(path, known.get(path.stem))
            except Corrupt as error:
                corrupt[path.stem] = error
    except OSError as error:
        raise ResultStoreError(f"{error.filename or folder}: {error.strerror or error}") from None
    return results, corrupt


def read(path: Path, claim: Claim | None) -> Result:
    """One result.

    Raises:
        Corrupt: it is not what `ResultStore.save` writes, or not of this claim.
    """
    try:
        found = json.loads(content(path), parse_constant=not_a_number)
        result = result_of(found, path.stem)
    except KeyError as error:
        raise Corrupt(f"it has no {error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Corrupt((str(error) or type(error).__name__)[:LONGEST_REASON]) from None
    if claim is None:
        return result
    try:
        judgement = claim.judge(result.numbers)
        check_facts(judgement)
    except Exception as error:
        kind = Corrupt if result.code == code_version(claim) else Outdated
        why = f"its numbers cannot be judged: {error!r}"
        raise kind(why[:LONGEST_REASON]) from None
    return replace(result, judgement=judgement)


def content(path: Path) -> bytes:
    """What is in it; a pipe would never end, and a folder has nothing to read."""
    if not path.is_file():
        raise Corrupt("it is not a file")
    if path.stat().st_size > LARGEST_FILE:
        raise Corrupt(f"it is larger than {LARGEST_FILE >> 20} MiB")
    return path.read_bytes()


def not_a_number(text: str) -> float:
    """JSON has no NaN and no infinity, although Python writes and reads them."""
    raise Corrupt(f"{text} is no number")


def result_of(found: Any, name: str) -> Result:
    """What `record` gave; a KeyError, TypeError or ValueError says what is missing or wrong."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Corrupt(f"it is not of the schema {SCHEMA!r}")
    check_plain(found)
    if found["id"] != name:
        raise Corrupt(f"it is the result of {found['id']!r}")
    if found["size"] not in ("quick", "full"):
        raise Corrupt(f"size {found['size']!r} is neither quick nor full")
    datetime.datetime.fromisoformat(found["finished"])
    verdict = Verdict(found["verdict"])
    facts = tuple(fact_of(fact) for fact in typed(found["facts"], list, "facts"))
    return Result(
        id=name,
        full=found["size"] == "full",
        seed=typed(found["seed"], int, "seed"),
        numbers=typed(found["numbers"], dict, "numbers"),
        judgement=Judgement(verdict, text_of(found["because"]), facts),
        seconds=float(typed(found["seconds"], (int, float), "seconds")),
        versions=typed(found["versions"], dict, "versions"),
        hardware=typed(found["hardware"], dict, "hardware"),
        finished=typed(found["finished"], str, "finished"),
        code=typed(found["code"], str, "code"),
        figures=typed(found["figures"], dict, "figures"),
        said=verdict,
    )


def typed(value: Any, kind: Any, name: str) -> Any:
    """The value, if it is of that kind; for JSON true is no number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Corrupt(f"{name} is {value!r}"[:100])
    return value


def check_plain(value: Any, depth: int = 0) -> None:
    """Numbers that are finite (1e999 is read as an infinity), text of letters, a few levels.

    Raises:
        Corrupt: it is not so.
    """
    if depth > DEEPEST:
        raise Corrupt(f"it has more than {DEEPEST} levels")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            check_plain(part, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Corrupt("a number is too large to be one")
    elif isinstance(value, str) and (found := NO_TEXT.search(value)):
        raise Corrupt(f"a text has the character {found[0]!a}")


def check_facts(judgement: Judgement) -> None:
    """The numbers that decide are numbers, and their intervals the right way round.

    Raises:
        ValueError: it is not so.
    """
    for fact in judgement.facts:
        if not math.isfinite(fact.value):
            raise ValueError(f"the fact {fact.label.en!r} is {fact.value}, which is no number")
        if fact.low is not None and fact.high is not None and fact.low > fact.high:
            raise ValueError(
                f"the interval of {fact.label.en!r} goes from {fact.low} to {fact.high}"
            )


def text_of(found: Any) -> Text:
    """Both languages."""
    return Text(typed(found["en"], str, "en"), typed(found["zh"], str, "zh"))


def fact_of(found: Any) -> Fact:
    """What `record` wrote of a fact."""
    ends = [
        None if found[end] is None else typed(found[end], (int, float), end)
        for end in ("low", "high")
    ]
    value = typed(found["value"], (int, float), "value")
    return Fact(text_of(found["label"]), value, *ends, unit=typed(found["unit"], str, "unit"))


def record(claim: Claim, result: Result) -> dict[str, Any]:
    """The result as JSON, with what was asked beside what was found."""
    judged = result.judgement
    return {
        "schema": SCHEMA,
        "id": result.id,
        "statement": claim.statement._asdict(),
        "criterion": claim.criterion._asdict(),
        "verdict": judged.verdict.value,
        "because": judged.because._asdict(),
        "facts": [
            {
                "label": fact.label._asdict(),
                "value": fact.value,
                # From one seed alone an interval has no ends.
                "low": finite(fact.low),
                "high": finite(fact.high),
                "unit": fact.unit,
            }
            for fact in judged.facts
        ],
        "size": "full" if result.full else "quick",
        "seed": result.seed,
        "seconds": result.seconds,
        "finished": result.finished,
        "code": result.code,
        "versions": result.versions,
        "hardware": result.hardware,
        "figures": result.figures,
        "numbers": result.numbers,
    }


def figure_digests(figures: dict[str, bytes], language: Language) -> dict[str, str]:
    """What a result says of its figures, so that missing and old ones are seen."""
    digests = {suffix: hashlib.sha256(figures[suffix]).hexdigest() for suffix in SUFFIXES}
    return {"language": language, "looks": looks_version(), **digests}


class ResultStore:
    """The folder that one run writes to: ID.json, ID.svg, ID.png, and ID.log of what failed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, suffix: str) -> Path:
        """Where a file of a claim is."""
        return self.folder / f"{name}.{suffix}"

    @contextmanager
    def opened(self) -> Iterator[ResultStore]:
        """Make the folder and keep other runs out of it; what a killed one left half is removed.

        Raises:
            ResultStoreError: it cannot be made or written to, or another run is at it.
        """
        with ExitStack() as stack:
            with self.writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(held(self.folder / ".lock"))
                except BlockingIOError:
                    raise ResultStoreError(
                        f"another run is writing to {self.folder}: wait for it, or name another "
                        "folder with --out"
                    ) from None
                for path in self.folder.iterdir():
                    if HALF_WRITTEN.fullmatch(path.name):
                        path.unlink()
            yield self

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the system says into one sentence."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            taken = isinstance(error, IsADirectoryError) and (error.filename2 or error.filename)
            raise ResultStoreError(
                f"cannot write to {taken or self.folder}: {why}. Finished claims are kept; make room there, "
                "or name another folder with --out, and run again"
            ) from None

    def results(self, known: dict[str, Claim]) -> tuple[dict[str, Result], list[str]]:
        """Results to go on with, and a sentence for each file that was none and was set aside."""
        results, corrupt = examine(self.folder, known)
        said = []
        for name, error in corrupt.items():
            if name in known and not isinstance(error, Outdated):
                with self.writing():
                    aside = set_aside(self.path(name, "json"), "corrupt")
                said.append(f"{name}.json cannot be used ({error}): set aside as {aside.name}")
        return results, said

    def save(
        self,
        claim: Claim,
        result: Result,
        figures: dict[str, bytes],
        before: Result | None = None,
    ) -> None:
        """The numbers first: a figure can be drawn again, and is where it is not that of the numbers.

        A full result that was there before a quick one is kept under another name.
        """
        with self.writing():
            if before is not None and before.full > result.full:
                # An hour may be in it: of another seed or other code, but a full result.
                set_aside(self.path(claim.id, "json"), "full")
            write_atomic(self.path(claim.id, "json"), json_bytes(record(claim, result)))
            for suffix in SUFFIXES:
                write_atomic(self.path(claim.id, suffix), figures[suffix])
            self.path(claim.id, "log").unlink(missing_ok=True)

    def log(self, name: str, text: str) -> None:
        """Why a claim could not be finished, at length."""
        with self.writing():
            write_atomic(self.path(name, "log"), text.encode(errors="replace"))

    def has_figures(self, result: Result, language: Language) -> bool:
        """Whether the figures are there, of these numbers and in this language."""
        try:
            found = {suffix: self.path(result.id, suffix).read_bytes() for suffix in SUFFIXES}
        except OSError:
            return False
        return figure_digests(found, language) == result.figures
