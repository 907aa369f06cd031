"""Padding: counts of tokens in every shape, checked and zeroed once."""

from __future__ import annotations

import pytest
import torch

from regard.arguments import as_counts, check_counts
from regard.nn import transformer
from regard.nn.padding import real_tokens, zero_padding
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.cache import Cache
from regard.nn.transformer.stacks import Decoder, Encoder

X = torch.zeros(2, 5, 8)


@pytest.mark.parametrize(
    ("start", "stop", "before", "wanted"),
    [
        ([0, 2], None, 0, ["111", "001"]),
        (None, [3, 1], 0, ["111", "100"]),
        ([1, 0], [2, 3], 0, ["010", "111"]),
        ([1, 4], None, 2, ["111", "001"]),
        ([1, 0], [3, 9], 2, ["100", "111"]),
    ],
)
def test_real_tokens(start, stop, before, wanted):
    counts = [None if x is None else torch.tensor(x) for x in (start, stop)]
    real = real_tokens(3, *counts, X.device, before)
    assert ["".join(str(int(n)) for n in row) for row in real] == wanted
    x = torch.full((2, 3, 4), torch.nan)
    assert torch.equal(zero_padding(x, real).isnan().all(-1), real)


def test_without_padding_nothing_is_copied():
    assert real_tokens(3) is None and zero_padding(X, None) is X


@pytest.mark.parametrize("counts", [[5, 0], (5, 0), torch.tensor([5, 0], dtype=torch.int32)])
def test_counts_become_int64_on_the_device_of_the_tokens(counts):
    found = check_counts(counts, "lengths", X)
    assert found.dtype == torch.int64 and found.tolist() == [5, 0]
    assert check_counts(counts, "lengths", X.to("meta")).device.type == "meta"
    assert check_counts([], "lengths", X[:0]).shape == (0,)


def test_counts_do_not_follow_the_default_device():
    """On a default device without numbers their range could not be read."""
    with torch.device("meta"):
        assert check_counts([5, 0], "lengths", X).tolist() == [5, 0]
        assert as_counts([1, 2], "lengths").device.type == "cpu"
        with pytest.raises(ValueError, match="got 0 to 6"):
            check_counts([6, 0], "lengths", X)
    model = Decoder([DecoderBlock(8, 2)])
    with torch.device("meta"):
        cache = model.begin(left_padding=[0, 1])
    assert model.step(X, cache)[1].own[0].left_padding.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("counts", "bounded", "kind", "message"),
    [
        ([1.0, 2.0], True, TypeError, "lengths must be integers, got a tensor of torch.float32"),
        ([True, False], True, TypeError, r"use mask.sum\(1\)"),
        ([1], True, ValueError, r"one integer for each of the 2 sequences, shape \(2,\)"),
        (3, True, ValueError, r"one integer for each of the 2 sequences, shape \(2,\)"),
        ([6, 1], True, ValueError, "from 0 to the length 5, got 1 to 6"),
        ([-1, 9], False, ValueError, "must be 0 or more, got -1 to 9"),
    ],
)
def test_counts_that_are_none(counts, bounded, kind, message):
    with pytest.raises(kind, match=message):
        check_counts(counts, "lengths", X, bounded=bounded)


def test_a_stack_checks_and_zeroes_once(monkeypatch):
    """Not again in each block and layer: on a device each look at the padding is a kernel."""
    seen = []
    for name in ("check_counts", "zero_padding"):
        whole = getattr(transformer.cache, name)
        monkeypatch.setattr(
            transformer.cache,
            name,
            lambda *a, name=name, whole=whole, **k: (seen.append(name), whole(*a, **k))[1],
        )
    Encoder([EncoderBlock(8, 2) for _ in range(3)])(X, lengths=[5, 2])
    assert seen == ["check_counts", "zero_padding"]
    seen.clear()
    decoder = Decoder([DecoderBlock(8, 2, memory_dim=8) for _ in range(3)])
    decoder(X, X, lengths=[5, 2], memory_lengths=[5, 2])
    assert seen == ["check_counts"] * 2 + ["zero_padding"] * 2


def test_errors_name_the_counts_that_were_given():
    decoder = Decoder([DecoderBlock(8, 2, memory_dim=8)])
    for call in (decoder, decoder.attend):
        with pytest.raises(ValueError, match="memory_lengths must be from 0 to the length 5"):
            call(X, X, memory_lengths=[9, 1])
    with pytest.raises(ValueError, match="left_padding must be 0 or more, got -1 to 0"):
        decoder.step(X, decoder.begin(X, left_padding=[0, -1]))


def test_caches_are_printed_by_their_sizes():
    decoder = Decoder([DecoderBlock(8, 2, memory_dim=8, key_heads=1) for _ in range(2)])
    _, cache = decoder.step(X, decoder.begin(X[:, :3]))
    own, memory = "length=5, batch=2, heads=1", "length=3, batch=2, heads=1"
    assert repr(cache) == f"DecoderCache(blocks=2, own=Cache({own}), memory=Cache({memory}))"
    assert repr(cache.own[0]) == f"Cache({own})" and repr(Cache()) == "Cache(length=0)"
