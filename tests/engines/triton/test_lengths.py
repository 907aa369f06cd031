"""New numbers of keys compile nothing: the kernels for few queries are the same for all of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from regard.engines.gpu import HAS_TRITON

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="no Triton 3.6 or newer"),
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"),
        reason="Triton brings its compiler for GPUs with it on Linux alone",
    ),
]
SCRIPT = Path(__file__).with_name("lengths.py")
KERNELS = {"decode_kernel", "combine_kernel", "decode_backward_kernel", "sum_copies_kernel"}


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
def test_all_lengths_have_the_kernels_of_the_first(capability, tmp_path):
    # Here Triton may interpret, which it decides when it is imported.
    own = {name: x for name, x in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability)],
        check=False,
        env={**own, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [x["call"] for x in found] == ["plain", "masked", "stepped"]
    for x in found:
        assert set(x["first"]) == KERNELS, x
        assert x["last"] == x["first"], x
