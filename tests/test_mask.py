"""`Mask` against its definition, pair by pair in plain Python."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask
from regard.checks import check_mask
from regard.problem import hide_padding

CPU = torch.device("cpu")


def dense(mask: Mask, queries: int, keys: int, batch: int = 1) -> list[list[list[bool]]]:
    """The mask as nested lists [batch][query][key], through the library."""
    seen = mask.visible(queries, keys, CPU)
    return seen.expand(batch, 1, queries, keys)[:, 0].tolist()


def band(left, right, alignment, queries, keys):
    """Pairs with -left <= j - position(i) <= right, by the definition."""

    def sees(i: int, j: int) -> bool:
        position = i if alignment == "top_left" else i + keys - queries
        return (left is None or j >= position - left) and (right is None or j <= position + right)

    return [[[sees(i, j) for j in range(keys)] for i in range(queries)]]


SIZES = [(1, 1), (1, 5), (5, 1), (4, 4), (3, 6), (6, 3), (0, 3), (3, 0)]
ALIGNMENTS = ("top_left", "bottom_right")


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_causal(queries, keys, alignment):
    expected = band(None, 0, alignment, queries, keys)
    assert dense(Mask.causal(alignment), queries, keys) == expected


def test_causal_aligns_to_the_bottom_right_unless_told():
    assert dense(Mask.causal(), 2, 4) == [[[True, True, True, False], [True] * 4]]
    assert dense(Mask.causal("top_left"), 2, 4) == [
        [[True] + [False] * 3, [True] * 2 + [False] * 2]
    ]


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, None), (None, 1), (2, 1), (0, 9), (9, 0)])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_window(queries, keys, left, right, alignment):
    mask = Mask.window(left, right, alignment)
    assert dense(mask, queries, keys) == band(left, right, alignment, queries, keys)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_lengths(queries, keys):
    key_lengths, query_lengths = [keys, keys // 2, 0], [queries // 2, queries, queries]
    mask = Mask.lengths(keys=torch.tensor(key_lengths), queries=torch.tensor(query_lengths))
    expected = [
        [[j < k and i < q for j in range(keys)] for i in range(queries)]
        for k, q in zip(key_lengths, query_lengths, strict=True)
    ]
    assert dense(mask, queries, keys, batch=3) == expected


@pytest.mark.parametrize(
    "given", [3, [3], (3,), torch.tensor(3), torch.tensor([3], dtype=torch.int32)]
)
def test_lengths_take_numbers_lists_and_any_integer_tensor(given):
    assert dense(Mask.lengths(keys=given), 2, 5) == [[[True] * 3 + [False] * 2] * 2]


def test_segments():
    queries, keys = [0, 0, 1, -1, 2], [0, 1, 1, -1, 0, 3]
    mask = Mask.segments(torch.tensor(queries), torch.tensor(keys))
    expected = [[[q == k and q >= 0 for k in keys] for q in queries]]
    assert dense(mask, 5, 6) == expected


def test_segments_of_self_attention_need_to_be_given_once():
    ids = torch.tensor([[0, 0, 1], [4, 3, 4]])
    once, twice = Mask.segments(ids), Mask.segments(ids, ids)
    assert dense(once, 3, 3, 2) == dense(twice, 3, 3, 2)


def test_dense_is_what_was_given():
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    assert dense(Mask.dense(allowed), 2, 3) == [allowed.tolist()]


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_causal_with_lengths_aligns_to_the_real_lengths(alignment):
    key_lengths, query_lengths = [6, 4, 2, 0], [5, 1, 3, 2]
    lengths = Mask.lengths(keys=torch.tensor(key_lengths), queries=torch.tensor(query_lengths))

    def sees(i, j, q, k):
        position = i if alignment == "top_left" else i + k - q
        return i < q and j < k and j <= position

    expected = [
        [[sees(i, j, q, k) for j in range(6)] for i in range(5)]
        for k, q in zip(key_lengths, query_lengths, strict=True)
    ]
    for mask in (Mask.causal(alignment) & lengths, lengths & Mask.causal(alignment)):
        assert dense(mask, 5, 6, 4) == expected


def test_causal_with_query_lengths_alone_aligns_to_all_keys():
    mask = Mask.causal() & Mask.lengths(queries=torch.tensor([3, 1]))
    expected = [[[i < q and j <= i + 4 - q for j in range(4)] for i in range(3)] for q in (3, 1)]
    assert dense(mask, 3, 4, 2) == expected


PARTS = {
    "causal": Mask.causal(),
    "top left": Mask.causal("top_left"),
    "window": Mask.window(2, 1),
    "lengths": Mask.lengths(keys=torch.tensor([4, 2]), queries=torch.tensor([3, 5])),
    "scalar length": Mask.lengths(keys=3, queries=4),
    "segments": Mask.segments(torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 0, 1, 1, 2, 0])),
    "batched segments": Mask.segments(
        torch.tensor([[0, 0, 1, 1, 1]] * 2), torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, -1]])
    ),
    "dense": Mask.dense(torch.arange(30).view(5, 6) % 4 != 0),
    "dense row": Mask.dense(torch.arange(6).view(1, 6) != 2),
}


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(PARTS, 2)))
def test_and_is_both(one, two):
    """Elementwise, but for bands with lengths, whose alignment the lengths move (tested above)."""
    a, b = PARTS[one], PARTS[two]
    lengths, bands = "length" in one + two, a.bands or b.bands
    joined, flipped = dense(a & b, 5, 6, 2), dense(b & a, 5, 6, 2)
    assert joined == flipped
    if not (lengths and bands):
        both = torch.tensor(dense(a, 5, 6, 2)) & torch.tensor(dense(b, 5, 6, 2))
        assert joined == both.tolist()


@pytest.mark.parametrize("names", list(itertools.combinations(PARTS, 3))[::4])
def test_and_is_associative(names):
    a, b, c = (PARTS[name] for name in names)
    assert dense((a & b) & c, 5, 6, 2) == dense(a & (b & c), 5, 6, 2)


@pytest.mark.parametrize("name", PARTS)
def test_and_with_itself_changes_nothing(name):
    mask = PARTS[name]
    assert dense(mask & mask, 5, 6, 2) == dense(mask, 5, 6, 2)


def test_and_of_lengths_is_the_shorter():
    mask = Mask.lengths(keys=torch.tensor([5, 2])) & Mask.lengths(keys=3)
    assert mask.key_lengths.tolist() == [3, 2]


def test_several_masks_of_each_kind():
    """Two sets of segments take another way through the cpu engine."""
    masks = [PARTS["segments"], PARTS["batched segments"], PARTS["dense"], PARTS["dense row"]]
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined & mask
    x = torch.randn(2, 1, 6, 4, dtype=torch.float64)
    outputs = [
        regard.attention(x[:, :, :5], x, x, mask=joined, engine=engine)
        for engine in ("reference", "cpu", "sdpa")
    ]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0])


def test_a_mask_is_frozen():
    mask = Mask.causal()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.bands = ()
    before = mask.bands
    _ = mask & Mask.window(left=1)
    assert mask.bands == before


def test_masks_can_be_dictionary_keys():
    """By identity: tensors do not compare to one truth."""
    mask = Mask.lengths(keys=torch.tensor([1, 2]))
    assert {mask: 1}[mask] == 1
    assert mask != Mask.lengths(keys=torch.tensor([1, 2]))


def test_repr_names_the_parts_and_not_the_numbers():
    mask = Mask.causal() & Mask.window(left=3) & Mask.lengths(keys=torch.arange(1000), queries=2)
    mask = mask & Mask.segments(torch.arange(7)) & Mask.dense(torch.ones(7, 7) > 0)
    text = repr(mask)
    for part in (
        "causal(bottom_right)",
        "window(3, None)",
        "key lengths",
        "query lengths",
        "segments",
        "dense(7, 7)",
    ):
        assert part in text
    assert "tensor" not in text
    assert repr(Mask()) == "Mask(everything)"


def test_a_mask_without_parts_hides_nothing():
    x = torch.randn(2, 1, 5, 4)
    for engine in ("reference", "cpu", "sdpa"):
        output = regard.attention(x, x, x, mask=Mask(), engine=engine)
        torch.testing.assert_close(output, regard.attention(x, x, x, engine=engine))


@pytest.mark.parametrize(("one", "two"), list(itertools.product(PARTS, repeat=2)))
def test_real_holds_every_row_and_key_that_takes_part(one, two):
    """A superset of the visible ones: what `real` leaves out is zeroed and never read."""
    mask = PARTS[one] & PARTS[two]
    visible = torch.tensor(dense(mask, 5, 6, 2)).view(2, 5, 6)
    rows, real = mask.real(5, 6, CPU)
    assert bool((rows.expand(2, 1, 5)[:, 0] | ~visible.any(2)).all())
    assert bool((real.expand(2, 1, 6)[:, 0] | ~visible.any(1)).all())


@pytest.mark.parametrize("name", PARTS)
def test_real_leaves_out_all_that_one_part_hides(name):
    visible = torch.tensor(dense(PARTS[name], 5, 6, 2)).view(2, 5, 6)
    rows, real = PARTS[name].real(5, 6, CPU)
    assert rows.expand(2, 1, 5)[:, 0].tolist() == visible.any(2).tolist()
    assert real.expand(2, 1, 6)[:, 0].tolist() == visible.any(1).tolist()


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, None), (None, 1), (2, 1), (None, 0)])
@pytest.mark.parametrize(("queries", "keys"), [(q, k) for q, k in SIZES if q and k])
def test_real_of_bands(queries, keys, left, right, alignment):
    mask = Mask.window(left, right, alignment)
    visible = torch.tensor(band(left, right, alignment, queries, keys)[0])
    rows, real = mask.real(queries, keys, CPU)
    assert rows.expand(1, queries)[0].tolist() == visible.any(1).tolist()
    assert real.expand(1, keys)[0].tolist() == visible.any(0).tolist()
    if mask.hides_no_key(queries, keys):
        assert visible.any(0).all() and visible.any(1).all()


def test_real_keeps_heads_apart():
    allowed = torch.ones(2, 3, 5, 6, dtype=torch.bool)
    allowed[0, :, :, 2] = False
    allowed[1, 1:, :, 3] = False  # one head still sees it
    rows, real = Mask.dense(allowed).real(5, 6, CPU)
    assert rows.all()
    assert torch.equal(real, allowed.any(-2))


def test_only_keys_says_whether_every_query_sees_the_same():
    assert PARTS["dense row"].only_keys
    assert Mask.lengths(keys=3).only_keys
    assert not Mask.lengths(queries=3).only_keys
    for name in ("causal", "window", "segments", "dense"):
        assert not PARTS[name].only_keys


HEADED = [(2, 2, 5, 6), (1, 2, 5, 6), (2, 1, 1, 6), (1, 1, 5, 1), (5, 6), (1, 6), (5, 1), (1, 1)]


@pytest.mark.parametrize("shape", HEADED, ids=str)
@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_dense_masks_broadcast(engine, shape):
    q, k = (
        torch.randn(2, 2, 5, 4, dtype=torch.float64),
        torch.randn(2, 2, 6, 4, dtype=torch.float64),
    )
    allowed = torch.rand(shape) > 0.4
    output = regard.attention(q, k, k, mask=allowed, engine=engine)
    whole = allowed.expand(2, 2, 5, 6).contiguous()
    expected = regard.attention(q, k, k, mask=whole, engine="reference")
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_a_tensor_is_a_dense_mask(engine):
    x, allowed = torch.randn(1, 2, 5, 4), torch.rand(5, 5) > 0.5
    outputs = [
        regard.attention(x, x, x, mask=m, engine=engine) for m in (allowed, Mask.dense(allowed))
    ]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_true_means_attend(engine):
    """torch.nn.MultiheadAttention has it the other way round."""
    value = torch.eye(3).view(1, 1, 3, 3)
    x = torch.randn(1, 1, 3, 4)
    output = regard.attention(x, x, value, mask=torch.eye(3) > 0, engine=engine)
    torch.testing.assert_close(output, value)


def test_lengths_and_segments_broadcast_over_leading_dims():
    x = torch.randn(3, 2, 1, 5, 4, dtype=torch.float64)
    for lengths in ([5, 3], [[5, 3]], [[1], [4], [5]], [[1, 2], [3, 4], [5, 0]]):
        mask = Mask.lengths(keys=torch.tensor(lengths))
        whole = Mask.lengths(keys=torch.tensor(lengths).expand(3, 2).clone())
        expected = regard.attention(x, x, x, mask=whole, engine="reference")
        for engine in ("reference", "cpu", "sdpa"):
            output = regard.attention(x, x, x, mask=mask, engine=engine)
            torch.testing.assert_close(output, expected)


def test_the_mask_given_is_left_as_it_was():
    allowed = torch.rand(2, 5, 5) > 0.5
    mask = Mask.dense(allowed) & Mask.lengths(keys=torch.tensor([3, 5]))
    before: Tensor = allowed.clone()
    x = torch.randn(2, 5, 4)
    for engine in ("reference", "cpu", "sdpa"):
        regard.attention(x, x, x, mask=mask, engine=engine)
    assert torch.equal(allowed, before)
    assert mask.allowed[0] is allowed
    assert mask.key_lengths.tolist() == [3, 5]


def padded() -> list[Tensor]:
    """Query, key and value of 2 sequences, the last two keys of the second padding."""
    query, key, value = (torch.randn(2, 2, n, 4) for n in (3, 5, 5))
    key[1, :, 3:], value[1, :, 3:] = 7.0, -7.0
    return [query, key, value]


PAIRWISE = {"additive": regard.Additive(4, 2), "gatv2": regard.GATv2(4, 2)}


@pytest.mark.parametrize(
    ("score", "engine"),
    [
        *itertools.product(("scaled_dot", "gaussian"), ("reference", "cpu", "sdpa", None)),
        *itertools.product(PAIRWISE, ("reference", "cpu", "plain", None)),
    ],
)
def test_finite_padding_need_not_be_zeroed(score, engine):
    """Outputs and gradients are the same; nothing flows into what is hidden."""
    score = PAIRWISE.get(score, score)
    mask, tensors = Mask.lengths(keys=torch.tensor([5, 3])), padded()
    found = []
    for given in (mask, mask.over_finite()):
        leaves = [x.clone().requires_grad_() for x in tensors]
        output = regard.attention(*leaves, score, mask=given, engine=engine)
        found.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)
    assert not found[1][2][1, :, 3:].any() and not found[1][3][1, :, 3:].any()


def test_what_is_known_finite_stays_so_with_another_that_is():
    lengths = Mask.lengths(keys=torch.tensor([5, 3]))
    assert not lengths.hides_finite and lengths.over_finite().hides_finite
    assert not (lengths.over_finite() & Mask.causal()).hides_finite
    assert (lengths.over_finite() & Mask.causal().over_finite()).hides_finite
    dense = Mask.dense(torch.ones(2, 1, 1, 5, dtype=torch.bool)).over_finite()
    query, key, value = padded()
    assert check_mask(dense, query, key, value, 4).hides_finite
    assert dense.to(torch.device("meta")).hides_finite


def test_finite_padding_is_not_copied():
    """The same memory reaches the engine; without the word it is zeroed first."""
    query, key, value = padded()
    mask = Mask.lengths(keys=torch.tensor([5, 3]))
    for given, same in ((mask, False), (mask.over_finite(), True)):
        _, k, v, real = hide_padding(query, key, value, given, None)
        assert (k is key) is same and (v is value) is same
        assert real.flatten().tolist() == 5 * [True] + [True, True, True, False, False]
    # A bias hides too, and nobody spoke for what it hides.
    bias = torch.zeros(3, 5)
    bias[:, 0] = -torch.inf
    assert hide_padding(query, key, value, mask.over_finite(), bias)[1] is not key
