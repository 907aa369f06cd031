"""Few queries of a pairwise score, as a decoder has them: kernels of their own, keys in parts."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import regard
from regard import Mask
from regard.testing import poisoned

from .tools import check, deterministic, forget_bound_calls, inputs, outcome

pytest.importorskip("triton", minversion="3.6")
from regard.engines import launching
from regard.engines.triton import bound, choices, decode, decode_backward

pytestmark = pytest.mark.interpreted
INF = float("inf")
# Beyond 64 keys a row is shared by two programs here, and these have several blocks each.
PARTS = 300
# The backward has two blocks of these keys, the second of them cut.
BLOCKS = 70


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [(1, torch.float32), (63, torch.float16), (65, torch.float32), (257, torch.float16)],
)
def test_lengths_around_blocks_and_parts(keys, dtype):
    with poisoned():
        check(inputs(1, keys, heads=1, dtype=dtype), regard.Additive(3, 1).to(dtype))


@pytest.mark.parametrize(("hidden", "value_dim"), [(1, 65), (16, 1), (130, 5), (520, 3)])
def test_widths(hidden, value_dim):
    """520 hidden units are read in two steps; heads share keys."""
    tensors = inputs(2, 20, heads=2, key_heads=1, hidden=hidden, value_dim=value_dim)
    check(tensors, regard.GATv2(hidden, 2) if hidden == 16 else regard.Additive(hidden, 2))


@pytest.mark.parametrize(
    ("hidden", "gap", "value_dim", "even"),
    [
        (16, 0, 16, 16),
        (12, 0, 8, 4),
        (24, 0, 40, 8),
        (16, 1, 16, 1),
        (16, 6, 4, 2),
        (15, 1, 16, 16),
    ],
)
def test_rows_that_are_no_whole_pieces_apart(hidden, gap, value_dim, even, monkeypatch):
    """What divides all distances between rows is read at once: keys may be a part of something wider."""
    query, key, value = inputs(1, 9, hidden=hidden, value_dim=value_dim)
    wider = torch.nn.functional.pad(key.detach(), (0, gap), value=torch.nan)
    key = wider[..., :hidden].requires_grad_()
    splits, split = [], choices.decode_split
    monkeypatch.setattr(
        choices, "decode_split", lambda args: splits.append(split(args)) or splits[-1]
    )
    check([query, key, value], regard.Additive(hidden, 2))
    assert {x.even for x in splits} == {even}


def test_values_too_wide_to_be_put_together_at_once(monkeypatch):
    """Many parts leave registers for few dims of each: several programs have their share."""
    assert choices.combining(528, 1024) == (1024, 16)
    monkeypatch.setattr(choices, "COMBINED", 64)
    assert choices.combining(2, 70) == (2, 32)  # three programs
    # Each makes two parts; what was bound before was bound for other sizes.
    forget_bound_calls()
    check(inputs(2, PARTS, heads=1, value_dim=70), regard.Additive(3, 1))
    forget_bound_calls()


def test_statistics_of_values_without_dims():
    tensors, score = inputs(2, PARTS, value_dim=0), regard.Additive(3, 2)
    found, wanted = (
        regard.attend(*tensors, score, want=("lse", "max_logit"), engine=engine)
        for engine in ("triton", "reference")
    )
    torch.testing.assert_close(found.lse, wanted.lse)
    torch.testing.assert_close(found.max_logit, wanted.max_logit)


@pytest.mark.parametrize("hidden", [1, 16, 128, 300, 512, 1000, 4096])
def test_copies_of_the_backward_take_less_than_the_keys(hidden):
    """A row of each query for each block of keys: in fp32, beside keys of half as many bytes."""
    keys = 10_000
    for queries in range(1, 16):
        q, k = (torch.empty(2, 1, 3, n, hidden, device="meta") for n in (queries, keys))
        args = bound.arguments(
            bound.CallSignature(
                *map(bound.described, (q.bfloat16(), k.bfloat16(), k.bfloat16())),
                *(
                    torch.bfloat16,
                    None,
                    None,
                    q.device,
                    (2, 1, 3, queries, keys),
                    "tanh",
                    0.0,
                    True,
                ),
            )
        )
        (_, block, _), wide, _, parts, _ = choices.decode_blocks(args)
        assert 4 * parts * queries <= 2 * (keys + block * queries)
        split = choices.decode_split(args)
        assert (split.block, split.wide) == (block, wide)
        assert (split.parts - 1) * split.share < keys <= split.parts * split.share


def seen_by(*spans: tuple[int, int]) -> torch.Tensor:
    """A dense mask with one row for each span of keys."""
    at = torch.arange(PARTS)
    return torch.stack([(at >= first) & (at < last) for first, last in spans])


MASKS = {
    "causal": lambda: Mask.causal(),
    "window": lambda: Mask.window(left=10) & Mask.causal(),
    "short": lambda: Mask.lengths(keys=[3]),
    "nothing": lambda: Mask.lengths(keys=[0]),
    "one part each": lambda: Mask.dense(seen_by((0, 5), (290, PARTS), (0, 0), (5, 290))),
    "segments": lambda: Mask.segments(
        torch.tensor([0, 1, -1, 2]), (torch.arange(PARTS) > 280).long()
    ),
}


@pytest.mark.parametrize("mask", MASKS)
def test_parts_that_are_hidden(mask):
    with poisoned():
        check(inputs(4, PARTS, heads=1), regard.Additive(3, 1), mask=MASKS[mask]())


@pytest.mark.parametrize("mask", ["window", "dense", "none"])
def test_blocks_that_are_hidden_are_not_computed(mask, monkeypatch):
    """Forward and backward: of 5 blocks of 64 keys a window touches 1, a dense mask 2."""
    looked, whole = [], (decode.row_scores, decode_backward.block_scores)
    monkeypatch.setattr(
        decode, "row_scores", lambda *given: looked.append("forward") or whole[0](*given)
    )
    monkeypatch.setattr(
        decode_backward,
        "block_scores",
        lambda *given: looked.append("backward") or whole[1](*given),
    )
    options = {
        "window": {"mask": Mask.window(left=10) & Mask.causal()},
        "dense": {"mask": Mask.dense(seen_by((0, 5)) | seen_by((290, PARTS)))},
        "none": {},
    }[mask]
    tensors, score = inputs(1, PARTS, heads=1), regard.Additive(3, 1)
    outcome(tensors, score, "triton", torch.randn(1, 1, 1, 4), **options)
    blocks = {"window": 1, "dense": 2, "none": 5}[mask]
    assert looked == ["forward"] * blocks + ["backward"] * blocks


def test_options_together():
    """Bias, soft cap and a temperature for each row, forward, against the reference."""
    tensors, score = inputs(3, PARTS), regard.Additive(3, 2)
    options = {
        "bias": torch.randn(3, PARTS).masked_fill(torch.rand(3, PARTS) < 0.2, -torch.inf),
        "temperature": torch.rand(1, 2, 3, 1) + 0.5,
        "softcap": 1.5,
        "sink": torch.randn(2),
    }
    with poisoned():
        found = regard.attention(*tensors, score, engine="triton", **options)
    expected = regard.attention(*tensors, score, engine="reference", **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_hidden_garbage_is_not_read_and_visible_garbage_is_passed_on():
    tensors, score = inputs(2, PARTS, heads=1), regard.Additive(3, 1)
    grad = torch.randn(1, 1, 2, 4)
    mask = Mask.lengths(keys=[280])
    expected = outcome(tensors, score, "triton", grad, mask=mask)
    with torch.no_grad():
        tensors[1][:, :, 280:] = torch.nan
        tensors[2][:, :, 280:] = torch.inf
    found = outcome(tensors, score, "triton", grad, mask=mask)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    with torch.no_grad():
        tensors[2][:, :, 7, 1] = torch.nan
    output = regard.attention(*tensors, score, mask=mask, engine="triton")
    assert output[..., 1].isnan().all() and output[..., [0, 2, 3]].isfinite().all()
    with torch.no_grad():
        tensors[0][:, :, 1] = torch.nan
    output = regard.attention(*tensors, score, mask=mask, engine="triton")
    assert output[:, :, 1].isnan().all() and output[:, :, 0, [0, 2, 3]].isfinite().all()


def test_strides_and_broadcasts():
    """Keys with the heads last in memory and one memory for the whole batch."""
    q = torch.randn(2, 3, 2, 4).transpose(1, 2)
    k = torch.randn(1, 9, 1, 4).transpose(1, 2)
    v = torch.randn(1, 1, 5, 9).mT
    score = regard.Additive(4, 2)
    found = regard.attention(q, k, v, score, engine="triton")
    torch.testing.assert_close(found, regard.attention(q, k, v, score, engine="reference"))


def test_it_agrees_with_the_kernel_for_many_queries():
    """Which runs where the entropy is asked for."""
    tensors, score = inputs(2, PARTS), regard.Additive(3, 2)
    plain = regard.attend(*tensors, score, want=("lse", "max_logit"), engine="triton")
    other = regard.attend(*tensors, score, want=("lse", "max_logit", "entropy"), engine="triton")
    for name in ("output", "lse", "max_logit"):
        torch.testing.assert_close(getattr(plain, name), getattr(other, name))


@contextmanager
def counted(monkeypatch):
    """The queries of each call whose backward is that for few queries, as they come."""
    seen, blocks = [], choices.decode_blocks

    def spy(args):
        seen.append(args.sizes[3])
        return blocks(args)

    with monkeypatch.context() as patch:
        patch.setattr(choices, "decode_blocks", spy)
        forget_bound_calls()
        yield seen


@pytest.mark.parametrize(("queries", "mine"), [(1, True), (15, True), (16, False)])
def test_few_queries_have_a_backward_of_their_own(queries, mine, monkeypatch):
    with counted(monkeypatch) as seen, poisoned():
        check(inputs(queries, 40), regard.Additive(3, 2))
    assert set(seen) == ({queries} if mine else set())


def test_but_where_the_forward_was_another(monkeypatch):
    """Each backward has to find the scores that its forward has found."""
    tensors, score = inputs(2, 20), regard.Additive(3, 2)
    with counted(monkeypatch) as seen:
        found = regard.attend(*tensors, score, want=("entropy",), engine="triton")
        found.output.sum().backward()
        regard.attention(*tensors, score, dropout=0.5, engine="triton").sum().backward()
        assert seen == []
        regard.attend(*tensors, score, want=("lse",), engine="triton").output.sum().backward()
        assert set(seen) == {2}


@pytest.mark.parametrize("queries", [2, 9])
@pytest.mark.parametrize(
    "options", [{}, {"want": ("entropy",)}, {"dropout": 1e-6}], ids=["plain", "entropy", "dropout"]
)
def test_large_scores_have_the_weights_of_the_forward(queries, options):
    """Of 1e9, whose last digit is 64: one key has all the weight, also where it is recomputed."""
    one_key_has_all(queries, 128, options)


@pytest.mark.parametrize("hidden", [200, 512, 1000])
def test_so_they_have_with_many_hidden_units(hidden):
    """Of one query blocks have 16, 8 and 4 keys."""
    one_key_has_all(1, hidden, {})


def one_key_has_all(queries, hidden, options):
    torch.manual_seed(0)
    tensors, score = inputs(queries, 20, heads=1, hidden=hidden), regard.GATv2(hidden, 1)
    with torch.no_grad():
        score.v.mul_(1e9)
    of_value = []
    for engine in ("triton", "reference"):
        output = regard.attend(*tensors, score, engine=engine, **options).output
        of_value.append(torch.autograd.grad(output.sum(), tensors[2])[0])
    torch.testing.assert_close(*of_value)


OPTIONS = {
    "none": dict,
    "softcap": lambda: {"softcap": 0.7},
    "temperature": lambda: {"temperature": (torch.rand(1, 2, 3, 1) + 0.5).requires_grad_()},
    "bias": lambda: {"bias": torch.randn(1, 2, 3, BLOCKS).requires_grad_()},
    "one bias": lambda: {"bias": torch.randn(3, BLOCKS).requires_grad_()},
    "hiding bias": lambda: {"bias": torch.where(torch.rand(3, BLOCKS) < 0.2, -INF, 0.5)},
    "lengths": lambda: {"mask": Mask.lengths(keys=[60])},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("want", [(), ("lse",)], ids=["output", "statistics"])
def test_gradients_under_options(name, want, monkeypatch):
    """Of all inputs, a temperature too, and through statistics."""
    torch.manual_seed(0)
    tensors, score, options = inputs(3, BLOCKS, key_heads=1), regard.Additive(3, 2), OPTIONS[name]()
    leaves = [*tensors, score.v]
    leaves += [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    found = []
    with counted(monkeypatch) as seen, poisoned():
        for engine in ("triton", "reference"):
            torch.manual_seed(1)
            result = regard.attend(*tensors, score, want=want, engine=engine, **options)
            ends = [result.output, *(getattr(result, x) for x in want)]
            grads = [torch.randn(x.shape) for x in ends]
            found.append(torch.autograd.grad(ends, leaves, grads))
    assert set(seen) == {3}
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_dropped_pairs_have_no_gradient():
    """Values are ones and zeros: what is not dropped is read off the output."""
    tensors, score = inputs(2, 20, heads=1, value_dim=20), regard.Additive(3, 1)
    with torch.no_grad():
        tensors[2].copy_(torch.eye(20))
    torch.manual_seed(3)
    output = regard.attention(*tensors, score, dropout=0.4, engine="triton")
    weights = regard.attention(*tensors, score, engine="reference")
    keep = (output != 0).float() / 0.6
    torch.testing.assert_close(output, weights * keep)
    grad, leaves = torch.randn(output.shape), [*tensors[:2], score.v]
    for x, y in zip(
        torch.autograd.grad(output, leaves, grad),
        torch.autograd.grad(weights * keep, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_row_that_is_broken_keeps_to_itself():
    tensors, score = inputs(3, BLOCKS, heads=1), regard.Additive(3, 1)
    grad = torch.randn(1, 1, 3, 4)
    sound = outcome(tensors, score, "triton", grad)[1]
    grad[:, :, 1] = torch.nan
    broken = outcome(tensors, score, "triton", grad)[1]
    assert broken[:, :, 1].isnan().all()
    assert torch.equal(broken[:, :, [0, 2]], sound[:, :, [0, 2]])


@pytest.mark.parametrize(
    "sizes",
    [
        {"keys": 1000},
        {"keys": 40, "batch": 8, "hidden": 16},
        {"keys": 70, "batch": 2, "heads": 8, "key_heads": 1},
    ],
    ids=["many blocks", "many sequences", "many heads"],
)
def test_gradients_have_the_same_bits_in_every_call(sizes, monkeypatch):
    """Each place is written once and sums have one order: the first call is ordinary, then bound."""
    monkeypatch.setattr(launching, "SIGHTS", 2)
    forget_bound_calls()
    tensors = inputs(1, sizes.pop("keys"), **{"heads": 2, **sizes})
    score = regard.Additive(tensors[0].shape[-1], tensors[0].shape[1])
    grad = torch.randn(*tensors[0].shape[:-1], 4)
    found = []
    for fixed in (False, False, True):
        with deterministic(fixed):
            found.append(outcome(tensors, score, "triton", grad))
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))
