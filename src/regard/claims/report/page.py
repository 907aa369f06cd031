"""docs/claims.md and its figures, from results: `python -m regard.claims.report.page RESULTS docs/claims.md`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from regard.claims.absent import ABSENT, absent_sentence
from regard.claims.claim import Claim
from regard.claims.registry import all_claims
from regard.claims.report.amounts import row
from regard.claims.report.entries import command, environments
from regard.claims.report.words import GROUPS, HOW, MEANINGS, VERDICTS, WORDS, key_of
from regard.claims.running.store import Result, ResultStoreError, load_results
from regard.figures.canvas import drawn
from regard.measuring.files import write_atomic
from regard.page.markdown import marked, table, with_fonts

USAGE = "usage: python -m regard.claims.report.page RESULTS_FOLDER docs/claims.md"


def main(arguments: list[str]) -> None:
    """Write the page and, in the folder named after it, the figures."""
    if len(arguments) != 2:
        raise SystemExit(USAGE)
    folder, path = map(Path, arguments)
    claims = all_claims()
    try:
        results = load_results(folder, claims)
        if not any(name in claims for name in results):
            raise ResultStoreError(
                f"no results in {folder}: `regard claims run --full --out {folder}` makes them"
            )
        write_figures(claims, results, path.with_suffix(""))
        write_atomic(path, page(claims, results, path.stem).encode())
    except (OSError, ResultStoreError) as error:
        raise SystemExit(f"error: {error}") from None


def write_figures(claims: Mapping[str, Claim], results: Mapping[str, Result], folder: Path) -> None:
    """Write one SVG for each result, and remove the figures of claims without a result."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, claim in claims.items():
        path = folder / f"{name}.svg"
        if name not in results:
            path.unlink(missing_ok=True)
            continue
        numbers = results[name].numbers
        svg = drawn(lambda canvas, c=claim, n=numbers: c.draw(n, canvas), "en", ["svg"])["svg"]
        write_atomic(path, with_fonts(svg))


def page(claims: Mapping[str, Claim], results: Mapping[str, Result], figures: str) -> str:
    """The page as Markdown; `figures` is the path of the figures' folder relative to the page."""
    shown = {name: results[name] for name in claims if name in results}
    parts = [*opening(claims, shown)]
    group = ""
    for name, result in shown.items():
        if name[0] != group:
            group = name[0]
            parts.append(f"## {group}. {GROUPS[group].en}")
        parts += section(claims[name], result, figures)
    return "\n\n".join([*parts, *closing(shown)]) + "\n"


def opening(claims: Mapping[str, Claim], results: Mapping[str, Result]) -> Iterator[str]:
    """The introduction and the table of verdicts."""
    keys = {
        name: key_of(results[name].judgement.verdict if name in results else None)
        for name in claims
    }
    counts = Counter(keys.values())
    yield f"# {WORDS['title'].en}"
    yield "<!-- Written by `python -m regard.claims.report.page`: change the claims, not this page. -->"
    yield (
        f"{WORDS['lede'].en} `regard claims run` runs them on your machine and writes a report in "
        "English or Chinese."
    )
    yield (
        ", ".join(f"**{counts[key]}** {VERDICTS[key].en}" for key in VERDICTS if counts[key]) + "."
    )
    yield f"{len(claims) + len(ABSENT)} statements are planned. {absent_sentence().en}"
    rows = [
        (f"[{name}](#{name.lower()})" if name in results else name, marked(claim.statement.en),
         VERDICTS[keys[name]].en)
        for name, claim in claims.items()
    ]  # fmt: skip
    yield table(("id", "claim", "verdict"), rows)


def section(claim: Claim, result: Result, figures: str) -> Iterator[str]:
    """The paragraphs of one claim."""
    judged = result.judgement
    yield f"### {claim.id}"
    yield f"**{marked(claim.statement.en)}**"
    yield f"*{VERDICTS[key_of(judged.verdict)].en}*: {marked(judged.because.en)}"
    yield f"![Figure of {claim.id}]({figures}/{claim.id}.svg)"
    yield marked(claim.caption.en)
    if judged.facts:
        rows = [
            (marked(label), *numbers) for label, *numbers in (row(f, "en") for f in judged.facts)
        ]
        yield table((WORDS["numbers"].en.lower(), "value", WORDS["interval"].en), rows)
    for name in ("meaning", "criterion", "control"):
        yield f"**{WORDS[name].en}.** {marked(getattr(claim, name).en)}"
    yield f"```sh\n{command(claim.id, result)}\n```"


def closing(results: Mapping[str, Result]) -> Iterator[str]:
    """How verdicts are computed, and the versions and hardware behind the numbers."""
    yield f"## {WORDS['how'].en}"
    yield from (text.en for text in HOW)
    yield "\n".join(f"- *{VERDICTS[key].en}*: {text.en}" for key, text in MEANINGS.items())
    yield f"## {WORDS['machines'].en}"
    found = environments(results, "en")
    for environment in found:
        ids = ", ".join(environment.ids) if len(found) > 1 else WORDS["every_claim"].en
        yield f"{WORDS['for'].en}: {ids}."
        yield table(("", ""), [[marked(part) for part in pair] for pair in environment.rows])


if __name__ == "__main__":
    main(sys.argv[1:])
