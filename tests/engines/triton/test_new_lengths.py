"""A batch of another length compiles nothing: see `counting.py`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from regard.engines.gpu import HAS_TRITON

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="no Triton 3.6 or newer"),
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"),
        reason="Triton brings its compiler for GPUs with it on Linux alone",
    ),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_new_lengths_compile_nothing(dtype: str) -> None:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    said = subprocess.run(
        [sys.executable, "tests/engines/triton/counting.py", dtype],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    counted = json.loads(said.stdout)
    assert counted["later"] == {}
    # The count counts: a kernel for each form and kind of mask.
    assert counted["first"]["forward_kernel"] >= 4
    assert counted["first"]["backward_kernel"] >= 2
    assert counted["first"]["key_features"] >= 1
