"""`regard bench --suite graph`: layers over edges beside PyTorch Geometric's."""

from __future__ import annotations

import json

import pytest
import torch

from regard.bench import graph_run, graphs, main
from regard.bench.graphs import HELD, IN_CALL, PEER, GraphSetting, graph_suite

pytest.importorskip("torch_geometric")
TINY = [
    GraphSetting("gatv2", 30, 90, in_dim=6, width=4, heads=2),
    GraphSetting("scaled_dot", 30, 90, 0.1, in_dim=6, width=4, heads=2),
]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(graph_run, "graph_suite", lambda quick: TINY)
    monkeypatch.setattr(graphs, "QUICK_SECONDS", 0.01)


def test_a_run_measures_checks_and_saves(tiny, tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        assert main(["--suite", "graph", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    finally:
        torch.set_num_threads(threads)
    saved = json.loads((tmp_path / "cpu-graph.json").read_text())
    assert [x["setting"]["key"] for x in saved["settings"]] == [x.key for x in TINY]
    for result in saved["settings"]:
        assert list(result["candidates"]) == [PEER, HELD, IN_CALL]
        for name, passes in result["candidates"].items():
            for found in passes.values():
                assert found["seconds"]["median"] > 0 and found["peak_bytes"] > 0
                assert found["difference"] is None if name == PEER else found["difference"] < 1e-5
    out = capsys.readouterr().out
    assert "GATv2Conv: 30 nodes, 90 edges" in out and "faster" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_resumed_run_measures_what_is_missing(tiny, tmp_path, monkeypatch):
    given = ["--suite", "graph", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    threads = torch.get_num_threads()
    try:
        main(given)
        monkeypatch.setattr(graph_run, "measure", None)
        assert main([*given, "--resume"]) == 0
    finally:
        torch.set_num_threads(threads)


def test_a_wrong_result_has_no_time(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_DIFFERENCE", -1.0)
    assert main(["--suite", "graph", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == 1


def test_other_suites_and_options_are_refused(capsys):
    assert main(["--suite", "graph", "--suite", "bars"]) == 2
    assert main(["--suite", "graph", "--peers", "Keras"]) == 2
    assert "not for --suite graph" in capsys.readouterr().err


def test_the_suite_has_the_sizes_it_promises(capsys):
    edges = [x.edges for x in graph_suite()]
    assert min(edges) == 10_556 and max(edges) == 5_000_000
    assert {x.score for x in graph_suite()} == {"gatv2", "gat", "scaled_dot"}
    hub = next(x for x in graph_suite() if x.hub)
    ends = hub.edge_index(torch.device("cpu"), 0)
    for row in ends:
        assert 0.1 <= float((row == 0).double().mean()) <= 0.12
    assert main(["--suite", "graph", "--list"]) == 0
    assert "5,000,000 edges" in capsys.readouterr().out
