"""Every example runs as a user would run it, reaches what it says, and is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDED = {
    "bahdanau_translation.py",
    "drop_in_encoder.py",
    "gatv2_graph.py",
    "huggingface_additive.py",
}


def test_the_examples_that_the_documentation_names_exist():
    assert {path.name for path in EXAMPLES} >= NEEDED


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert "assert " in text, "an example checks what it says"
    run = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip(), "an example prints what it reached"
