"""`SoftIndex`: search, attention, changes, files, and everything that can be given wrongly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import regard

pytest.importorskip("faiss")

from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve import SearchMethod, SoftIndex

COUNT, DIM = 400, 16
INNER = {
    "scaled_dot": lambda: None,
    "cosine": lambda: "cosine",
    "gaussian": lambda: "gaussian",
    "low_rank": lambda: regard.LowRank(DIM, DIM, 8),
}


def additive() -> regard.Score:
    return regard.Projected(regard.Additive(4), DIM, DIM)


@pytest.fixture
def keys() -> torch.Tensor:
    return torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def query() -> torch.Tensor:
    return torch.randn(7, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", ["flat", "hnsw", SearchMethod("ivf", lists=8, probes=8)])
@pytest.mark.parametrize("name", INNER)
def test_faiss_finds_what_the_score_ranks_first(keys, query, name, method) -> None:
    torch.manual_seed(2)
    score = INNER[name]()
    exact = SoftIndex(DIM, score).add(range(COUNT), keys).search(query, 5)
    found = SoftIndex(DIM, score, method).add(range(COUNT), keys).search(query, 5)
    least = 0.4 if method == "hnsw" and name == "gaussian" else 0.9 if method == "hnsw" else 1.0
    assert (found.ids == exact.ids).mean() >= least
    if least == 1.0:
        torch.testing.assert_close(found.logits, exact.logits)


def test_lists_that_are_too_short_are_searched_exactly(keys, query) -> None:
    method = SearchMethod("ivf", lists=50, probes=1)
    found = SoftIndex(DIM, None, method).add(range(COUNT), keys).search(query, 60)
    assert found.ids.shape == (7, 60) and all(len(set(row)) == 60 for row in found.ids.tolist())


@pytest.mark.parametrize("method", ["exact", "flat"])
def test_cold_attention_is_the_nearest_neighbour(keys, query, method) -> None:
    index = SoftIndex(DIM, None, method).add(range(COUNT), keys, torch.randn(COUNT, 3))
    nearest = index.values[index.search(query, 1).ids[:, 0]]
    for options in ({"temperature": 1e-4}, {"temperature": 0}, {"temperature": 1e-4, "k": 10}):
        torch.testing.assert_close(index.attend(query, **options).output, nearest)


def test_attention_over_candidates_comes_near_that_over_all(keys, query) -> None:
    index = SoftIndex(DIM, "dot", "flat").add(range(COUNT), keys)
    whole = index.attend(query).output
    errors = [float((index.attend(query, k=k).output - whole).abs().max()) for k in (5, 50, COUNT)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-5


def test_a_score_is_trained_through_the_index(keys) -> None:
    """Queries are keys under another map: the loss by the index alone finds the map back."""
    torch.manual_seed(3)
    score = regard.Bilinear(DIM, DIM)
    index = SoftIndex(DIM, score).add(range(COUNT), keys)
    turned = keys @ torch.linalg.qr(torch.randn(DIM, DIM)).Q
    before = (index.search(turned, 1).ids[:, 0] == np.arange(COUNT)).mean()
    optimizer = torch.optim.Adam(score.parameters(), 0.03)
    for _ in range(40):
        loss = -index.log_probability(turned, range(COUNT)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = (index.search(turned, 1).ids[:, 0] == np.arange(COUNT)).mean()
    assert before < 0.1 and after > 0.9


def test_log_probability_is_that_of_the_softmax(keys, query) -> None:
    index = SoftIndex(DIM, "cosine").add(range(COUNT), keys)
    expected = (regard.score(query, keys, "cosine") / 0.5).log_softmax(1)[:, 11]
    found = index.log_probability(query, [11] * 7, temperature=0.5)
    torch.testing.assert_close(found, expected)


def test_filter_by_id_is_exact(keys, query) -> None:
    index = SoftIndex(DIM, None, "flat").add([f"d{n}" for n in range(COUNT)], keys)
    some = [f"d{n}" for n in range(0, COUNT, 9)]
    found = index.search(query, 4, only=some)
    assert set(found.ids.flatten()) <= set(some)
    logits = regard.score(query, keys[::9]).topk(4, 1)
    assert found.ids.tolist() == [[some[n] for n in row] for row in logits.indices.tolist()]
    whole = regard.attend(query, keys[::9], keys[::9])
    torch.testing.assert_close(index.attend(query, only=some).output, whole.output)


def test_add_and_remove_change_what_is_found(keys, query) -> None:
    index = SoftIndex(DIM, "cosine", "flat").add(range(COUNT), keys)
    best = index.search(query[:1], 2).ids[0]
    index.remove(best[:1])
    assert len(index) == COUNT - 1 and index.search(query[:1], 1).ids[0, 0] == best[1]
    index.add([9000], query[:1])
    assert index.search(query[:1], 1).ids[0, 0] == 9000


@pytest.mark.parametrize("names", [range(COUNT), [f"d{n}" for n in range(COUNT)]])
def test_saved_index_is_read_back_and_mapped(keys, query, names, tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    method = SearchMethod("ivf", lists=5, probes=2)
    index = SoftIndex(DIM, "cosine", method).add(list(names), keys, torch.randn(COUNT, 2))
    index.save(path)
    found = SoftIndex.load(path)
    assert (found.method, found.score) == (method, "cosine")
    assert (found.search(query, 5).ids == index.search(query, 5).ids).all()
    torch.testing.assert_close(found.attend(query).output, index.attend(query).output)
    assert [one.name for one in tmp_path.iterdir()] == ["some.index"]


def test_a_score_with_parameters_is_given_again(keys, query, tmp_path: Path) -> None:
    score = additive()
    index = SoftIndex(DIM, score).add(range(COUNT), keys)
    index.save(tmp_path / "a")
    with pytest.raises(RecipeError, match="give it as score="):
        SoftIndex.load(tmp_path / "a")
    found = SoftIndex.load(tmp_path / "a", score)
    assert (found.search(query).ids == index.search(query).ids).all()


@pytest.mark.parametrize("cut", ["header", "tensor", "byte", "nothing", "text"])
def test_file_that_is_not_whole_is_refused(keys, cut, tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    SoftIndex(DIM).add(range(COUNT), keys).save(path)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-100] ^= 1
    given = {
        "header": whole[:60],
        "tensor": whole[:-5],
        "byte": bytes(changed),
        "nothing": b"",
        "text": b"hello world",
    }
    path.write_bytes(given[cut])
    with pytest.raises(RecipeError, match=r"cut off|another checksum"):
        SoftIndex.load(path)


def test_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no file"):
        SoftIndex.load(tmp_path / "none")


def test_half_precision_keys_are_searched_and_attended(keys, query) -> None:
    index = SoftIndex(DIM, "cosine", "flat").add(range(COUNT), keys.half())
    exact = SoftIndex(DIM, "cosine").add(range(COUNT), keys.half().float())
    assert (index.search(query, 3).ids == exact.search(query, 3).ids).all()
    torch.testing.assert_close(index.attend(query).output, exact.attend(query).output)


NAN = torch.full((1, DIM), torch.nan)
MISTAKES = {
    "the index is empty": lambda index, q: SoftIndex(DIM).search(q),
    r"query must be \(rows, 16\), got \(7, 3\)": lambda index, q: index.search(q[:, :3]),
    "query must be finite numbers: row 0": lambda index, q: index.search(NAN),
    "keys must be finite numbers: row 0": lambda index, q: index.add([500], NAN),
    "the id 3 is there twice": lambda index, q: index.add([3], q[:1]),
    "the id 501 is there twice": lambda index, q: index.add([501, 501], q[:2]),
    "there is no id 500": lambda index, q: index.remove([500]),
    "there is no id 'a'": lambda index, q: index.search(q, only=["a"]),
    "all numbers or all texts": lambda index, q: index.add(["a"], q[:1]),
    "one entry for each of 2 rows": lambda index, q: index.add([700], q[:2]),
    "only= has no ids": lambda index, q: index.search(q, only=[]),
    "k must be an integer of 1 or more, got 0": lambda index, q: index.search(q, 0),
    "either all keys have values or none": lambda index, q: index.add([800], q[:1], q[:1]),
    "one entry for each of 7 queries": lambda index, q: index.log_probability(q, [1]),
    "dim must be an integer": lambda index, q: SoftIndex(0),
    "method must be one of exact, flat, ivf, hnsw": lambda index, q: SoftIndex(4, method="tree"),
    "probes must be an integer of 1 or more": lambda index, q: SearchMethod("ivf", probes=0),
    "unknown score": lambda index, q: SoftIndex(4, "cosin"),
    "'additive' is no inner product.*method='exact'": lambda index, q: SoftIndex(DIM, additive(), "ivf")
    .add([1, 2], q[:2])
    .search(q),
}  # fmt: skip


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_clear_error(keys, query, said) -> None:
    index = SoftIndex(DIM).add(range(COUNT), keys)
    with pytest.raises(RecipeError, match=said):
        MISTAKES[said](index, query)


def test_missing_faiss_names_its_extra(keys, query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(RecipeError, match=r"pip install 'regard\[recipes\]', or method='exact'"):
        SoftIndex(DIM, None, "flat").add(range(COUNT), keys).search(query)


def test_more_is_asked_than_there_is(keys, query) -> None:
    found = SoftIndex(DIM, None, "flat").add([1, 2, 3], keys[:3]).search(query, 10)
    assert found.ids.shape == (7, 3)
