"""The options of `regard bench`. Nothing here loads torch, so help, errors and completion are quick.

The parser is argparse's, because `python -m regard.bench` must run where only torch is installed.
`regard bench` passes its arguments on to it.
"""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path
from typing import NoReturn

from regard.bench.settings import GRAPH, SUITES

RESULTS = Path("benchmarks/results")
MOST_THREADS = 4096
# The largest length or hidden width that is accepted.
LARGEST = 2**24
ABOUT = """\
Measure additive attention on this machine: ours and every peer, in turns in one
run, as ratios, with the error against fp64 beside every time. Writes JSON, CSV
and charts."""
EPILOG = """\
Examples:
  regard bench --quick                 is additive affordable here? two minutes
  regard bench --suite bars            the ratios that the engines must reach
  regard bench --suite shapes --quick  decoders, speech: a first look
  regard bench --suite square --lengths 1024,4096 --hidden 16,64
  regard bench --suite graph           graph layers beside PyTorch Geometric's
  regard bench --quick --busy          the same while a core is kept busy
  regard bench --budget 600 --resume   ten minutes more of an earlier run
  regard bench --quick --json          the results for a program
  regard bench --list                  what there is, without measuring

Exit codes: 0 done or stopped by --budget, 1 one of ours failed its error check
or a file could not be written, 2 a mistake in the arguments, 130 interrupted.
What was measured is kept; --resume goes on."""


class OneLine(argparse.ArgumentParser):
    """A parser that reports an error in one line, as all commands do."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message and the option that was probably meant.

        argparse would print the usage too, which is longer than a screen.
        """
        # argparse's message may hold several arguments and `--option=value`: keep the first name.
        unknown = (
            message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        )
        near = difflib.get_close_matches(unknown, self._option_string_actions, n=1, cutoff=0.7)
        hint = f" Did you mean {near[0]}?" if near and unknown.startswith("--") else ""
        self.exit(2, f"Error: {message}.{hint} See {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The argument parser with all options."""
    found = OneLine(
        prog="regard bench",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviated option must not start a long measurement
    )
    add = found.add_argument
    suites = [*SUITES, GRAPH]
    add("--suite", action="append", choices=suites, help="repeatable (default: all but graph)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to run")
    add(
        "--quick",
        action="store_true",
        help="fewer sizes and rounds; alone, an answer in two minutes",
    )
    add("--lengths", type=sizes, metavar="N,N", help="lengths of the suite square")
    add("--hidden", type=sizes, metavar="N,N", help="hidden widths of the suite square")
    add(
        "--peers",
        metavar="NAME,NAME",
        help="only these peers, in every setting; 'none' for ours and dot, 'all' for all candidates "
        "(default: on a GPU what each suite needs, see --list)",
    )
    add(
        "--budget",
        type=positive,
        metavar="SECONDS",
        help="stop before a setting that would not fit",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with what is in the results; a setting that lacks a candidate is measured again",
    )
    add_files(found)
    add("--seed", type=seed, default=0, metavar="N", help="of the inputs (default: 0)")
    add("--threads", type=count, metavar="N", help="CPU threads (default: as many as are free)")
    add(
        "--busy",
        action="store_true",
        help="beside a process that keeps one core busy; files get -busy in their name",
    )
    add(
        "--list",
        action="store_true",
        help="list suites, candidates and settings without measuring",
    )
    add("--json", action="store_true", help="print JSON in place of the tables")
    return found


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where results go."""
    add = parser.add_argument
    add(
        "--out",
        type=folder,
        metavar="DIR",
        help=f"folder (default: {RESULTS} if there, else regard-bench)",
    )
    add(
        "--name",
        type=file_name,
        metavar="NAME",
        help="of the files (default: from the device, as h200 or cpu)",
    )


def sizes(text: str) -> tuple[int, ...]:
    """Parse `512,1024` as a tuple of sizes."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 512,1024")
    if max(found) > LARGEST:
        raise argparse.ArgumentTypeError(
            f"{max(found):,} is too large, the largest size is {LARGEST:,}"
        )
    return found


def count(text: str) -> int:
    """Parse a number of threads."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 1 to {MOST_THREADS}")
    return int(text)


def seed(text: str) -> int:
    """Parse a seed that torch accepts."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a seed: use a whole number from 0 to below 2**63"
        )
    return int(text)


def folder(text: str) -> Path:
    """Parse the path of a folder, which may not exist yet."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; name a folder")
    return path


def positive(text: str) -> float:
    """Parse a positive number of seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return found


def file_name(text: str) -> str:
    """Parse a file name that cannot leave its folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a file name: use letters, digits, - and _"
        )
    return text
