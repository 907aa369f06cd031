"""A score takes four places: its file, one export, a line of docs, its formula and case."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

from regard.scores.exports import SCORES

SRC = Path(__file__).parents[2] / "src"

TOY = '''
from regard.forms import InnerQuery
from regard.scores.base import InnerScore


class Toy(InnerScore):
    """`s(q, k) = 3 <q, k> / d`."""

    name = "toy"

    @classmethod
    def without_parameters(cls):
        return cls()

    def query(self, q):
        return InnerQuery(q, scale=3 / q.shape[-1])
'''
CASE = '''

def toy(score: Any, q: Tensor, k: Tensor) -> Tensor:
    """`3 <q, k> / d`."""
    return 3 * (q @ grouped(k, q.shape[-3]).mT) / q.shape[-1]


add("toy", lambda dq, dk, h, kh: regard.Toy(), toy)
'''
CHECK = """
import torch, regard
from regard.scores import make_score, named_score
from regard.testing import DTYPES, QUICK_ENGINES, SCORES, check_cases

assert regard.Toy is regard.scores.Toy and "Toy" in regard.__all__ and "Toy" in dir(regard)
assert type(named_score("toy")) is type(make_score("toy", 8, 2)) is regard.Toy
for engine in QUICK_ENGINES:
    report = check_cases(SCORES["toy"], engine, torch.float32)
    report.raise_failures()
    print(engine, report.served, report.refused)
"""

# Files that may list the scores: the export, and the contract's formulas with their cases.
PLACES = {"scores/exports.py", "testing/scores.py"}


def test_toy_score_needs_its_file_one_export_and_one_case(tmp_path: Path) -> None:
    library = tmp_path / "src"
    shutil.copytree(SRC, library, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    package = library / "regard"
    (package / "scores" / "toy.py").write_text(TOY, encoding="utf-8")
    exports = package / "scores" / "exports.py"
    text = exports.read_text(encoding="utf-8")
    text = text.replace(
        "\n__all__ = [", '\nfrom regard.scores.toy import Toy\n\n__all__ = [\n    "Toy",'
    )
    exports.write_text(text.replace("    GATv2,\n)", "    GATv2,\n    Toy,\n)"), encoding="utf-8")
    with (package / "testing" / "scores.py").open("a", encoding="utf-8") as file:
        file.write(CASE)
    environment = {**os.environ, "PYTHONPATH": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    served = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert served["sdpa"] > 20 and served["cpu"] > 50 and served["reference"] > 50


def named_classes(path: Path) -> set[str]:
    """Names that a file uses or imports, text and comments aside."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
    return found


def test_scores_are_listed_nowhere_else() -> None:
    """A file that names every score is a list that a new one must join.

    `choose` and claims compare scores of their choice, so that they name some.
    """
    package, scores = SRC / "regard", {score.__name__ for score in SCORES}
    lists = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if named_classes(path) >= scores
    }
    assert lists == PLACES
