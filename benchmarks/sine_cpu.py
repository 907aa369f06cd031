"""Additive attention on the CPU: the textbook, the exact engine, and the sine series by rank.

`python benchmarks/sine_cpu.py` writes benchmarks/results/sine_cpu.json. Batch 1, 8 heads, length
1024, hidden 16, value dim 64, a and b standard normal. All are timed in turns in one process; a
ratio is the median over the rounds of eager textbook / candidate, so that more is faster. Beside
every time stands the error of the output against fp64, in units of the largest |value|.
"""

from __future__ import annotations

import json
import platform
import statistics
from pathlib import Path

import torch
from cpu_bars import textbook, with_backward

import regard
from regard import sine
from regard.engines import lineup
from regard.forms import Pairwise
from regard.measuring.clock import clock
from regard.problem import Problem

# What engine "sine" takes unless told otherwise.
TABLE = "matched"
RESULTS = Path(__file__).parent / "results" / "sine_cpu.json"
HEADS, LENGTH, HIDDEN = 8, 1024, 16


def through_rank(score, query, key, value, rank):
    form = score.lower(query, key)
    assert isinstance(form, Pairwise)
    inner = Problem(sine.lower(form, sine.load(TABLE, rank)), value)
    return lineup.SDPA.run(inner).output


def main(rounds: int = 7) -> None:
    torch.manual_seed(0)
    shapes = [(1, HEADS, LENGTH, HIDDEN)] * 2 + [(1, HEADS, LENGTH, 64)]
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)
    score = regard.Additive(HIDDEN, HEADS)
    compiled = torch.compile(textbook)
    calls = {
        "textbook": lambda: textbook(query, key, value, score),
        "textbook compiled": lambda: compiled(query, key, value, score),
        "exact": lambda: regard.attention(query, key, value, score),
    }
    for rank in sine.ranks(TABLE):
        calls[f"sine {rank}"] = lambda r=rank: through_rank(score, query, key, value, r)
    with torch.no_grad():
        wide = [x.double() for x in (query, key, value)]
        truth = textbook(*wide, score.double())
        score.float()
    leaves, results = [query, key, value, score.v], {}
    for name, call in calls.items():
        off = (call().detach() - truth).abs().max() / value.detach().abs().max()
        results[name] = {"error": float(off)}
    for kind in ("forward", "forward+backward"):
        timed = {
            name: call if kind == "forward" else with_backward(call, leaves)
            for name, call in calls.items()
        }
        times = {name: [] for name in timed}
        with torch.set_grad_enabled(kind != "forward"):
            for number in range(rounds + 1):
                for name, call in timed.items():
                    spent = clock(call, 1, query.device)
                    if number:  # the first round warms up
                        times[name].append(spent)
        for name, spent in times.items():
            ratios = [a / b for a, b in zip(times["textbook"], spent, strict=True)]
            results[name][kind] = {
                "ms": 1e3 * statistics.median(spent),
                "over eager textbook": statistics.median(ratios),
                "ratios": ratios,
            }
    machine = {"cores": torch.get_num_threads(), "torch": torch.__version__}
    machine["platform"] = platform.machine()
    RESULTS.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    for name, row in results.items():
        cells = [
            f"{row[kind]['ms']:8.1f} ms {row[kind]['over eager textbook']:6.2f}x"
            for kind in ("forward", "forward+backward")
        ]
        print(f"{name:<18} {'   '.join(cells)}   error {row['error']:.1e}")


if __name__ == "__main__":
    main()
