"""Keys, values and queries that a mask hides are never read, whatever they hold.

pytorch#101967, flash-attention#1745: SDPA multiplies a hidden value by a weight of 0, and
0 * NaN is NaN. `NaN + -inf` is NaN too, so that masks must select and not add.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import (
    INF,
    NAN,
    OWN_PAIRS,
    PAIRS,
    PAIRS_AND_PLAIN,
    SHORT_PAIRS,
    all_finite,
    assert_same,
    gradients,
    inputs,
    make_score,
    run,
)

GARBAGE = {"nan": NAN, "inf": INF, "-inf": -INF, "1e30": 1e30}
QUERIES, KEYS, REAL = 5, 6, 4


def spoiled(tensors: list[Tensor], which: int, rows: slice, garbage: float) -> list[Tensor]:
    copies = [x.detach().clone() for x in tensors]
    copies[which][:, :, rows] = garbage
    return [x.requires_grad_() for x in copies]


def hides_last_keys() -> dict[str, dict]:
    """Every way to hide keys 4 and 5 from every query."""
    allowed = torch.arange(KEYS) < REAL
    bias = torch.zeros(1, KEYS, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    ids = torch.zeros(KEYS, dtype=torch.int64)
    return {
        "lengths": {"mask": Mask.lengths(keys=torch.tensor([REAL, REAL]))},
        "dense": {"mask": allowed.expand(QUERIES, KEYS)},
        "dense row": {"mask": allowed.view(1, KEYS)},
        "negative segments": {
            "mask": Mask.segments(ids[:QUERIES], ids.masked_fill(~allowed, -1)),
        },
        "other segments": {"mask": Mask.segments(ids[:QUERIES], ids.masked_fill(~allowed, 3))},
        "bias": {"bias": bias},
    }


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_padded_keys_and_values_are_not_read(engine, name, side, garbage):
    """Forward, and the gradient of every input and parameter: pytorch#41508 poisons all weights."""
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = Mask.lengths(keys=torch.tensor([REAL, REAL]))
    expected, expected_grads = run(clean, score, engine, mask=mask)
    which = ["query", "key", "value"].index(side)
    dirty = spoiled(clean, which, slice(REAL, None), GARBAGE[garbage])
    output, grads = run(dirty, score, engine, mask=mask)
    assert_same([output, *grads], [expected, *expected_grads])


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_padded_queries_are_not_read(engine, name, garbage):
    """A padded query sees nothing: its output and all that it could give a gradient to is 0."""
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = Mask.lengths(queries=torch.tensor([3, 3]))
    expected, expected_grads = run(clean, score, engine, mask=mask)
    dirty = spoiled(clean, 0, slice(3, None), GARBAGE[garbage])
    output, grads = run(dirty, score, engine, mask=mask)
    assert_same([output, *grads], [expected, *expected_grads])


@pytest.mark.parametrize("how", hides_last_keys())
@pytest.mark.parametrize("garbage", ["nan", "1e30"])
@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "projected dot", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_every_way_of_hiding_a_key_keeps_it_out(engine, name, garbage, how):
    """A key hidden from every query does not matter, by whichever part of the call it is hidden.

    The Gaussian score subtracts the mean of the visible keys: a hidden key must not move it.
    """
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    options = hides_last_keys()[how]
    expected, expected_grads = run(clean, score, engine, **options)
    dirty = spoiled(clean, 1, slice(REAL, None), GARBAGE[garbage])
    dirty = spoiled(dirty, 2, slice(REAL, None), GARBAGE[garbage])
    output, grads = run(dirty, score, engine, **options)
    assert_same([output, *grads], [expected, *expected_grads])


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "gaussian", "additive", "gatv2"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_garbage_that_later_queries_see_does_not_reach_earlier_ones(engine, name, side, garbage):
    """Under a causal mask the last key is real for the last query and hidden from all others."""
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=QUERIES)
    expected, _ = run(clean, score, engine, mask=Mask.causal())
    which = ["query", "key", "value"].index(side)
    dirty = spoiled(clean, which, slice(-1, None), GARBAGE[garbage])
    output = regard.attention(*dirty, score, mask=Mask.causal(), engine=engine)
    assert_same([output[:, :, :-1]], [expected[:, :, :-1]])
    # The last row is affected, and so is what it sees: of the gradients, the earlier queries' hold.
    (grad,) = gradients(output, dirty[:1])
    assert all_finite(grad[:, :, :-1])


@pytest.mark.parametrize("want", [{"weights"}, {"weights", "lse"}], ids=["alone", "with lse"])
@pytest.mark.parametrize("hide", ["mask", "bias"])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_nor_where_weights_are_asked_for(engine, name, hide, want):
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=QUERIES)
    hidden = torch.ones(QUERIES, QUERIES).triu(1).bool()
    bias = torch.zeros(QUERIES, QUERIES, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    options = {"mask": Mask.causal()} if hide == "mask" else {"bias": bias}
    expected = regard.attend(*clean, score, want=want, engine=engine, **options)
    dirty = spoiled(spoiled(clean, 1, slice(-1, None), NAN), 2, slice(-1, None), INF)
    found = regard.attend(*dirty, score, want=want, engine=engine, **options)
    for x, y in ((found.output, expected.output), (found.weights, expected.weights)):
        assert_same([x[:, :, :-1]], [y[:, :, :-1]])
    for x in (found.output, found.weights):
        (grad,) = torch.autograd.grad(x[:, :, :-1].sum(), dirty[0], retain_graph=True)
        assert all_finite(grad[:, :, :-1])


@pytest.mark.parametrize("hide", ["mask", "bias"])
@pytest.mark.parametrize(
    ("shared", "hides"),
    [((2, 2), (1, 4)), ((2, 2), (2, 1)), ((1, 4), (2, 1)), ((2, 4), (2, 4)), ((2, 1), (1, 4))],
)
def test_values_that_are_shared_and_hidden_from_some(shared, hides, hide):
    """One query each, with weights: what one sequence or head does not see another may."""
    query, key, value = inputs(batch=2, heads=4, queries=1, keys=KEYS)
    value = spoiled([value[: shared[0], : shared[1]]], 0, slice(-1, None), NAN)[0]
    mask = torch.ones(*hides, 1, KEYS, dtype=torch.bool)
    mask[-1, -1, :, -1] = False
    bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    options = {"mask": mask} if hide == "mask" else {"bias": bias}
    found, truth = (
        regard.attend(
            query, key, value, make_score("additive", 4), want="weights", engine=e, **options
        )
        for e in ("cpu", "reference")
    )
    assert torch.equal(found.output.isnan(), truth.output.isnan())
    assert 0 < int(truth.output.isnan().sum()) < truth.output.numel()


@pytest.mark.parametrize("name", ["scaled_dot", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_key_hidden_from_one_head_alone(engine, name):
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    allowed = torch.ones(1, 2, QUERIES, KEYS, dtype=torch.bool)
    allowed[:, 1, :, REAL:] = False
    expected = regard.attention(*clean, score, mask=allowed, engine=engine)
    shared = [clean[0], *(x[:, :1] for x in spoiled(clean, 1, slice(REAL, None), NAN)[1:])]
    same_keys = [clean[0], *(x[:, :1] for x in clean[1:])]
    expected = regard.attention(*same_keys, score, mask=allowed, engine=engine)
    output = regard.attention(*shared, score, mask=allowed, engine=engine)
    assert_same([output[:, 1]], [expected[:, 1]])
    assert output[:, 0].isnan().all()


OPTIONS = {
    "softcap": {"softcap": 2.0},
    "sink": {"sink": torch.tensor([0.3, -1.0], dtype=torch.float64)},
    "temperature": {"temperature": 0.5},
    "temperatures": {"temperature": torch.tensor([0.5, 2.0], dtype=torch.float64)},
    "temperatures and softcap": {
        "temperature": torch.tensor([0.5, 2.0], dtype=torch.float64),
        "softcap": 2.0,
    },
    "hard for one head": {"temperature": torch.tensor([0.0, 1.0], dtype=torch.float64)},
    "hard": {"temperature": 0.0},
    "bias": {"bias": torch.linspace(-1, 1, KEYS, dtype=torch.float64).view(1, KEYS)},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("side", ["query", "key", "value"])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_no_option_lets_hidden_garbage_back_in(engine, name, side, option):
    """The derivative of a soft cap at NaN is NaN, and 0 * NaN is NaN."""
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = Mask.lengths(keys=torch.tensor([REAL, REAL]), queries=torch.tensor([3, 3]))
    expected, expected_grads = run(clean, score, engine, mask=mask, **OPTIONS[option])
    which = ["query", "key", "value"].index(side)
    dirty = spoiled(clean, which, slice(3 if side == "query" else REAL, None), NAN)
    output, grads = run(dirty, score, engine, mask=mask, **OPTIONS[option])
    assert_same([output, *grads], [expected, *expected_grads])


@pytest.mark.parametrize("statistic", ["lse", "entropy", "weights"])
@pytest.mark.parametrize("garbage", ["nan", "inf"])
@pytest.mark.parametrize("side", ["query", "key", "value"])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_do_not_read_hidden_garbage(engine, name, side, garbage, statistic):
    score, clean = make_score(name, 2), inputs(queries=QUERIES, keys=KEYS)
    mask = Mask.lengths(keys=torch.tensor([REAL, REAL]), queries=torch.tensor([3, 3]))
    which = ["query", "key", "value"].index(side)
    dirty = spoiled(clean, which, slice(3 if side == "query" else REAL, None), GARBAGE[garbage])
    found = []
    for tensors in (clean, dirty):
        result = regard.attend(*tensors, score, want=statistic, mask=mask, engine=engine)
        asked = getattr(result, statistic)
        wanted = [*tensors[:2], *score.parameters()]
        found.append([asked, *gradients(asked, wanted)])
    assert_same(found[1], found[0])


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_garbage_in_hidden_tiles_is_not_read(engine, name, tiny_tiles):
    """As above, where the garbage fills whole tiles and a part of the tile before."""
    keys, real = 3 * tiny_tiles, tiny_tiles + 3
    score, clean = make_score(name, 2), inputs(queries=3, keys=keys)
    mask = Mask.lengths(keys=torch.tensor([real, real]))
    expected, expected_grads = run(clean, score, engine, mask=mask)
    dirty = spoiled(spoiled(clean, 1, slice(real, None), NAN), 2, slice(real, None), NAN)
    output, grads = run(dirty, score, engine, mask=mask)
    assert_same([output, *grads], [expected, *expected_grads])


def test_sdpa_says_what_it_does_not_promise():
    """SDPA leaks garbage that only some queries see; `explain` must say so, and only then."""
    tensors = inputs(queries=QUERIES, keys=QUERIES)
    some = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    notes = regard.explain(*tensors, mask=some, engine="sdpa").notes
    assert any("NaN" in note and "reference" in note and "cpu" in note for note in notes)
    for mask in (None, Mask.lengths(keys=3), Mask.lengths(keys=3, queries=2)):
        plan = regard.explain(*tensors, mask=mask, engine="sdpa")
        assert plan.engine == "sdpa"
        assert not any("NaN" in note for note in plan.notes), mask
    for engine in ("reference", "cpu"):
        notes = regard.explain(*tensors, mask=some, engine=engine).notes
        assert not any("NaN" in note for note in notes)
