"""What Python takes of a small call of engine `triton`: all but its kernels, on a machine without a GPU.

`python benchmarks/host_time.py` writes benchmarks/results/host_time.json. Tensors lie on the CPU, and
every launch ends where Triton's own launcher would be called, so that outputs hold nothing; checks, plans,
memory, arguments of kernels and autograd are as on a GPU, but for what CUDA takes to launch and to allocate.
Calls that come again (`regard.repeats`) run in turns with the same calls that go the whole way, in one
process; the textbook's formula, whose time is that of its operations on a few numbers, stands beside them
as a measure of the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from small import repeats as times_that_tell
from small import together

import regard
from regard import repeats
from regard.bench.peers import textbook_summed
from regard.engines import launching, lineup, plan
from regard.measuring.turns import compare

RESULTS = Path(__file__).parent / "results"
CPU, ROUNDS = torch.device("cpu"), 15
# Batch, heads, queries, keys, hidden, value dim: a few numbers; the kernels are not run.
SHAPE = (2, 1, 1, 5, 8, 8)


@contextmanager
def nothing_launched() -> Iterator[None]:
    """Engine `triton` serves the CPU, and kernels are bound as on a GPU and do nothing."""
    with (
        mock.patch.object(launching, "has_addresses", lambda device: True),
        mock.patch.object(launching, "current_stream", lambda device: 0),
        mock.patch.object(launching, "direct", lambda compiled: lambda *given: None),
        mock.patch.object(launching.Launch, "ordinary", lambda *given, **more: None),
        mock.patch.object(launching, "SIGHTS", 1),
        mock.patch.object(lineup.TRITON, "refusals", lambda problem: []),
        mock.patch.object(plan, "REPEATED_ON", ("cpu",)),
    ):
        yield


@contextmanager
def the_whole_way() -> Iterator[None]:
    """No call is taken for one that came before."""
    with mock.patch.object(repeats, "find", lambda *given: None):
        yield


def whole(call: Callable[[], object], times: int) -> Callable[[], object]:
    """So many calls, all of which go the whole way."""
    many = together(call, times, CPU)

    def run() -> None:
        with the_whole_way():
            many()

    return run


def measured(backward: bool) -> dict[str, object]:
    """Repeated calls over those that go the whole way, and over the textbook."""
    batch, heads, queries, keys, hidden, dim = SHAPE
    torch.manual_seed(0)
    leaves = [
        torch.randn(batch, heads, length, width, requires_grad=backward)
        for length, width in ((queries, hidden), (keys, hidden), (keys, dim))
    ]
    score, given = regard.Additive(hidden, heads), torch.randn(batch, heads, queries, dim)

    def passes(run: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def forward() -> None:
            with torch.no_grad():
                run()

        def both() -> None:
            torch.autograd.grad(run(), [*leaves, score.v], given)

        return both if backward else forward

    ours = passes(lambda: regard.attention(*leaves, score, engine="triton"))
    theirs = passes(lambda: textbook_summed(*leaves, score.v))
    times = times_that_tell(ours, CPU)
    many = together(ours, times, CPU)
    found = {
        "over the whole way": compare(many, whole(ours, times), ROUNDS),
        "over the textbook": compare(many, together(theirs, times, CPU), ROUNDS),
    }
    return {
        name: {key: x if "ratio" in key else x / times for key, x in row.items()}
        for name, row in found.items()
    }


def main() -> None:
    """Measure both passes, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "host_time.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = {"platform": platform.machine(), "torch": torch.__version__}
    rows = {}
    with nothing_launched():
        for name, backward in (("forward", False), ("forward+backward", True)):
            rows[name] = row = measured(backward)
            for other, x in row.items():
                low, high = x["ratio_low"], x["ratio_high"]
                print(
                    f"{name:<17} {1e3 * x['ours_ms']:6.1f} us, {x['ratio']:.2f} ({low:.2f} to "
                    f"{high:.2f}) {other}, {1e3 * x['other_ms']:.1f} us",
                    flush=True,
                )
    options.out.write_text(json.dumps({"machine": machine, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
