"""The eight chapters of docs/learn/: complete, alike in both languages, and true to code and claims."""

from __future__ import annotations

import ast
import json
import re
import time
from functools import cache
from pathlib import Path

import pytest
import torch

import regard
from regard.claims.report.words import VERDICTS
from regard.cli.play import CHAPTERS, PORT
from regard.doctor.findings import DISEASES

from .chapter_numbers import MEASURED, SETTINGS

ROOT = Path(__file__).parents[2]
LEARN = ROOT / "docs" / "learn"
LANGUAGES = ("en", "zh")
PARTS = ("picture", "formula", "measured", "play", "code", "mistake", "question")
HEADINGS = {
    "en": (
        "The picture", "The formula", "What was measured", "Play with it", "Ten lines",
        "A common mistake", "A question",
    ),
    "zh": ("比方", "公式", "实测", "动手玩", "十行代码", "常见错误", "想一想"),
}  # fmt: skip
NAMES = sorted(page.name for page in (LEARN / "en").glob("[1-8]-*.md"))
PAGES = [(language, name) for language in LANGUAGES for name in NAMES]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FIGURE = re.compile(r"^!\[[^\]]{10,}\]\(\.\./\.\./claims/(\w+)\.svg\)$", re.MULTILINE)
HIDDEN = re.compile(
    r'<details markdown="1">\n<summary>(?:Answer|答案)</summary>\n\n(.+?)\n\n</details>', re.DOTALL
)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])")


def text_of(language: str, name: str) -> str:
    return (LEARN / language / name).read_text(encoding="utf-8")


@cache
def parts(language: str, name: str) -> dict[str, str]:
    """The text under each heading, by the name of the part."""
    pieces = re.split(r"^## (.+)\n", text_of(language, name), flags=re.MULTILINE)
    assert tuple(pieces[1::2]) == HEADINGS[language], f"headings of {language}/{name}"
    return dict(zip(PARTS, pieces[2::2], strict=True))


def blocks(text: str, kind: str) -> list[str]:
    return [body for found, body in FENCE.findall(text) if found == kind]


def code_of(language: str, name: str) -> str:
    (code,) = blocks(parts(language, name)["code"], "python")
    return code


def result(claim: str) -> dict:
    path = ROOT / "benchmarks" / "claims" / f"{claim}.json"
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in found}


def test_there_are_eight_chapters_in_both_languages():
    assert [int(name[0]) for name in NAMES] == list(range(1, CHAPTERS + 1))
    for language in LANGUAGES:
        assert {page.name for page in (LEARN / language).iterdir()} == {*NAMES, "index.md"}
        index = (LEARN / language / "index.md").read_text(encoding="utf-8")
        assert [link for link in LINK.findall(index) if link in NAMES] == NAMES


@pytest.mark.parametrize(("language", "name"), PAGES)
class TestChapter:
    def test_begins_with_its_number_and_a_promise(self, language, name):
        lines = text_of(language, name).splitlines()
        assert lines[0].startswith(f"# {name[0]}. ")
        assert lines[2].startswith("*") and lines[2].endswith("*")

    def test_every_part_says_something(self, language, name):
        for part, body in parts(language, name).items():
            assert len(body.strip()) > 100, part

    def test_has_one_formula(self, language, name):
        (formula,) = blocks(text_of(language, name), "text")
        assert formula in parts(language, name)["formula"]
        assert formula.count("\n") == 1 and ("=" in formula or "≤" in formula)

    def test_has_one_figure_with_its_verdict(self, language, name):
        measured = parts(language, name)["measured"]
        (claim,) = FIGURE.findall(text_of(language, name))
        assert FIGURE.search(measured)
        assert f"[{claim}](../../claims.md#{claim.lower()})" in measured
        verdict = result(claim)["verdict"]
        words = next(text for text in VERDICTS.values() if text.en == verdict)
        said = measured[measured.index(f"[{claim}]") :]
        assert re.findall(r"\*\*(.+?)\*\*", said)[0] == words.of(language)

    def test_leads_to_its_state_of_the_playground(self, language, name):
        play = parts(language, name)["play"]
        state = f"#v=1&chapter={name[0]}&lang={language}"
        assert f"`regard play --chapter {name[0]}`" in play
        assert f"(http://127.0.0.1:{PORT}/{state})" in play
        assert f"`{state}`" in play
        assert len(re.findall(r"chapter[= ](\d)", play)) == 3

    def test_code_is_short_and_checks_itself(self, language, name):
        code = code_of(language, name)
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= 20
        assert "assert " in code and "regard" in code
        assert max(map(len, lines)) <= 100

    def test_names_diseases_that_the_doctor_knows(self, language, name):
        known = {disease.name for disease in DISEASES}
        mistake = parts(language, name)["mistake"]
        named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", mistake))
        assert named <= known
        assert ("../../doctor.md" in mistake) == bool(named)

    def test_says_the_mistake_first(self, language, name):
        assert parts(language, name)["mistake"].strip().startswith("**")

    def test_hides_one_answer(self, language, name):
        question = parts(language, name)["question"]
        (answer,) = HIDDEN.findall(text_of(language, name))
        assert answer in question and len(answer) > 100
        assert re.search("[?？]", question[: question.index("<details")])

    def test_links_lead_somewhere(self, language, name):
        page = LEARN / language / name
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if link.startswith("http"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve()
            assert target.is_file(), link
            assert not anchor or anchor in anchors(target), link

    def test_leads_to_its_neighbours_and_the_other_language(self, language, name):
        foot = text_of(language, name).rsplit("\n---\n", 1)[1]
        other = "zh" if language == "en" else "en"
        place = NAMES.index(name)
        near = [NAMES[at] for at in (place - 1, place + 1) if 0 <= at < len(NAMES)]
        for link in [*near, "index.md", f"../{other}/{name}"]:
            assert f"({link})" in foot


@pytest.mark.parametrize("name", NAMES)
class TestLanguagesAgree:
    def test_on_code_up_to_comments(self, name):
        english, chinese = (ast.dump(ast.parse(code_of(lang, name))) for lang in LANGUAGES)
        assert english == chinese

    def test_on_formula_figure_and_claims(self, name):
        english, chinese = (parts(language, name) for language in LANGUAGES)
        for part in PARTS:
            assert blocks(english[part], "text") == blocks(chinese[part], "text")
            targets = [
                sorted(link for link in LINK.findall(body[part]) if link.startswith("../../"))
                for body in (english, chinese)
            ]
            assert targets[0] == targets[1], part

    def test_on_numbers(self, name):
        """Digits of the prose of each part: a number that one language lacks is a slip."""
        for part in PARTS:
            english, chinese = (
                set(NUMBER.findall(FENCE.sub("", parts(language, name)[part])))
                for language in LANGUAGES
            )
            # Counts up to a hundred may be words in one language and digits in the other.
            differ = {n for n in english ^ chinese if "." in n or int(n) > 100}
            assert not differ, part


@pytest.mark.parametrize("name", NAMES)
def test_code_runs_and_gives_the_numbers_told(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = code_of("en", name)
    # The first pairwise score makes torch load its symbolic shapes: not the chapter's own time.
    regard.score(torch.zeros(1, 2), torch.zeros(1, 2), regard.Additive(2))
    begin = time.process_time()
    exec(compile(code, name, "exec"), {"__name__": "learn"})  # noqa: S102 - running it is the test
    assert time.process_time() - begin < 2
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr().out + code
    given = [float(x) for x in re.findall(r"\d+\.\d+(?:e-?\d+)?", printed)]
    for language in LANGUAGES:
        after = parts(language, name)["code"].rsplit("```", 1)[1]
        for told in re.findall(r"\d+\.\d+", after):
            digits = len(told.split(".")[1])
            assert any(f"{x:.{digits}f}" == told for x in given), told


def test_the_accuracies_of_the_last_chapter_are_the_claims():
    lists = re.findall(r"\[(\d+\.\d[\d., ]+)\]", code_of("en", NAMES[-1]))
    told = [[float(x) for x in row.split(",")] for row in lists]
    pairs = result("E5")["numbers"]["pairs"]
    found = [
        next(run for run in pairs[kind][score] if run["size"] == size)["quality"]
        for kind, size in (("unlike", 32768), ("folded", 64))
        for score in ("additive", "scaled dot")
    ]
    assert told == [[round(100 * x, 1) for x in row] for row in found]


EVIDENCE = [(n, one) for n, own in MEASURED.items() for one in own]


@pytest.mark.parametrize(
    ("number", "evidence"), EVIDENCE, ids=[f"{n}: {one.told} of {one.claim}" for n, one in EVIDENCE]
)
def test_a_number_of_a_chapter_is_the_one_that_was_measured(number, evidence):
    assert evidence.written(result(evidence.claim)) == evidence.told
    for language in LANGUAGES:
        prose = FENCE.sub("", text_of(language, NAMES[number - 1]))
        assert evidence.told in NUMBER.findall(prose)


@pytest.mark.parametrize(("language", "name"), PAGES)
def test_every_number_that_was_measured_is_listed(language, name):
    """In tests/docs/chapter_numbers.py: with its result, or as a setting of the experiment."""
    number = int(name[0])
    listed = {one.told for one in MEASURED[number]} | SETTINGS[number]
    prose = re.sub(r"\]\([^)]*\)|\b[A-I]\d+\b", "", parts(language, name)["measured"])
    assert set(NUMBER.findall(prose)) <= listed


def test_the_playground_says_of_the_loud_key_what_was_measured():
    """Its fifth chapter quotes claim G1 at its largest factor."""
    page = (ROOT / "src" / "regard" / "play" / "page" / "text.js").read_text(encoding="utf-8")
    facts = {fact["label"]["en"]: fact["value"] for fact in result("G1")["facts"]}
    dot, additive = (f"{100 * facts[f'captured, {name}']:.0f}%" for name in ("dot", "additive"))
    longest = result("G1")["numbers"]["factors"][-1]
    assert f"claim G1 a key {longest} times as long takes {dot} of the queries of dot, and {additive}" in page  # fmt: skip
    assert f"长 {longest} 倍的键夺走点积 {dot} 的查询，夺走加性 {additive}" in page
