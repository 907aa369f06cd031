"""What every test shares: search profiles, seeds, threads, Triton, the gpu marker, the report."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
import random
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from .interpreter import patch_once_a_launch
from .slow import is_slow

STARTED = pytest.StashKey[float]()
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
SLOWEST = 25

# Triton reads this when it is imported, which no import above does: without a GPU its kernels then
# run on the CPU, in NumPy.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `ci` gives the same cases on every run, so that a red result is about the change at hand.
hypothesis.settings.register_profile(
    "ci", max_examples=25, derandomize=True, database=None, deadline=None
)
hypothesis.settings.register_profile("full", max_examples=300, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


class TorchRandom:
    """torch's generator as hypothesis wants it: seeded before each example, restored after."""

    def seed(self, value: int) -> None:
        torch.manual_seed(value)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


# hypothesis keeps a weak reference: the name holds the object alive.
TORCH_RANDOM = TorchRandom()
hypothesis.register_random(TORCH_RANDOM)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", metavar="PATH", help="write versions, counts and times to PATH")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.monotonic()
    if hasattr(config, "workerinput"):  # one of several xdist processes that share the cores
        torch.set_num_threads(1)
        # Programs that tests start have one thread too: with two, each waits in a busy loop for a core
        # that the other worker holds (29 s of CPU time in place of 5 s in `contract/test_places.py`).
        os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests from garbage collection: they stay to the end.

    Else each `gc.collect()` of the library or of a test goes through all of them, in about 0.4 s.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest itself looks at markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from regard.engines.gpu import HAS_TRITON  # late: the library reads TRITON_INTERPRET

    why = {"gpu": None if torch.cuda.is_available() else "no CUDA device"}
    if not HAS_TRITON:
        why["interpreted"] = "no Triton 3.6 or newer"
    elif os.environ.get("TRITON_INTERPRET") != "1":
        why["interpreted"] = "Triton compiles for the GPU here"
    else:
        patch_once_a_launch()
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker("slow")
        for marker, reason in why.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser, one for all tests: its driver cannot be started twice in a process."""
    reason = "playwright drives the browser: pip install playwright"
    driver = pytest.importorskip("playwright.sync_api", reason=reason)
    from regard.testing import browser as browsers

    try:
        program = browsers.provide()
    except browsers.NoBrowser as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with driver.sync_playwright() as playwright:
        # Chromium has no sandbox for root.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session", autouse=True)
def warm_cuda() -> None:
    """The first matrix product on a GPU may warn that no context was current yet."""
    if torch.cuda.is_available():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            square = torch.ones(8, 8, device="cuda", requires_grad=True)
            (square @ square).sum().backward()


@pytest.fixture(autouse=True)
def fixed_seed(request: pytest.FixtureRequest) -> None:
    """Seed from the test's own name: the order of tests and the worker do not matter."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    path = config.getoption("report")
    if path:
        seconds = time.monotonic() - config.stash[STARTED]
        Path(path).write_text(report_text(terminalreporter.stats, config, seconds))


def report_text(stats: dict[str, list], config: pytest.Config, seconds: float) -> str:
    """The report as text: nothing in it names the machine or a place on it."""
    tests = {outcome: stats[outcome] for outcome in OUTCOMES if stats.get(outcome)}
    called = [report for reports in tests.values() for report in reports if report.when == "call"]
    slow = [report for report in called if report.duration >= 0.1]
    slowest = sorted(slow, key=lambda report: -report.duration)[:SLOWEST]
    skips = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in tests.get("skipped", [])
    )
    bad = [report.nodeid for outcome in ("failed", "error") for report in tests.get(outcome, [])]

    lines = [
        f"date        {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        *(f"{name:<11} {version}" for name, version in versions().items()),
        f"platform    {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        f"gpu         {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'}",
        f"profile     {hypothesis.settings.get_current_profile_name()}",
        f"selection   {config.getoption('markexpr') or 'all tests'}",
        f"seconds     {seconds:.0f}",
        f"result      {', '.join(f'{len(tests[name])} {name}' for name in tests) or 'no tests'}",
    ]
    lines += section("failed", bad)
    lines += section("skipped", [f"{count:>5}  {reason}" for reason, count in skips.items()])
    lines += section(
        "slowest", [f"{report.duration:>6.1f} s  {report.nodeid}" for report in slowest]
    )
    return "\n".join(lines) + "\n"


def section(title: str, rows: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {row}" for row in rows)] if rows else []


def versions() -> dict[str, str]:
    names = ("regard", "torch", "triton", "numpy", "hypothesis", "pytest")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
