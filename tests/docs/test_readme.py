"""The front page in both languages: numbers of the committed results, and the same for every reader."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.choosing.tasks.embedded import MADE, RENAMED
from regard.choosing.training.candidates import ScoreSizes, candidates
from regard.claims import all_claims
from regard.claims.absent import ABSENT

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
BOTH = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What names the candidates among the options of a task.
CANDIDATES = ("scores", "stabilizers", "hidden", "heads")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e\d+)?")


@pytest.fixture
def writer(monkeypatch):
    """benchmarks/readme.py, which is a script and no package's."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("readme")


def without_code(page: str) -> str:
    return FENCE.sub("", page)


def tables(page: str) -> list[list[str]]:
    """The rows of every table, cells and all."""
    return re.findall(r"^\|.*\|$", without_code(page), re.MULTILINE)


def headline(page: str) -> list[list[str]]:
    """The cells of the first table: which score for which data."""
    inside = re.search(r"<!-- choose:.*?<!-- /choose -->", page, re.DOTALL)
    return [row.strip("| ").split(" | ") for row in tables(inside[0])[2:]]


def test_tables_and_pictures_are_up_to_date(writer):
    stale = [path.name for path, text in writer.written().items() if path.read_text() != text]
    assert not stale, "run `python benchmarks/readme.py`"


def test_other_results_make_another_page(writer, monkeypatch):
    """The check above can fail."""
    real = writer.front.load

    def other(name):
        found = real(name)
        for task in found.get("tasks", []):
            task["verdict"]["best_alternative_over_scaled_dot"] = [0.123, 0.1, 0.146]
        return found

    monkeypatch.setattr(writer.front, "load", other)
    changed = {path.name for path, text in writer.written().items() if path.read_text() != text}
    assert changed == {"README.md", "README.zh-CN.md", "front.svg", "front.zh.svg"}


def test_a_noisy_second_is_not_named_beside_the_first(writer):
    """An interval that reaches what matters rules nothing out, however low it begins."""
    (task,) = [one for one in writer.front.load("choose")["tasks"] if one["name"] == "digits"]
    for margin, named in ([0.19, -0.16, 0.54], False), ([0.001, -0.003, 0.005], True):
        task["verdict"]["margin"] = margin
        assert (writer.front.gain(task).instead is not None) is named


def test_a_cost_says_at_which_hidden_width_it_was_measured():
    for page, words in ((ENGLISH, "x at 16 hidden"), (CHINESE, "x（16 个隐藏单元时）")):
        rows = headline(page)
        assert [words in row[4] for row in rows] == [
            "hidden" in row[1] or "隐藏" in row[1] for row in rows
        ]


@BOTH
def test_no_other_ratio_of_times_is_on_the_page(page, writer):
    """One number with one definition: what a score costs, from `front.costs`."""
    named = {str(cost) for cost in writer.front.costs().values()}
    assert set(re.findall(r"\b\d[\d.]*x", without_code(page))) <= named


def test_a_page_without_its_place_is_one_error(writer):
    with pytest.raises(SystemExit, match="0 places for the table 'choose'"):
        writer.filled("nothing", {"choose": lambda: "table"}, "page.md")


def test_it_is_short():
    """Three screens; examples are in the quick start."""
    assert len(ENGLISH.splitlines()) <= 130


@BOTH
def test_it_says_how_many_statements_are_tested(page):
    assert f" {len(list((ROOT / 'benchmarks' / 'claims').glob('*.json')))} " in page


@BOTH
def test_it_names_the_statements_without_an_experiment(page):
    named = re.findall(r"[(（]([A-Z]\d+)[)）]", without_code(page))
    assert named == list(ABSENT)
    assert f" {len(all_claims()) + len(ABSENT)} " in page


def test_a_result_under_a_former_name_is_shown_under_the_new_one(writer):
    old = {new: old for old, new in RENAMED.items()}
    assert set(RENAMED.values()) <= set(MADE) and not set(RENAMED) & set(MADE)
    for task in writer.front.load("choose")["tasks"]:
        name = RENAMED.get(task["name"], task["name"])
        for known in {name, old.get(name, name)}:
            gain = writer.front.gain(task | {"name": known})
            made = MADE[name]()
            assert (gain.prop["zh"], gain.claims) == (made.prop.zh, made.claims)


@BOTH
def test_it_says_what_the_project_asks_for(page):
    project = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11"' in project and "Python 3.11" in page
    assert '"torch>=2.6"' in project and "torch 2.6" in page
    assert 'license = "Apache-2.0"' in project and "[Apache-2.0](LICENSE)" in page


class TestLanguagesAgree:
    def test_on_headings(self):
        levels = [
            re.findall(r"^#+ ", without_code(page), re.MULTILINE) for page in (ENGLISH, CHINESE)
        ]
        assert levels[0] == levels[1] and len(levels[0]) > 5

    def test_on_code(self):
        assert FENCE.findall(ENGLISH) == FENCE.findall(CHINESE)

    def test_on_tables(self):
        english, chinese = tables(ENGLISH), tables(CHINESE)
        assert len(english) == len(chinese) > 8
        for ours, theirs in zip(english, chinese, strict=True):
            assert ours.count("|") == theirs.count("|")
            # The first cell is words; a count in it may be a word in one language.
            assert NUMBER.findall(ours.split("|", 2)[2]) == NUMBER.findall(theirs.split("|", 2)[2])

    def test_on_numbers_of_the_prose(self):
        prose = [
            re.sub(r"^\|.*\|$", "", without_code(x), flags=re.MULTILINE) for x in (ENGLISH, CHINESE)
        ]
        english, chinese = (sorted(NUMBER.findall(LINK.sub("", text))) for text in prose)
        assert english == chinese

    def test_on_links(self):
        """In the same order, to the Chinese page where there is one."""
        here = {"README.zh-CN.md": "README.md"}  # each leads to the other
        expected = []
        for link in LINK.findall(without_code(ENGLISH)):
            other = link.replace("/en/", "/zh/").replace(".svg", ".zh.svg")
            expected.append(here.get(link) or (other if (ROOT / other).exists() else link))
        assert LINK.findall(without_code(CHINESE)) == expected

    def test_on_words_with_the_report(self):
        """Kinds of data and candidates are called the same there, in both languages."""
        tasks = [make() for make in MADE.values()]
        for page, language in ((ENGLISH, 0), (CHINESE, 1)):
            for (data, use, *_), task in zip(headline(page), tasks, strict=True):
                options = {k: v for k, v in task.options.items() if k in CANDIDATES}
                sizes = ScoreSizes(*task.dims, width=task.options["width"], projected=True)
                labels = [one.label[language] for one in candidates(sizes, **options)]
                assert data == task.prop[language]
                assert re.match(r"\*\*(.+?)\*\*", use)[1] in labels


@pytest.mark.slow
def test_the_file_that_it_makes_gets_the_answer_that_it_shows(tmp_path):
    (make,) = (
        code for kind, code in FENCE.findall(ENGLISH) if kind == "python" and "savez" in code
    )
    assert "\nregard choose --data mine.npz --steps 300\n" in ENGLISH
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    command = "import sys; from regard.cli import main; sys.exit(main())"
    found = subprocess.run(
        [sys.executable, "-c", command, "choose", "--data", "mine.npz", "--steps", "300", "--json"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    (task,) = json.loads(found.stdout)["tasks"]
    shown = json.loads((ROOT / "benchmarks" / "results" / "choose-mine.json").read_text())
    assert task["verdict"]["winner"] == shown["tasks"][0]["verdict"]["winner"] == "gaussian"
