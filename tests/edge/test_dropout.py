"""Dropout of weights: seeded, unbiased, the same in the backward, after the statistics."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import OWN_PAIRS, QUICK_PAIRS, all_finite, gradients, inputs, make_score

RATE = 0.3


def seeded(seed: int, tensors, score, engine, **options) -> torch.Tensor:
    torch.manual_seed(seed)
    return regard.attention(*tensors, score, dropout=RATE, engine=engine, **options)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_the_seed_decides(engine, name):
    score, tensors = make_score(name, 2), inputs(queries=20, keys=20)
    first = seeded(0, tensors, score, engine)
    assert torch.equal(seeded(0, tensors, score, engine), first)
    assert not torch.equal(seeded(1, tensors, score, engine), first)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_two_calls_in_a_row_drop_different_weights(engine, name):
    score, tensors = make_score(name, 2), inputs(queries=20, keys=20)
    torch.manual_seed(0)
    calls = [regard.attention(*tensors, score, dropout=RATE, engine=engine) for _ in range(2)]
    assert not torch.equal(*calls)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_rows_heads_sequences_and_tiles_drop_different_weights(engine, name, tiny_tiles):
    """With one-hot values the output is the dropped weights themselves; all inputs are alike."""
    keys = 2 * tiny_tiles
    score = make_score(name, 2)
    query, key = torch.zeros(2, 2, 3, 4).double(), torch.zeros(2, 2, keys, 4).double()
    value = torch.eye(keys, dtype=torch.float64).expand(2, 2, keys, keys)
    kept = seeded(0, [query, key, value], score, engine) > 0
    patterns = kept.reshape(-1, tiny_tiles).unique(dim=0)
    assert patterns.shape[0] == 2 * 2 * 3 * 2


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_kept_weights_are_scaled_up_and_the_rate_is_met(engine, name):
    score = make_score(name, 2)
    query, key = torch.zeros(8, 2, 40, 4).double(), torch.zeros(8, 2, 50, 4).double()
    value = torch.eye(50, dtype=torch.float64).expand(8, 2, 50, 50)
    weights = seeded(0, [query, key, value], score, engine)
    kept = weights[weights > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 50 / (1 - RATE)))
    # 32,000 weights: five standard deviations are 0.013.
    assert kept.numel() / weights.numel() == pytest.approx(1 - RATE, abs=0.013)


@pytest.mark.parametrize(("engine", "name"), QUICK_PAIRS)
def test_the_expectation_is_the_output_without_dropout(engine, name):
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(1, 2, 3, 6)]
    many = [x.expand(4000, -1, -1, -1) for x in tensors]
    mean = seeded(0, many, score, engine).mean(0, keepdim=True)
    expected = regard.attention(*tensors, score, engine=engine)
    torch.testing.assert_close(mean, expected, atol=0.06, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_the_backward_drops_what_the_forward_dropped(engine, name, masked, tiny_tiles):
    """Finite differences with the seed held fixed: a second mask in the backward would show."""
    score, tensors = make_score(name, 1), inputs(1, 1, 2, tiny_tiles + 2)
    mask = Mask.causal() if masked else None

    def function(*arguments):
        return seeded(3, arguments[:3], score, engine, mask=mask)

    assert torch.autograd.gradcheck(function, (*tensors, *score.parameters()), fast_mode=True)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_weights_and_statistics_are_those_before_dropout(engine, name):
    score, tensors = make_score(name, 2), inputs()
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
    plain = regard.attend(*tensors, score, want=want, engine=engine)
    dropped = regard.attend(*tensors, score, want=want, dropout=0.9, engine=engine)
    for field in want:
        assert torch.equal(getattr(dropped, field), getattr(plain, field)), field
    assert not torch.equal(dropped.output, plain.output)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"sink": torch.zeros(2).double()}])
@pytest.mark.parametrize(("engine", "name"), QUICK_PAIRS)
def test_dropout_comes_after_sink_and_hard_look_up(engine, name, options):
    """Each output is that without dropout times 0 or 1 / (1 - p), where one key has all weight."""
    score, tensors = make_score(name, 2), inputs(queries=50, keys=1)
    plain = regard.attention(*tensors, score, engine=engine, **options)
    dropped = seeded(0, tensors, score, engine, **options)
    ratio = (dropped / plain)[..., 0]
    allowed = torch.tensor([0.0, 1 / (1 - RATE)], dtype=torch.float64)
    assert ((ratio.unsqueeze(-1) - allowed).abs() < 1e-9).any(-1).all()
    assert 0 < (ratio > 0).double().mean() < 1


@pytest.mark.parametrize("dropout", [1e-9, 0.999])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_extreme_rates(engine, name, dropout):
    score, tensors = make_score(name, 2), inputs()
    output = regard.attention(*tensors, score, dropout=dropout, engine=engine)
    assert all_finite(output, *gradients(output, tensors))


def test_sdpa_refuses_dropout_on_the_cpu():
    with pytest.raises(regard.EngineRefused, match="dropout"):
        regard.attention(*inputs(), dropout=0.1, engine="sdpa")
