"""The benchmark of training with the series: it resumes, counts escapes, and can say no."""

import gzip
import importlib
import itertools
import json
from pathlib import Path

import pytest
import torch

import regard

pytest.importorskip("matplotlib")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = "--seeds 2 --steps 6 --every 3 --batch 8 --dim 16 --heads 2 --hidden 4 --held-out 10"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("training_equivalence")
    # On words as few as these the range is left from the first step on.
    monkeypatch.setitem(module.CASES, "hard", module.Case(rate=3e-3, spread=40.0))
    return module


@pytest.fixture
def arguments(tmp_path):
    """Words of three letters that sound as they are written, in the format of the real ones."""
    folder = tmp_path / "sigmorphon2021_g2p"
    folder.mkdir()
    words = ["".join(letters) for letters in itertools.product("abcd", repeat=3)]
    lines = [f"{word}\t{' '.join(word.upper())}\n" for word in words]
    for part, some in {"train": lines[::2], "dev": [*lines[1::2], "é\tÉ\n"]}.items():
        (folder / f"fre_{part}.tsv.gz").write_bytes(gzip.compress("".join(some).encode()))
    return ["--data", str(tmp_path), "--out", str(tmp_path / "found.json"), *SMALL.split()]


def test_a_run_from_end_to_end(bench, arguments, tmp_path, capsys):
    status = bench.main(arguments)
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["runs"]) == 2 * 2 * 3
    for case, rows in found["summary"].items():
        assert rows["step"] == [0, 3, 6]
        sine = rows["engines"]["sine"]
        assert sine["calls"] == 2 * 6
        assert sine["escapes"] == (12 if case == "hard" else 0)
        assert rows["engines"]["textbook"]["calls"] == rows["engines"]["exact"]["calls"] == 0
        assert (sine["largest |a| + |b|"] > 16) == (case == "hard")
        # So few steps cannot tell the engines apart.
        assert sine["largest difference over spread"] < 0.1
    assert status == 0
    assert "agree within the spread" in capsys.readouterr().out
    assert all((tmp_path / f"found.{kind}").stat().st_size > 10_000 for kind in ("png", "svg"))


def test_only_what_is_missing_is_trained(bench, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "draw", lambda *_: None)
    bench.main(arguments)
    out, trained = tmp_path / "found.json", []
    found = json.loads(out.read_text())
    kept = found["runs"].pop("hard sine 1")
    out.write_text(json.dumps(found))

    def train(case, engine, seed, data, options):
        trained.append((engine, seed))
        return kept

    monkeypatch.setattr(bench, "train", train)
    bench.main(arguments)
    assert trained == [("sine", 1)]
    bench.main(arguments)
    assert trained == [("sine", 1)]
    # Runs of another setting are not comparable, nor lost for it.
    for others in (["--steps", "9"], ["--error", "0.1"]):
        with pytest.raises(SystemExit, match="another setting: name another file by --out"):
            bench.main([*arguments, *others])
    assert json.loads(out.read_text())["runs"]["hard sine 1"] == kept
    assert bench.remembered(bench.arguments([*arguments, "--fresh"])) == {}


@pytest.mark.parametrize("engine", ["exact", "sine"])
def test_all_compute_the_same_attention(bench, engine):
    a, b, value = (torch.randn(3, 2, 5, 8, requires_grad=True) for _ in range(3))
    score = regard.Additive(8, 2)
    outs = [
        attend(a, b, value, score)
        for attend in (bench.textbook, bench.attention_of(engine, torch.device("cpu"), 1e-3))
    ]
    close = {"rtol": 1e-4, "atol": 1e-5} if engine == "exact" else {"rtol": 0, "atol": 4e-3}
    torch.testing.assert_close(*outs, **close)
    grads = [torch.autograd.grad(x.square().sum(), [a, b, value, score.v]) for x in outs]
    for x, y in zip(*grads, strict=True):
        assert float((x - y).norm()) <= (1e-4 if engine == "exact" else 2e-2) * float(y.norm())


def test_words_of_a_batch_have_equally_many_letters(bench):
    lengths = torch.tensor([3, 5, 3, 3, 4, 5, 3, 3])
    order = bench.batches(lengths, 2, seed=0)
    once = [next(order) for _ in range(3)]
    assert sorted(int(lengths[batch[0]]) for batch in once) == [3, 3, 5]
    assert all(len(batch) == 2 and len(lengths[batch].unique()) == 1 for batch in once)
    assert len(torch.cat(once).unique()) == 6
    words = bench.Words(torch.ones(8, 5), lengths, torch.ones(8, 4))
    groups = words.by_length(7)
    assert [tuple(group.letters.shape) for group in groups] == [(4, 3), (1, 4), (2, 5)]
    with pytest.raises(SystemExit, match="take a smaller --batch"):
        next(bench.batches(lengths, 6, seed=0))


def test_a_curve_that_leaves_the_spread_is_said(bench, capsys):
    runs = {}
    for case in bench.CASES:
        for engine in bench.ENGINES:
            for seed in range(2):
                off = 0.5 if (case, engine) == ("hard", "sine") else 0.0
                run = {"step": [0, 1], "loss": [3 + 0.1 * seed, 1 + 0.1 * seed + off], "reach": [9]}
                run |= {"calls": [1], "escapes": [0]}
                runs[bench.name(case, engine, seed)] = run
    found = bench.summary(runs, 2)
    assert not found["hard"]["engines"]["sine"]["within spread"]
    assert found["usual"]["engines"]["sine"]["within spread"]
    assert not bench.show(found)
    assert "LEAVES" in capsys.readouterr().out


def test_what_is_missing_is_named(bench, arguments, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"ger_train\.tsv\.gz; --data or REGARD_DATA names"):
        bench.main([*arguments, "--language", "ger"])
    monkeypatch.delenv("REGARD_DATA", raising=False)
    for given, message in [
        ([], "must name the folder"),
        ([*arguments, "--seeds", "1"], "no spread"),
    ]:
        with pytest.raises(SystemExit):
            bench.main(given)
        assert message in capsys.readouterr().err
