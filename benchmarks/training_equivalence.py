"""Does a model learn the same with the sine series as with tanh? Same data, seeds and start.

`python benchmarks/training_equivalence.py --data FOLDER` trains a small model from letters to
sounds (SIGMORPHON 2021, French; FOLDER or REGARD_DATA holds `sigmorphon2021_g2p/`) three times for
each seed, with nothing different but who computes the additive cross-attention:

    textbook  plain PyTorch, the [Q, L, hidden] tensor
    exact     regard's exact engine, "cpu" or "triton"
    sine      regard allowed to err by `--error`, so that engine "sine" runs wherever it can; on a GPU,
              where exact attention is as fast for words as short as these, that engine by its name

in two cases: *usual*, and *hard*, which starts with projections so wide that |a + b| soon leaves the
range of the series and exact attention has to answer in its place. The loss is that of held-out
words. Equal means: at every point the curve of an engine, the mean over seeds, is no further from
the textbook's than one standard deviation over the seeds. The words of a batch have equally many
letters: there is no padding, and no mask, which the series does not take on a GPU.

    python benchmarks/training_equivalence.py --device cuda --dtype bfloat16

Results go to benchmarks/results/training_equivalence.{json,png,svg}, on a GPU with its name, or to `--out`
and beside it. Runs that the JSON already holds are not repeated, and with another setting it is not
written over. Exit status 1 if a curve leaves the spread.

Shape legend: B words, H heads, Q sounds, L letters, E hidden width, D model width.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_figure import draw
from training_words import PAD, Words, batches, read

import regard
from regard.engines import plan
from regard.sine import escapes

RESULTS = Path(__file__).parent / "results"
ENGINES = ("textbook", "exact", "sine")
Attention = Callable[[Tensor, Tensor, Tensor, regard.Additive], Tensor]


class Case(NamedTuple):
    """How training moves and starts: learning rate, and a factor on the projections of the score."""

    rate: float
    spread: float


CASES = {"usual": Case(rate=3e-3, spread=1.0), "hard": Case(rate=3e-3, spread=2.5)}


class Speller(nn.Module):
    """A GRU reads the letters, another the sounds so far; additive attention joins them."""

    def __init__(self, letters: int, sounds: int, options: argparse.Namespace, case: Case) -> None:
        super().__init__()
        dim, heads = options.dim, options.heads
        self.letters, self.sounds = nn.Embedding(letters, dim), nn.Embedding(sounds, dim)
        self.encoder = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.score = regard.Projected(regard.Additive(options.hidden, heads), dim, dim)
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(2 * dim, sounds)
        with torch.no_grad():
            self.score.query_weight.mul_(case.spread)
            self.score.key_weight.mul_(case.spread)

    def forward(self, words: Words, attention: Attention) -> tuple[Tensor, Tensor]:
        """The mean loss of a sound, and the largest |a| + |b| that any hidden unit met.

        The words have equally many letters.
        """
        keys, _ = self.encoder(self.letters(words.letters))
        queries, _ = self.decoder(self.sounds(words.sounds[:, :-1]))
        a = self.score.project_query(queries.unsqueeze(1))  # (B, H, Q, E)
        b = self.score.project_key(keys.unsqueeze(1))  # (B, H, L, E)
        value = self.value(keys).unflatten(-1, (self.score.heads, -1)).transpose(1, 2)
        context = attention(a, b, value, self.score.score)
        context = context.transpose(1, 2).flatten(-2)
        logits = self.out(torch.cat([queries, context], -1))
        loss = F.cross_entropy(logits.mT.float(), words.sounds[:, 1:], ignore_index=PAD)
        reach = a.detach().abs().amax(-2) + b.detach().abs().amax(-2)
        return loss, reach.max()


def textbook(a: Tensor, b: Tensor, value: Tensor, score: regard.Additive) -> Tensor:
    """Additive attention as it is taught.

    Written out beside `regard.bench.peers.textbook_summed`, since v stays in fp32 here while values
    may be halves: the weights are rounded to the dtype of the values.
    """
    logits = (torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) * score.v[:, None, None]).sum(-1)
    return logits.softmax(-1).to(value.dtype) @ value


def attention_of(engine: str, device: torch.device, error: float) -> Attention:
    """Who computes the attention."""
    if engine == "textbook":
        return textbook
    on_cpu = device.type == "cpu"
    exact = "cpu" if on_cpu else "triton" if "triton" in plan.BY_NAME else "reference"
    # By name the engine on the CPU would raise where the range is left; on a GPU it has the exact
    # kernel behind it, and without its name would not be chosen for words as short as these.
    near = {"error": error} if on_cpu else {"engine": "sine"}
    options = {"engine": exact} if engine == "exact" else near
    return lambda a, b, value, score: regard.attention(a, b, value, score, **options)


def train(
    case: Case, engine: str, seed: int, data: tuple[dict[str, Words], int, int], options
) -> dict:
    """One run: held-out loss, reach and escapes at every `options.every` steps."""
    device = torch.device(options.device)
    words, *counts = data
    words = {
        part: Words(w.letters.to(device), w.lengths, w.sounds.to(device))
        for part, w in words.items()
    }
    torch.manual_seed(seed)
    model = Speller(*counts, options, case).to(device)
    attention = attention_of(engine, device, options.error)
    optimiser = torch.optim.Adam(model.parameters(), lr=case.rate)
    order = batches(words["train"].lengths, options.batch, seed)
    half = options.dtype != "float32"
    precision = torch.autocast(device.type, getattr(torch, options.dtype), enabled=half)
    held_out = words["dev"].by_length(options.held_out)
    sounds = [int((group.sounds[:, 1:] != PAD).sum()) for group in held_out]

    @torch.no_grad()
    def held_out_loss() -> float:
        with precision:
            losses = torch.stack([model(group, attention)[0] for group in held_out])
        return float(losses @ losses.new_tensor(sounds)) / sum(sounds)

    run = {"step": [0], "loss": [held_out_loss()], "reach": [], "calls": [], "escapes": []}
    start = time.perf_counter()
    reach = torch.zeros((), device=device)
    escapes.reset()
    for step in range(1, options.steps + 1):
        with precision:
            loss, seen = model(words["train"].pick(next(order)), attention)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        reach = torch.maximum(reach, seen)
        if step % options.every == 0 or step == options.steps:
            counted = escapes.count()
            run["step"].append(step)
            run["reach"].append(round(float(reach), 3))
            run["calls"].append(counted.calls)
            run["escapes"].append(counted.escapes)
            run["loss"].append(held_out_loss())
            reach.zero_()
            escapes.reset()  # those of the held-out words are not of training
    if engine == "sine" and sum(run["calls"]) != options.steps:
        raise RuntimeError(
            f"{sum(run['calls'])} of {options.steps} steps were offered to the series: this run "
            "would not show what it says"
        )
    return run | {"seconds": round(time.perf_counter() - start, 1)}


def summary(runs: dict[str, dict], seeds: int) -> dict[str, dict]:
    """For each case: curves, their distance from the textbook's, the spread over seeds, escapes."""
    found = {}
    for case in CASES:
        of = {e: [runs[name(case, e, s)] for s in range(seeds)] for e in ENGINES}
        curves = {e: list(zip(*(run["loss"] for run in of[e]), strict=True)) for e in ENGINES}
        spread = [statistics.stdev(point) for point in curves["textbook"]]
        rows = {}
        for engine in ENGINES:
            means = [statistics.fmean(point) for point in curves[engine]]
            pairs = [
                [x - y for x, y in zip(a, b, strict=True)]
                for a, b in zip(curves[engine], curves["textbook"], strict=True)
            ]
            apart = [abs(statistics.fmean(point)) for point in pairs]
            rows[engine] = {
                "mean": means,
                "final": list(curves[engine][-1]),
                "difference": apart,
                "largest difference over spread": max(
                    x / y for x, y in zip(apart, spread, strict=True)
                ),
                "largest difference of one seed": max(abs(x) for point in pairs for x in point),
                "largest |a| + |b|": max(x for run in of[engine] for x in run["reach"]),
                "calls": sum(sum(run["calls"]) for run in of[engine]),
                "escapes": sum(sum(run["escapes"]) for run in of[engine]),
                "within spread": all(x <= y for x, y in zip(apart, spread, strict=True)),
            }
        share = [
            sum(run["escapes"][i] for run in of["sine"])
            / sum(run["calls"][i] for run in of["sine"])
            for i in range(len(spread) - 1)
        ]
        found[case] = {
            "step": of["textbook"][0]["step"],
            "spread over seeds": spread,
            "share of steps that left the range": share,
            "engines": rows,
        }
    return found


def name(case: str, engine: str, seed: int) -> str:
    """The key of a run in the results."""
    return f"{case} {engine} {seed}"


def setting(options: argparse.Namespace) -> dict:
    """All that must be equal for runs to be comparable."""
    own = ("steps", "batch", "dim", "heads", "hidden", "error", "held_out", "every", "language")
    return {key: getattr(options, key) for key in own} | {
        "words of a batch": "equally many letters",
        "device": torch.cuda.get_device_name(options.device) if options.device != "cpu" else "cpu",
        "dtype": options.dtype,
        "cases": {case: values._asdict() for case, values in CASES.items()},
        "regard": regard.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def remembered(options: argparse.Namespace) -> dict[str, dict]:
    """Runs that the results hold already; those of another setting are not written over unasked."""
    if options.fresh or not options.out.is_file():
        return {}
    try:
        earlier = json.loads(options.out.read_text())
        runs, found = earlier["runs"], earlier["setting"]
    except (UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        aside = options.out.with_suffix(".corrupt")
        options.out.replace(aside)
        print(f"{options.out.name} cannot be read ({error!r}): kept as {aside.name}")
        return {}
    if found != setting(options):
        raise SystemExit(
            f"{options.out.name} has runs of another setting: name another file by --out, or replace "
            "them by --fresh"
        )
    return runs


def write(options: argparse.Namespace, results: dict) -> None:
    """In one move: a run that is interrupted leaves a whole file."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(options.out)


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("REGARD_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data), help="folder of the data")
    parser.add_argument("--language", default="fre", help="which words")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    for option, default in {"seeds": 5, "steps": 300, "batch": 64, "dim": 64, "heads": 4}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--hidden", type=int, default=16, help="hidden units of a head")
    parser.add_argument("--held-out", type=int, default=500, help="words that the loss is of")
    parser.add_argument("--every", type=int, default=15, help="steps between points of a curve")
    parser.add_argument("--error", type=float, default=0.05, help="of the series, on the CPU alone")
    parser.add_argument("--out", type=Path, help="the JSON (default: in benchmarks/results)")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are there already")
    options = parser.parse_args(given)
    options.out = options.out or RESULTS / default_name(options.device)
    if options.data is None:
        parser.error("--data or REGARD_DATA must name the folder that holds sigmorphon2021_g2p")
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no spread")
    return options


def default_name(device: str) -> str:
    """A file for each device."""
    if device == "cpu":
        return "training_equivalence.json"
    return f"training_equivalence_{torch.cuda.get_device_name(device).split()[-1].lower()}.json"


def show(found: dict[str, dict]) -> bool:
    """Print the verdict; whether every curve stays within the spread."""
    for case, rows in found.items():
        for engine, row in rows["engines"].items():
            print(
                f"{case:<6} {engine:<9} final {statistics.fmean(row['final']):.4f}  "
                f"from textbook {row['largest difference over spread']:.3f} of the spread at most  "
                f"|a| + |b| up to {row['largest |a| + |b|']:.1f}  "
                f"{row['escapes']} of {row['calls']} calls left the range"
            )
    rows = [row for case in found.values() for row in case["engines"].values()]
    within = all(row["within spread"] for row in rows)
    print("curves agree within the spread over seeds" if within else "a curve LEAVES the spread")
    return within


def main(given: list[str] | None = None) -> int:
    """Train what is missing, then compare, write and draw."""
    options = arguments(given)
    data = read(options.data, options.language)
    runs = remembered(options)
    command = f"training_equivalence.py --device {options.device} --dtype {options.dtype}"
    results = {"command": f"python benchmarks/{command}", "setting": setting(options)}
    # Seeds outermost: an interrupted run leaves whole comparisons.
    wanted = [(c, e, s) for s in range(options.seeds) for c in CASES for e in ENGINES]
    missing = [one for one in wanted if name(*one) not in runs]
    start = time.perf_counter()
    for number, (case, engine, seed) in enumerate(missing, 1):
        run = train(CASES[case], engine, seed, data, options)
        runs[name(case, engine, seed)] = run
        write(options, results | {"runs": runs})
        left = (time.perf_counter() - start) / number * (len(missing) - number)
        print(
            f"{number:>3}/{len(missing)}  {case:<6} {engine:<9} seed {seed}  "
            f"loss {run['loss'][0]:.3f} to {run['loss'][-1]:.3f}  "
            f"{sum(run['escapes']):>4} escapes  {run['seconds']:.0f} s  about {left:.0f} s left",
            flush=True,
        )
    found = summary(runs, options.seeds)
    write(options, results | {"summary": found, "runs": runs})
    draw(found, options.out)
    return 0 if show(found) else 1


if __name__ == "__main__":
    sys.exit(main())
