"""The kernels compile for GPUs that are not here, and take no more than those have: see `compiling.py`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.engines.gpu import HAS_TRITON

from .compiling import CALLS

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="no Triton 3.6 or newer"),
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"),
        reason="Triton brings its compiler for GPUs with it on Linux alone",
    ),
]

SCRIPT = Path(__file__).with_name("compiling.py")
# KiB of shared memory that a program may take, by compute capability: the CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability". 8.0 itself has 163, but 8.6 and 8.9 have 99, and
# Triton compiles alike for them.
SHARED = {80: 99, 90: 227}
# Their work is small, and nothing of it would hide what memory takes.
OF_FEW_QUERIES = {"decode_kernel", "combine_kernel", "decode_backward_kernel", "sum_copies_kernel"}
OF_FEW_QUERIES_STACK = 8
# Bytes of stack that a thread may take where a kernel needs more registers than there are: what it took
# when this was written, on either GPU, and an eighth. Nothing for kernels that are not named.
STACK = {
    "wide features, causal": {"attend_kernel": 24},
    "wide features, lengths": {"attend_kernel": 32},
    "wide features, segments": {"attend_kernel": 24},
    "wide features, dv 256": {"attend_kernel": 80},
    "few queries, a part of wider keys": {"decode_backward_kernel": 120},
    "tanh in bf16": {"forward_kernel": 184, "backward_kernel": 288},
    "tanh in bf16, 16 units": {"forward_kernel": 128, "backward_kernel": 288},
    "tanh in bf16, causal": {"forward_kernel": 984, "backward_kernel": 648},
    "tanh in bf16, fixed order": {"forward_kernel": 184, "backward_kernel": 280},
    "tanh in bf16, dv 256": {"forward_kernel": 768, "backward_kernel": 288},
    "tanh in bf16, dv 1024": {"forward_kernel": 1632, "backward_kernel": 288},
    "tanh in fp16, dropout, fixed order": {"forward_kernel": 1096, "backward_kernel": 1264},
    "LeakyReLU in bf16, causal": {"forward_kernel": 216, "backward_kernel": 272},
    "LeakyReLU in fp32, all options": {"forward_kernel": 592, "backward_kernel": 1176},
    "LeakyReLU in fp32, fixed order": {"forward_kernel": 48, "backward_kernel": 824},
    "dot in fp16, statistics": {"jacobian_kernel": 16},
    "dot in bf16, causal": {"forward_kernel": 408},
    "tanh in fp32, dv 16": {"backward_kernel": 128},
    "tanh in fp32, dv 64": {"backward_kernel": 384},
    "tanh in fp32, dv 256": {"forward_kernel": 288},
    "tanh in fp32, dv 64, causal": {"backward_kernel": 832, "forward_kernel": 48},
    "tanh in fp32, dv 256, causal": {"forward_kernel": 2624},
    "LeakyReLU in fp32, dv 16": {"backward_kernel": 264},
    "LeakyReLU in fp32, dv 64": {"backward_kernel": 408},
    "LeakyReLU in fp32, dv 128": {"backward_kernel": 32},
    "LeakyReLU in fp32, dv 256": {"forward_kernel": 288},
    "LeakyReLU in fp32, dv 64, causal": {"forward_kernel": 48, "backward_kernel": 840},
    "LeakyReLU in fp32, dv 256, causal": {"forward_kernel": 2632},
    "dot in fp32, dv 64": {"forward_kernel": 32, "backward_kernel": 24},
    "dot in fp32, dv 128": {"backward_kernel": 24},
    "dot in fp32, dv 256": {"backward_kernel": 24},
    "dot in fp32, dv 64, causal": {"forward_kernel": 456, "backward_kernel": 248},
    "dot in fp32, dv 256, causal": {"forward_kernel": 320, "backward_kernel": 248},
    "dot in fp32, 16 features": {"forward_kernel": 304, "backward_kernel": 120},
    "series in fp16, beta in columns": {
        "query_features": 176,
        "key_features": 304,
        "query_gradient": 392,
        "key_gradient": 216,
    },
}
QUICK = ("one query", "tanh in bf16", "wide features")


def compiled(capability: int, names: Sequence[str], cache: Path) -> list[dict[str, Any]]:
    """What the script says of these calls, or of all where none is named."""
    # Here Triton may interpret, which it decides when it is imported.
    own = {name: x for name, x in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability), *names],
        check=False,
        env={**own, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(capability: int, names: Sequence[str], cache: Path) -> set[str]:
    """Compile these calls; no kernel takes too much. The calls that had kernels."""
    *kernels, last = compiled(capability, names, cache)
    assert last["lanes"], "the arrangement of tiles is not the one that `lanes.py` is written for"
    wrong = []
    for x in kernels:
        call, kernel = x["call"], x["kernel"]
        usual = OF_FEW_QUERIES_STACK if kernel in OF_FEW_QUERIES else 0
        most = STACK.get(call, {}).get(kernel, usual)
        if x["stack"] > most:
            wrong.append(f"{call}: {kernel} takes {x['stack']} bytes of stack, limit {most}")
        if x["shared"] > SHARED[capability] * 1024:
            wrong.append(f"{call}: {kernel} takes {x['shared']} bytes of shared memory")
    assert wrong == [], "\n".join(wrong)
    check_sums(kernels)
    return {x["call"] for x in kernels}


def check_sums(kernels: list[dict[str, Any]]) -> None:
    """Kernels for few queries sum in one order.

    An ordinary launch as a bound one does, and the backward a score as the forward does.
    """
    sums: dict[tuple[str, str], list[str]] = {}
    scores: dict[str, set[str]] = {}
    for x in kernels:
        if x["kernel"] in ("decode_kernel", "decode_backward_kernel"):
            found, name = x["summed_by"], (x["call"], x["kernel"])
            assert sums.setdefault(name, found) == found, name
            # The only sum over 4 dims.
            scores.setdefault(x["call"], set()).update(y for y in found if y.startswith("3 of "))
    for call, found in scores.items():
        assert len(found) == 1, f"{call}: {found}"
        assert (call, "decode_kernel") in sums and (call, "decode_backward_kernel") in sums


def test_common_calls_compile_for_hopper(tmp_path):
    assert check(90, QUICK, tmp_path) == set(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
def test_all_calls_compile(capability, tmp_path):
    assert check(capability, (), tmp_path) == set(CALLS)
