"""Results on disk: for each claim one JSON file and one figure as SVG and PNG, written atomically."""

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

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers
from regard.claims.registry import ID, order, survey
from regard.claims.running.version import code_version, looks_version
from regard.measuring.files import held, json_bytes, set_aside, write_atomic
from regard.measuring.times import finite
from regard.text import Language, Text

SCHEMA = "regard.claims/1"
SUFFIXES = ("svg", "png")
REPORT = "report.html"
# Temporary files of `write_atomic` that a killed run may leave behind.
HALF_WRITTEN = re.compile(rf"\.({ID}\.(json|log|png|svg)|{re.escape(REPORT)})\.\w+")
# A result has kilobytes and a few levels of nesting. A file far beyond that was not written by a run.
LARGEST_FILE, DEEPEST = 2**26, 50
LONGEST_REASON = 200
# Control characters, which a terminal would execute, and lone surrogates, which UTF-8 cannot encode.
NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class ResultStoreError(ValueError):
    """The results folder cannot be used; the message says what to do."""


class Corrupt(ValueError):
    """A file is not a valid result of its claim; the message says why."""


class Outdated(Corrupt):
    """A result is valid but was measured with other code, and the current code cannot judge its numbers."""


@dataclass(frozen=True)
class Result:
    """One finished claim.

    Attributes:
        id: of the claim.
        full: measured at full size instead of quick.
        seed: of its random numbers.
        numbers: what was measured.
        judgement: the judgement of the numbers by the claim's current code. If the claim no longer
            exists, the judgement stored in the file.
        seconds: duration of the measurement.
        versions: of regard, torch, python and scipy.
        hardware: as `regard.measuring.machine` describes it.
        finished: time of completion in UTC, in ISO 8601.
        code: digest of the code it was measured with.
        figures: language, digest of the drawing code, and digests of the files by suffix.
        said: the verdict stored in the file, that of the previous run.
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
    said: ClaimVerdict | None = None


def load_results(folder: Path, known: dict[str, Claim] | None = None) -> dict[str, Result]:
    """Every valid result in the folder, by id and in the order of ids.

    Args:
        folder: where `regard claims run` wrote; if it does not exist, there are no results.
        known: the claims that judge the numbers; by default all that can be imported.

    Raises:
        ResultStoreError: the folder or a file in it cannot be read.
    """
    return examine(folder, survey().claims if known is None else known)[0]


def examine(folder: Path, known: dict[str, Claim]) -> tuple[dict[str, Result], dict[str, Corrupt]]:
    """The valid results, and the errors of invalid files, both by id.

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
    """Read one result and judge its numbers again with the claim's current code.

    Raises:
        Corrupt: the file is not what `ResultStore.save` writes, or not a result of this claim.
        Outdated: it was measured with other code, and the claim cannot judge its numbers.
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
    """The bytes of a regular file; reading a pipe could block forever, and a folder cannot be read."""
    if not path.is_file():
        raise Corrupt("it is not a file")
    if path.stat().st_size > LARGEST_FILE:
        raise Corrupt(f"it is larger than {LARGEST_FILE >> 20} MiB")
    return path.read_bytes()


def not_a_number(text: str) -> float:
    """Reject NaN and infinity, which JSON does not have although Python writes and reads them."""
    raise Corrupt(f"{text} is not a number")


def result_of(found: Any, name: str) -> Result:
    """The inverse of `record`.

    Raises:
        KeyError: an entry is missing.
        ValueError, TypeError: an entry is wrong.
    """
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Corrupt(f"its schema is not {SCHEMA!r}")
    check_plain(found)
    if found["id"] != name:
        raise Corrupt(f"it is the result of {found['id']!r}")
    if found["size"] not in ("quick", "full"):
        raise Corrupt(f"size {found['size']!r} is neither quick nor full")
    datetime.datetime.fromisoformat(found["finished"])
    verdict = ClaimVerdict(found["verdict"])
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
    """The value if it is of this type.

    Raises:
        Corrupt: it is of another type, or a bool: Python counts true as a number, JSON does not.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Corrupt(f"{name} is {value!r}"[:100])
    return value


def check_plain(value: Any, depth: int = 0) -> None:
    """Check that all numbers are finite, texts have no control characters, and nesting is limited.

    Raises:
        Corrupt: one of these does not hold.
    """
    if depth > DEEPEST:
        raise Corrupt(f"it has more than {DEEPEST} levels of nesting")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            check_plain(part, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Corrupt("a number is infinite or NaN")  # Python reads 1e999 as infinity
    elif isinstance(value, str) and (found := NO_TEXT.search(value)):
        raise Corrupt(f"a text contains the character {found[0]!a}")


def check_facts(judgement: Judgement) -> None:
    """Check that the facts of a judgement are finite and that no interval ends below its start.

    Raises:
        ValueError: one of these does not hold.
    """
    for fact in judgement.facts:
        if not math.isfinite(fact.value):
            raise ValueError(f"the fact {fact.label.en!r} is {fact.value}, not a finite number")
        if fact.low is not None and fact.high is not None and fact.low > fact.high:
            raise ValueError(
                f"the interval of {fact.label.en!r} goes from {fact.low} to {fact.high}"
            )


def text_of(found: Any) -> Text:
    """A `Text` from its JSON."""
    return Text(typed(found["en"], str, "en"), typed(found["zh"], str, "zh"))


def fact_of(found: Any) -> Fact:
    """A `Fact` from its JSON."""
    ends = [
        None if found[end] is None else typed(found[end], (int, float), end)
        for end in ("low", "high")
    ]
    value = typed(found["value"], (int, float), "value")
    return Fact(text_of(found["label"]), value, *ends, unit=typed(found["unit"], str, "unit"))


def record(claim: Claim, result: Result) -> dict[str, Any]:
    """The result as JSON, together with the claim's statement and criterion at the time."""
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
                # An interval from a single seed is infinite, which JSON cannot hold.
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
    """Digests stored with a result, by which missing and outdated figures are recognised."""
    digests = {suffix: hashlib.sha256(figures[suffix]).hexdigest() for suffix in SUFFIXES}
    return {"language": language, "looks": looks_version(), **digests}


class ResultStore:
    """The folder that a run writes to: ID.json, ID.svg and ID.png of results, ID.log of failures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, suffix: str) -> Path:
        """Path of a claim's file."""
        return self.folder / f"{name}.{suffix}"

    @contextmanager
    def opened(self) -> Iterator[ResultStore]:
        """Create and lock the folder, and remove temporary files that a killed run left.

        Raises:
            ResultStoreError: the folder cannot be created or written, or another run is using it.
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
        """Turn an OSError inside the `with` block into a ResultStoreError that says what to do."""
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
        """The valid results, and a message for each invalid file, which is renamed.

        Outdated results stay in place: the next run replaces them.
        """
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
        """Write the result, its figures, and remove an old log.

        The numbers are written first. If the run is killed before the figures are written, the next run
        finds that their digests do not match and draws them again.

        A quick result does not overwrite a full one, which may have taken an hour: the full one is
        renamed, whatever its seed and code.
        """
        with self.writing():
            if before is not None and before.full > result.full:
                set_aside(self.path(claim.id, "json"), "full")
            write_atomic(self.path(claim.id, "json"), json_bytes(record(claim, result)))
            for suffix in SUFFIXES:
                write_atomic(self.path(claim.id, suffix), figures[suffix])
            self.path(claim.id, "log").unlink(missing_ok=True)

    def log(self, name: str, text: str) -> None:
        """Write the log of a claim that could not be finished."""
        with self.writing():
            write_atomic(self.path(name, "log"), text.encode(errors="replace"))

    def has_figures(self, result: Result, language: Language) -> bool:
        """Whether the folder has this result's figures, in this language and drawn by the current code."""
        try:
            found = {suffix: self.path(result.id, suffix).read_bytes() for suffix in SUFFIXES}
        except OSError:
            return False
        return figure_digests(found, language) == result.figures
