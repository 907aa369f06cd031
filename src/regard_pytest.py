"""The pytest plugin: a fixture that tests the attention of a project's own models by laws.

```python
def test_attention(attention_doctor):
    attention_doctor.check(build_model(), batch, causal=True)
```

It is outside of the package, for pytest loads it in every run: neither torch nor regard is imported until
a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from regard.doctor import Checked

OPTION = "--attention-report"
WIDTH = 100  # columns of a failure's message
# For each check: heading, whether it is in order, and its part of the page.
SECTIONS = pytest.StashKey[list[tuple[str, bool, str]]]()
SENT = "regard_attention_sections"  # from a worker of pytest-xdist to the process that writes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("attention", "attention, tested by laws (regard)")
    group.addoption(
        OPTION,
        metavar="FILE",
        type=Path,
        default=None,
        help="write what the fixture attention_doctor found to an HTML page",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty report."""
    config.stash[SECTIONS] = []


class AttentionDoctor:
    """What the fixture gives: `check` fails the test if a law of attention is broken."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.request = request
        self.results: list[Checked] = []

    def check(
        self,
        model: Any,
        batch: Any,
        *,
        allow: Iterable[str] = (),
        require: Iterable[str] = (),
        **options: Any,
    ) -> Checked:
        """Test a model as `regard.doctor.check` does, and fail the test if a law is broken.

        Args:
            model: any `nn.Module`.
            batch: a tensor, or a tuple or dict of all arguments.
            allow: names of laws that may be broken.
            require: names of laws that must have been tested: where one does not apply, the test fails.
            options: of `regard.doctor.check`: `causal=True`, `padding=`, `positions=`, `labels=`.
        """
        from regard.doctor import LAWS, check
        from regard.doctor.laws.page import section

        __tracebackhide__ = True
        allow, require = tuple(allow), tuple(require)
        unknown = {*allow, *require} - {law.name for law in LAWS}
        if unknown:
            raise ValueError(
                f"unknown laws {', '.join(sorted(unknown))}; known are {', '.join(x.name for x in LAWS)}"
            )
        result = check(model, batch, **options)
        self.results.append(result)
        node = self.request.node
        bad = failure(result, allow, require)
        kept = node.config.stash[SECTIONS]
        kept.append((node.nodeid, not bad, section(result, node.nodeid, len(kept))))
        # Reports for machines (JUnit) keep this with the test, also where it passes.
        node.user_properties.append(("attention", result.headline))
        if bad:
            pytest.fail(bad, pytrace=False)
        return result


def failure(result: Checked, allow: tuple[str, ...], require: tuple[str, ...]) -> str:
    """Why a result fails a test, as the message of the failure; "" if it does not."""
    if not result.sites:
        return f"{result.model}: no attention was seen, so there is nothing to check"
    broken = [
        f"{x.law} broken at {x.findings[0].site}" for x in result.broken if x.law not in allow
    ]
    missing = [x for x in result.rulings if x.law in require and x.verdict == "did not apply"]
    if not broken and not missing:
        return ""
    said = [f"attention of {result.model}: {', '.join(broken)}"] if broken else []
    said += [f"{x.law} is required and was not tested: {x.why}" for x in missing]
    return "\n".join(said) + "\n\n" + result.summary(WIDTH)


@pytest.fixture
def attention_doctor(request: pytest.FixtureRequest) -> AttentionDoctor:
    """Tests the attention of a model by laws: `attention_doctor.check(model, batch, causal=True)`."""
    return AttentionDoctor(request)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker of pytest-xdist has found."""
    sent = getattr(node, "workeroutput", {}).get(SENT, [])
    node.config.stash[SECTIONS].extend((name, ok, text) for name, ok, text in sent)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report, or send what was found to the process that does."""
    config = session.config
    path, found = config.getoption(OPTION), config.stash[SECTIONS]
    if path is None:
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput[SENT] = [list(x) for x in found]
        return
    if found:
        from regard.doctor.laws.page import page_of
        from regard.measuring.files import write_atomic

        bad = sum(not ok for _, ok, _ in found)
        title = f"{len(found)} checks of attention, {bad} failed"
        write_atomic(path, page_of([text for _, _, text in found], title).encode())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say where the report is."""
    path = config.getoption(OPTION)
    if path is not None:
        said = path if config.stash[SECTIONS] else "not written: no test used attention_doctor"
        terminalreporter.write_line(f"attention report: {said}")
