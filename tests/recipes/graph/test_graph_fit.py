"""The classifier learns, saves, loads, resumes to the bit, works with scikit-learn, and predicts for new nodes."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data

import regard
from regard import Additive, Bilinear, GATv2, LowRank, ScaledDot
from regard.recipes.estimator import RecipeError
from regard.recipes.graph import NodeClassifier, Nodes
from regard.recipes.graph.contenders import LOOK_UP, comparison
from regard.recipes.graph.data import PLANETOID, load, look_up
from regard.recipes.sources import find_folder
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

HERE = bool(os.environ.get("REGARD_DATA")) and find_folder(PLANETOID, None) is not None
needs_data = pytest.mark.skipif(not HERE, reason="REGARD_DATA names no folder with planetoid/")
SHORT = {"epochs": 40, "device": "cpu"}


@pytest.fixture(scope="module")
def club():
    return load("karate")


@pytest.fixture(scope="module")
def trained(club):
    return NodeClassifier(epochs=80, device="cpu").fit_dataset(club)


def most_frequent(data) -> float:
    """Accuracy, in percent, of always naming the most frequent class of the test part."""
    return 100 * np.unique(data.test.y, return_counts=True)[1].max() / len(data.test)


def test_learns_the_sides_of_the_karate_club(club, trained):
    assert trained.score_part(club.test) >= 90 > 70 > most_frequent(club)
    assert set(trained.predict(club.test.x)) == {"Mr. Hi", "Officer"}
    probability = trained.predict_proba(club.test.x)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
    named = trained.classes_[probability.argmax(1)]
    np.testing.assert_array_equal(named, trained.predict(club.test.x))


def test_learns_the_groups_of_les_miserables():
    data = load("miserables")
    model = NodeClassifier("scaled_dot", epochs=60, device="cpu").fit_dataset(data)
    assert model.score_part(data.test) > 75 > 50 > most_frequent(data)


@cache
def reader(score: str) -> NodeClassifier:
    """A classifier that was trained to look up keys of a dictionary."""
    arguments = LOOK_UP | {"epochs": 100, "rate": 3e-2, "device": "cpu"}
    return NodeClassifier(score, **arguments).fit_dataset(look_up(5, (80, 20, 1), seed=0))


def looked_up(score: str) -> float:
    """Its accuracy on dictionaries of another graph than that of training."""
    return reader(score).score_part(look_up(5, (1, 1, 40), seed=1).test)


@pytest.mark.parametrize("score", ["gatv2", "scaled_dot", "additive"])
def test_dynamic_scores_solve_the_look_up(score):
    assert looked_up(score) > 97


def test_the_static_score_does_not_solve_the_look_up():
    """Every asker ranks the sources alike under GAT, so that most of them cannot find their own."""
    assert looked_up("gat") < 70


@needs_data
def test_a_slice_of_cora_is_learned():
    data = load("cora")
    model = NodeClassifier(epochs=30, device="cpu").fit_dataset(data)
    assert model.score_part(data.test) > 70 > 40 > most_frequent(data)
    fewer = load("cora", limit=20)
    assert len(fewer.train) == 20 and len(fewer.test) == 1000


def test_saved_and_loaded_predicts_the_same(club, trained, tmp_path):
    trained.save(tmp_path / "model.safetensors")
    again = NodeClassifier.load(tmp_path / "model.safetensors", device="cpu")
    np.testing.assert_array_equal(
        again.predict_proba(club.test.x), trained.predict_proba(club.test.x)
    )
    assert again.get_params() == trained.get_params()
    assert again.classes_.tolist() == trained.classes_.tolist()


@pytest.mark.parametrize("own", [{}, {"batch_nodes": 2, "neighbours": 3}])
def test_a_killed_training_resumes_to_the_same_weights(club, tmp_path, monkeypatch, own):
    monkeypatch.setattr("regard.recipes.training.CHECKPOINT_PAUSE", 0.0)
    model = NodeClassifier(epochs=12, device="cpu", **own)
    whole = clone(model).fit_dataset(club)
    path = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        clone(model).fit_dataset(club, checkpoint=path, progress=KillAtStep(11))
    resumed = clone(model).fit_dataset(club, checkpoint=path)
    assert same_weights(whole, resumed)
    assert whole.history_.validations == resumed.history_.validations


def test_a_checkpoint_of_another_graph_or_of_other_arguments_is_refused(club, tmp_path):
    path = tmp_path / "checkpoint"
    NodeClassifier(epochs=2, device="cpu").fit_dataset(club, checkpoint=path)
    graph = club.train.x.graph
    fewer = Data(graph.x, graph.edge_index[:, 4:], edge_attr=graph.edge_attr[4:])
    other = Nodes(fewer, club.train.x.index)
    held = (club.validation.x, club.validation.y)
    with pytest.raises(ValueError, match="differs in data"):
        NodeClassifier(epochs=2, device="cpu").fit(
            other, club.train.y, validation=held, checkpoint=path
        )
    with pytest.raises(ValueError, match="differs in arguments"):
        NodeClassifier(epochs=2, dropout=0.5, device="cpu").fit_dataset(club, checkpoint=path)


def test_same_seed_same_weights(club):
    found = [NodeClassifier(epochs=3, seed=s, device="cpu").fit_dataset(club) for s in (1, 1, 2)]
    assert same_weights(*found[:2]) and not same_weights(*found[1:])


def test_mini_batches_learn(club):
    model = NodeClassifier(batch_nodes=2, epochs=20, device="cpu").fit_dataset(club)
    assert model.score_part(club.test) >= 85 > most_frequent(club)


def test_works_as_an_estimator_of_scikit_learn(club):
    model = NodeClassifier("gat", heads=4, batch_nodes=16, neighbours=None, seed=3, device="cpu")
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(score="cosine").get_params()["score"] == "cosine"
    x, y = club.train.x, club.train.y
    best = max(
        ParameterGrid({"dropout": [0.0, 0.9], "score": ["gatv2", None]}),
        key=lambda one: (
            clone(NodeClassifier(epochs=3, device="cpu"))
            .set_params(**one)
            .fit(x, y, validation=(x, y))
            .score(club.validation.x, club.validation.y)
        ),
    )
    assert set(best) == {"dropout", "score"}


@pytest.mark.parametrize(
    "score",
    [
        *SIZED,
        None,
        ScaledDot(),
        Additive(4, 8),
        Bilinear(8, 8, 8),
        LowRank(8, 8, 2, 8),
        GATv2(8, 8),
    ],
    ids=str,
)
def test_every_score_trains(club, score):
    model = NodeClassifier(score, epochs=2, device="cpu").fit_dataset(club)
    assert np.isfinite(model.predict_proba(club.test.x)).all()


@pytest.mark.parametrize("score", [Additive(4), Bilinear(8, 8), LowRank(8, 8, 2)], ids=str)
def test_an_object_for_other_heads_is_one_error_whose_advice_works(club, score):
    """The message once named 8 heads for the first layer, then 1 for the last one."""
    model = NodeClassifier(score, epochs=1, device="cpu")
    with pytest.raises(RecipeError, match="; build ") as found:
        model.fit_dataset(club)
    written = str(found.value).rpartition("; build ")[2]
    model.set_params(score=eval(written, dict(vars(regard)))).fit_dataset(club)  # noqa: S307 - our own text


def test_a_score_object_is_copied_for_each_layer_and_each_fit(club):
    """Two classes are no 16 numbers, the width of the object, so the last layer is a linear one."""
    score = Additive(16, 8)
    model = NodeClassifier(score, width=16, readout=True, epochs=2, device="cpu").fit_dataset(club)
    own = [layer.score for layer in model.model_.layers]
    assert len({id(one) for one in (*own, score)}) == 3
    with pytest.raises(RecipeError, match="score="):
        model.save("never")


@pytest.mark.parametrize(
    "layer",
    [{"layer": "mlp"}, {"layer": "gcn"}, {"layer": "pyg"}, {"layer": "pyg", "score": "gat"}],
)
def test_every_layer_for_comparisons_trains(club, layer):
    model = NodeClassifier(epochs=2, device="cpu", **layer).fit_dataset(club)
    assert np.isfinite(model.predict_proba(club.test.x)).all()


def test_rows_of_a_comparison_name_all_their_arguments(club):
    """A run is kept by them: were they only the dropout that is tried, a new default rate would mix with old runs."""
    for row in comparison(club, full=True).contenders:
        if row.name == "logistic regression":
            continue
        whole = {"seed", "device", *row.fixed}
        assert whole == NodeClassifier().get_params().keys(), row.name
    fixed = {row.name: row.fixed for row in comparison(club, full=True).contenders}
    assert (fixed["gat"]["score"], fixed["gat"]["rate"]) == ("gat", 2e-2)


def test_predicts_for_nodes_that_join_later(club, trained):
    """A newcomer who knows the leader of one side only is put on that side; others keep their class."""
    graph, count = club.train.x.graph, 34
    for leader, side in ((0, "Mr. Hi"), (33, "Officer")):
        ends = torch.tensor([[leader, count], [count, leader]])
        grown = Data(
            torch.cat([graph.x, torch.zeros(1, count)]),
            torch.cat([graph.edge_index, ends], 1),
            edge_attr=torch.cat([graph.edge_attr, torch.full((2, 1), float(np.log(4)))]),
        )
        assert trained.predict(Nodes(grown, [count])) == [side]
        known = [n for n in range(count) if n != leader]
        again = trained.predict(Nodes(grown, known)) == trained.predict(Nodes(graph, known))
        assert again.mean() > 0.9


def test_edge_features_change_what_is_learned(club):
    """The label is the feature of the only edge to a node: without edge features it cannot be known."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 200)
    edges = torch.tensor(np.stack([np.zeros(400, int), np.repeat(np.arange(1, 201), 2)]))
    edges[0, 1::2] = (
        201  # each node has an edge from 0 and one from 201, and attends to the marked one
    )
    mark = torch.zeros(400)
    mark[2 * np.arange(200) + y] = 1.0
    x = torch.zeros(202, 2)
    x[0, 0], x[201, 1] = 1.0, 1.0
    score = {}
    for name, feature in (("with", mark), ("without", None)):
        graph = Data(x, edges, edge_attr=feature)
        model = NodeClassifier(
            "gatv2",
            layers=1,
            readout=True,
            dropout=0.0,
            self_loops=False,
            weight_decay=0.0,
            **SHORT,
        )
        rows = [Nodes(graph, 1 + np.arange(a, b)) for a, b in ((0, 100), (100, 150), (150, 200))]
        model.fit(rows[0], y[:100], validation=(rows[1], y[100:150]))
        score[name] = model.score(rows[2], y[150:])
    assert score["with"] == 100 and score["without"] < 75
    assert model.learned()["edge_features"] == 0


def test_edge_features_can_be_left_out(club):
    model = NodeClassifier(edge_dim=0, **SHORT).fit_dataset(club)
    graph = club.test.x.graph
    bare = Nodes(Data(graph.x, graph.edge_index), club.test.x.index)
    np.testing.assert_array_equal(model.predict_proba(bare), model.predict_proba(club.test.x))


def test_attended_edges_are_those_to_the_node_and_their_weights_sum_to_one(club, trained):
    graph = club.test.x.graph
    for layer, heads in ((0, 8), (1, 1)):
        found = trained.attend(Nodes(graph, [11, 33]), layer)
        assert set(found.edges[1]) == {11, 33}
        assert found.weights.shape == (found.edges.shape[1], heads)
        for node in (11, 33):
            into = found.edges[1] == node
            own = graph.edge_index[0][graph.edge_index[1] == node].tolist()
            assert sorted(found.edges[0][into]) == sorted([*own, node])
            np.testing.assert_allclose(found.weights[into].sum(0), 1, rtol=1e-5)
    with pytest.raises(RecipeError, match="layer must be 0 to 1, got 2"):
        trained.attend(Nodes(graph, [0]), 2)


def test_validation_may_be_another_graph(club):
    data = look_up(3, (4, 4, 4), seed=1)
    assert data.train.x.graph is not data.validation.x.graph
    model = NodeClassifier(**LOOK_UP | {"epochs": 2, "device": "cpu", "batch_nodes": 5})
    assert len(model.fit_dataset(data).history_.validations) == 2


def test_a_tenth_is_kept_for_validation_if_none_is_given(club):
    everybody = Nodes(club.test.x.graph)
    labels = np.empty(34, dtype="<U7")
    for part in (club.train, club.validation, club.test):
        labels[part.x.index] = part.y
    model = NodeClassifier(epochs=2, device="cpu")
    kept, own, (apart, theirs) = model.held_apart(everybody, labels)
    assert (len(kept), len(apart)) == (31, 3)
    assert sorted([*kept.index.tolist(), *apart.index.tolist()]) == list(range(34))
    assert (own == labels[kept.index]).all() and (theirs == labels[apart.index]).all()
    assert model.fit(everybody, labels).classes_.tolist() == ["Mr. Hi", "Officer"]
