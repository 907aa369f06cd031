"""Bad input has one clear error or a defined result; files, lines and pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError

pytest.importorskip("torch_geometric")

from matplotlib.text import Text as MplText
from torch_geometric.data import Data

from regard.recipes.estimator import RecipeError
from regard.recipes.graph import KIT, NodeClassifier, Nodes, files, picture
from regard.recipes.graph.data import load
from regard.recipes.graph.picture import weights_into
from regard.text import LANGUAGES

WIDTH = 4


def ring(count: int = 12, **more) -> Data:
    """Nodes in a ring whose features tell their class."""
    ends = torch.arange(count)
    edges = torch.stack([ends, (ends + 1) % count])
    x = torch.zeros(count, WIDTH)
    x[:, 0], x[:, 1] = ends % 2, 1 - ends % 2
    return Data(x, torch.cat([edges, edges.flip(0)], 1), **more)


def small(**more) -> NodeClassifier:
    return NodeClassifier(**{"epochs": 2, "width": 2, "heads": 2, "device": "cpu"} | more)


def fitted(graph: Data | None = None, y=None, **more) -> NodeClassifier:
    nodes = Nodes(ring() if graph is None else graph, range(8))
    held = Nodes(nodes.graph, range(8, 12))
    y = np.arange(12) % 2 if y is None else np.asarray(y)
    return small(**more).fit(nodes, y[:8], validation=(held, y[8:]))


@pytest.fixture(scope="module")
def model():
    return fitted()


def test_a_graph_without_edges_is_predicted_and_trained_on(model):
    none = torch.empty(2, 0, dtype=torch.long)
    bare = Data(ring().x, none)
    for own in (model, fitted(bare), fitted(bare, self_loops=False), fitted(bare, layer="gcn")):
        assert np.isfinite(own.predict_proba(bare)).all()
    assert fitted(bare, epochs=60, dropout=0.0, rate=0.1).score(bare, np.arange(12) % 2) == 100


def test_isolated_nodes_self_loops_and_repeated_edges_have_a_prediction(model):
    more = torch.tensor([[3, 3, 3, 5, 5], [3, 4, 4, 5, 5]])
    graph = ring(14)
    kept = (graph.edge_index < 12).all(0)  # nodes 12 and 13 lose their edges
    graph.edge_index = torch.cat([graph.edge_index[:, kept], more], 1)
    for own in (model, fitted(graph), fitted(graph, self_loops=False)):
        assert np.isfinite(own.predict_proba(graph)).all()
        found = own.attend(Nodes(graph, [12]))
        assert found.edges.tolist() == ([[12], [12]] if own.self_loops else [[], []])
    repeated = fitted(graph, self_loops=False).attend(Nodes(graph, [4]))
    assert sorted(repeated.edges[0]) == [3, 3, 3, 5], "each copy of an edge counts"


def test_a_graph_without_nodes_is_refused():
    with pytest.raises(RecipeError, match="the graph has no nodes"):
        Nodes(Data(torch.empty(0, WIDTH), torch.empty(2, 0, dtype=torch.long)))


def test_no_nodes_asked_for(model):
    nothing = Nodes(ring(), [])
    assert model.predict(nothing).shape == (0,)
    assert model.predict_proba(nothing).shape == (0, 2)
    some = (Nodes(ring(), [1, 2]), [0, 1])
    with pytest.raises(RecipeError, match="x has no nodes"):
        small().fit(nothing, [], validation=some)
    with pytest.raises(RecipeError, match="validation has no nodes"):
        small().fit(*some, validation=(nothing, []))
    with pytest.raises(RecipeError, match="one node cannot be split"):
        small().fit(Nodes(ring(), [1]), [0])


GRAPHS = {
    "graph.x must be the features": Data(None, torch.zeros(2, 1, dtype=torch.long)),
    r"graph.edge_index must be \(2, edges\)": Data(torch.ones(3, 2), torch.zeros(3, 1).long()),
    "graph.edge_index must be int64, got torch.int32": Data(
        torch.ones(3, 2), torch.zeros(2, 1, dtype=torch.int32)
    ),
    "holds 0 to 3, but the graph has 3 nodes": Data(
        torch.ones(3, 2), torch.tensor([[0, 3], [1, 1]])
    ),
    "holds -1 to 1, but the graph has 3": Data(torch.ones(3, 2), torch.tensor([[0, -1], [1, 1]])),
    "graph.edge_attr must have a row for each of 1 edges": Data(
        torch.ones(3, 2), torch.zeros(2, 1).long(), edge_attr=torch.ones(2)
    ),
}


@pytest.mark.parametrize("message", GRAPHS)
def test_a_graph_that_does_not_fit_together_is_refused(message):
    with pytest.raises(RecipeError, match=message):
        Nodes(GRAPHS[message])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([12], "index holds 12 to 12, but the graph has 12 nodes: indices run from 0 to 11"),
        ([-1], "index holds -1"),
        ([0.5], "whole numbers"),
        ([[1]], "one dimension"),
        ([True] * 12, r"a mask: use mask.nonzero\(\)"),
    ],
)
def test_nodes_that_are_not_in_the_graph_are_refused(index, message):
    with pytest.raises(RecipeError, match=message):
        Nodes(ring(), index)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["dense", "sparse", "edge"])
def test_features_that_are_no_numbers_are_refused(model, kind, value):
    """A training on NaN ended as diverged, with random weights and no word about the reason."""
    graph = ring(edge_attr=torch.zeros(24)) if kind == "edge" else ring()
    name = "edge_attr" if kind == "edge" else "x"
    graph[name].view(-1)[5] = value
    if kind == "sparse":
        graph.x = graph.x.to_sparse_coo()
    message = f"graph.{name} holds NaN, infinity or numbers beyond float32 in 1 places"
    with pytest.raises(RecipeError, match=message):
        fitted(graph)
    if kind != "edge":
        with pytest.raises(RecipeError, match=message):
            model.predict(graph)


def test_one_class_is_learned_as_such():
    alone = fitted(y=["only"] * 12)
    assert alone.predict(ring()).tolist() == ["only"] * 12
    np.testing.assert_array_equal(alone.predict_proba(ring()), np.ones((12, 1)))


def test_unlabelled_nodes_are_refused_as_rows_and_welcome_in_the_graph():
    y = np.arange(12) % 2
    y[[3, 10]] = -1
    with pytest.raises(RecipeError, match="y is -1, which means unlabelled, for 1 of 8 nodes"):
        fitted(y=y)
    known = np.flatnonzero(y >= 0)
    own = small().fit(Nodes(ring(), known), y[known])
    assert len(own.predict(ring())) == 12


def test_labels_are_checked():
    for y, message in (
        (np.arange(12)[:, None], r"one label for each of 8 nodes, got shape \(8, 1\)"),
        (np.arange(12) / 2, "whole numbers or words, got float64"),
    ):
        with pytest.raises(RecipeError, match=message):
            fitted(y=y)
    nodes = Nodes(ring(), [0, 1])
    with pytest.raises(RecipeError, match=r"one label for each of 2 nodes, got shape \(\)"):
        small().fit(nodes)
    with pytest.raises(RecipeError, match="must both be numbers or both words"):
        small().fit(nodes, [0, 1], validation=(nodes, ["a", "b"]))


@pytest.mark.parametrize("kind", [list, np.array, lambda y: np.array(y, dtype=object)])
def test_words_and_truths_are_labels(kind):
    words = fitted(y=kind(["odd", "even"] * 6))
    assert set(words.predict(ring())) <= {"odd", "even"}
    truths = fitted(y=kind([True, False] * 6))
    assert truths.predict(ring()).dtype == bool


def test_a_graph_itself_means_all_of_its_nodes(model):
    np.testing.assert_array_equal(model.predict(ring()), model.predict(Nodes(ring())))
    with pytest.raises(RecipeError, match=r"x must be Nodes\(graph, index\) or a graph"):
        model.predict(np.ones((3, WIDTH)))


def test_features_of_another_width_are_refused(model):
    wide = ring()
    wide.x = torch.ones(12, 9)
    with pytest.raises(
        RecipeError, match="9 features for each node, but the model was trained with 4"
    ):
        model.predict(wide)
    edges = fitted(ring(edge_attr=torch.ones(24, 3)))
    with pytest.raises(
        RecipeError, match=r"the graph has no features for each edge .* built for 3"
    ):
        edges.predict(ring())
    with pytest.raises(RecipeError, match=r"has 2 features for each edge .* built for 3"):
        edges.predict(ring(edge_attr=torch.ones(24, 2)))
    assert len(model.predict(ring(edge_attr=torch.ones(24, 5)))) == 12, "they are left out"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": "gin"}, "layer must be one of regard, pyg, gcn, mlp, got 'gin'"),
        ({"dropout": 1.0}, "dropout must be a probability from 0"),
        ({"rate": 0.0}, "rate must be a positive number"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of 0 or more"),
        ({"heads": 0}, "heads must be an integer of 1 or more, got 0"),
        ({"epochs": None}, "epochs must be"),
        ({"patience": 0}, "patience must be"),
        ({"neighbours": 3}, "give batch_nodes= too"),
        ({"layer": "gcn", "batch_nodes": 4}, "leave batch_nodes= out"),
        ({"layer": "pyg", "score": "cosine"}, "layer='pyg' has the scores 'gat', 'gatv2', 'scaled_dot'"),
        ({"layer": "pyg", "score": "scaled_dot"}, "TransformerConv adds no self-loops"),
        ({"score": "nosuch"}, "nosuch"),
    ],
)  # fmt: skip
def test_arguments_are_named_in_their_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        fitted(**arguments)


def test_layers_without_weights_say_so():
    for layer in ("mlp", "gcn"):
        with pytest.raises(RecipeError, match=f"layer='{layer}' has no attention weights"):
            fitted(layer=layer).attend(ring())


def test_not_fitted_is_said():
    for call in (small().predict, small().attend, lambda x: KIT.show(small(), None, "en")):
        with pytest.raises(NotFittedError, match="not trained"):
            call(ring())


def test_lines_name_a_graph_and_then_nodes():
    whole = KIT.read(["karate", "", " "])
    assert len(whole) == 34
    some = KIT.read(["miserables", "Valjean", " 3 "])
    assert some.index.tolist() == [some.graph.names.index("Valjean"), 3]
    assert KIT.write(some, ["a", 1]) == ["Valjean\ta", f"{some.graph.names[3]}\t1"]
    assert KIT.write(Nodes(ring(), [5]), np.array([1])) == ["5\t1"]
    for lines, message in (
        ([" "], "nothing was given; expected first a graph"),
        (["karate", "Napoleon"], "karate has no node 'Napoleon'"),
        (["karate", "99"], "no node '99'; expected a number from 0 to 33 or a name"),
        (["nosuch.npz"], "nosuch.npz is no graph and no file"),
    ):
        with pytest.raises(RecipeError, match=message):
            KIT.read(lines)


def test_a_graph_comes_from_a_file_of_arrays(tmp_path):
    graph, path = ring(), tmp_path / "graph.npz"
    arrays = {"x": graph.x.numpy(), "edge_index": graph.edge_index.numpy().astype(np.int32)}
    np.savez(path, **arrays, edge_attr=np.ones((24, 1), np.float64))
    read = KIT.read([str(path), "7"])
    assert torch.equal(read.graph.edge_index, graph.edge_index) and read.index.tolist() == [7]
    assert read.graph.edge_attr.dtype == torch.float32
    names = np.array([f"person {n}" for n in range(len(graph.x))])
    np.savez(path, **arrays, names=names)
    assert KIT.read([str(path), "person 3"]).index.tolist() == [3]
    for other, message in (
        ({"x": np.array([{"a": 1}], dtype=object)}, "cannot be read"),
        ({"x": arrays["x"]}, "has no edge_index"),
        ({"edge_index": arrays["edge_index"]}, "has no x"),
        ({**arrays, "x": names}, "x must be real numbers, got <U"),
        ({**arrays, "edge_index": arrays["edge_index"] + 0.5}, "edge_index must be whole numbers"),
        ({**arrays, "names": names[:3]}, r"names must be one for each node, got \(3,\)"),
    ):
        np.savez(path, **other)
        with pytest.raises(RecipeError, match=message):
            KIT.read([str(path)])
    path.write_bytes(b"PK not a zip")
    with pytest.raises(RecipeError, match=r"is no \.npz file"):
        KIT.read([str(path)])


def test_a_small_file_that_unpacks_to_much_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_GRAPH", 2**20)
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, x=np.zeros((2**16, 8)), edge_index=np.zeros((2, 1), dtype=np.int64))
    assert path.stat().st_size < 2**14
    with pytest.raises(
        RecipeError, match=r"its arrays take 4,194,\d\d\d bytes, more than 1,048,576"
    ):
        KIT.read([str(path)])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_picture_has_the_neighbours_and_their_weights(language):
    data = load("karate")
    own = small().fit_dataset(data)
    graph = data.test.x.graph
    figure = KIT.show(own, Nodes(graph, [5]), language)
    texts = {one.get_text() for one in figure.findobj(MplText)}
    around = {str(n) for n in graph.edge_index[0][graph.edge_index[1] == 5].tolist()}
    assert around | {"5"} <= texts
    found = own.attend(Nodes(graph, [5])).weights.mean(1)
    assert {f"{weight:.2f}" for weight in found[:-1]} <= texts
    title = figure.axes[0].get_title("left")
    assert f"{found[-1]:.2f}" in title and ("注意" in title) == (language == "zh")


def test_the_picture_adds_up_repeated_edges_and_says_what_it_leaves_out(model):
    """Of repeated edges only one weight was drawn; a weight for itself below the greatest 24 was not told."""
    graph = ring(40)
    graph.edge_index = torch.stack([torch.arange(40), torch.zeros(40, dtype=torch.long)])
    graph.edge_index = torch.cat([graph.edge_index, torch.tensor([[7, 7], [0, 0]])], 1)
    found = weights_into(model, Nodes(graph), 0)
    assert len(found) == 40 and sum(found.values()) == pytest.approx(1)
    assert found[7] == pytest.approx(3 * found[5])
    title = KIT.show(model, Nodes(graph, [0]), "en").axes[0].get_title("left")
    assert f"{found[0]:.2f} to itself; the 24 greatest of 39 weights" in title


def test_the_picture_of_weights_that_are_rounded_to_nothing(model, monkeypatch):
    monkeypatch.setattr(picture, "weights_into", lambda *_: {0: 1.0, 1: 0.0, 2: 0.0})
    found = KIT.show(model, Nodes(ring(), [0]), "en")
    assert [one.get_text() for one in found.axes[0].texts].count("0.00") == 2


def test_the_picture_of_a_default_node_and_of_one_alone(model):
    data = load("karate")
    default = KIT.show(small().fit_dataset(data), None, "en")
    assert "node 33" in default.axes[0].get_title("left")
    with pytest.raises(RecipeError, match="no embedded graph has 4 features"):
        KIT.show(model, None, "en")
    with pytest.raises(RecipeError, match="x has no nodes"):
        KIT.show(model, Nodes(ring(), []), "en")
    lonely = Data(ring().x, torch.empty(2, 0, dtype=torch.long))
    assert "1.00 to itself" in KIT.show(model, Nodes(lonely, [3]), "en").axes[0].get_title("left")


@pytest.mark.parametrize(
    "x",
    [
        torch.full((12, WIDTH), 1e39, dtype=torch.float64),
        (1e39 * torch.eye(12, WIDTH).double()).to_sparse(),
    ],
)
def test_features_beyond_float32_are_refused(model, x):
    """They became infinite, and the classes arbitrary, without a word."""
    graph = ring()
    graph.x = x
    for act in (model.predict, lambda graph: fitted(graph)):
        with pytest.raises(
            RecipeError, match=r"graph\.x holds NaN, infinity or numbers beyond float32"
        ):
            act(graph)


def test_answers_that_are_not_finite_are_an_error(model):
    graph = ring()
    graph.x = torch.full((12, WIDTH), 3e38)
    with pytest.raises(
        RecipeError, match="no finite answer: the features of the graph are too large"
    ):
        model.predict_proba(graph)


def test_labels_of_another_kind_are_an_error_and_not_all_wrong():
    """Numbers are never equal to words, so that the quality was 0."""
    words = np.array(["odd", "even"])[np.arange(12) % 2]
    model = fitted(y=words)
    assert is_classifier(model)
    with pytest.raises(RecipeError, match=r"such as \[0\], but .* such as \['even'\]"):
        model.score(ring(), np.arange(12) % 2)
    mixed = ["odd", 1] * 6
    with pytest.raises(
        RecipeError, match="words or all numbers, got 'odd' in row 0 and 1 in row 1"
    ):
        model.score(ring(), mixed)
    with pytest.raises(RecipeError, match="x is empty"):
        model.score(Nodes(ring(), []), [])


def test_a_word_that_stands_for_several_nodes_is_refused(tmp_path):
    """The last node of that name was taken, and a name before a number."""
    graph, path = ring(), tmp_path / "graph.npz"
    names = np.array([str(n) for n in range(11, -1, -1)])
    arrays = {"x": graph.x.numpy(), "edge_index": graph.edge_index.numpy()}
    np.savez(path, **arrays, names=names)
    with pytest.raises(RecipeError, match=r"'3' is the number or the name of several nodes, 3, 8"):
        KIT.read([str(path), "3"])
    np.savez(path, **arrays, names=np.array(["twin", "twin", *"abcdefghij"]))
    with pytest.raises(RecipeError, match=r"'twin' is the number .* 0, 1: give their numbers"):
        KIT.read([str(path), "twin"])
    assert KIT.read([str(path), "1", "c"]).index.tolist() == [1, 4]
