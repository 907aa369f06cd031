"""Monotonic attention: both formulas, hard and soft, long sources."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.nn.seq2seq import Location, MonotonicAttention, expected_alignment, hard_alignment
from regard.stabilize import SoftCapped

B, T, L, Q, K, E = 3, 5, 8, 5, 6, 8
LENGTHS = torch.tensor([8, 5, 2])


def additive(heads: int = 1) -> regard.Score:
    return regard.Projected(regard.Additive(E, heads), Q, K)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, T, Q, dtype=torch.float64), torch.randn(B, L, K, dtype=torch.float64)


def start(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).index_fill(-1, torch.tensor([0]), 1.0)


def by_enumeration(stop: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """The definition: start at k, walk on past k..j-1, stop at j."""
    alpha = torch.zeros_like(stop)
    for j in range(stop.shape[-1]):
        for k in range(j + 1):
            walked = (1 - stop[..., k:j]).prod(-1)
            alpha[..., j] += previous[..., k] * walked * stop[..., j]
    return alpha


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9])
def test_all_formulas_agree(length):
    stop = torch.rand(4, length, dtype=torch.float64)
    previous = torch.rand(4, length, dtype=torch.float64).softmax(-1)
    expected = by_enumeration(stop, previous)
    closed = (
        stop * (walk := torch.cumprod(1 - stop, -1) / (1 - stop)) * (previous / walk).cumsum(-1)
    )
    for got in (
        expected_alignment(stop, previous, "parallel"),
        expected_alignment(stop, previous, "recursive"),
        closed,
    ):
        torch.testing.assert_close(got, expected)


def test_gradients_of_parallel_and_recursive_agree_and_are_right():
    stop = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    previous = start((2, 6)).requires_grad_()  # zeros: a formula in logarithms would fail here
    for method in ("parallel", "recursive"):
        torch.autograd.gradcheck(
            lambda p, a, m=method: expected_alignment(p, a, m), (stop, previous)
        )


@pytest.mark.parametrize("level", [-8.0, 0.0, 3.0, 20.0])
def test_a_thousand_keys_in_single_precision(level):
    """cumprod(1 - p) is 0 in fp32 after some hundred keys: the closed form gives NaN or nothing."""
    length, steps = 1000, 20
    logits = level + torch.randn(steps, length)
    alphas = {}
    for method, dtype in (
        ("parallel", torch.float32),
        ("recursive", torch.float32),
        ("parallel", torch.float64),
    ):
        stop = torch.sigmoid(logits.to(dtype)).requires_grad_()
        alpha, rows = start((length,), dtype), []
        for t in range(steps if method == "parallel" else 2):
            alpha = expected_alignment(stop[t], alpha, method)
            rows.append(alpha)
        (grad,) = torch.autograd.grad((torch.stack(rows) * torch.arange(length)).sum(), stop)
        assert grad.isfinite().all()
        alphas[method, dtype] = torch.stack(rows).detach()
    exact = alphas["parallel", torch.float64]
    torch.testing.assert_close(
        alphas["parallel", torch.float32].double(), exact, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        alphas["recursive", torch.float32].double(), exact[:2], rtol=1e-4, atol=1e-6
    )
    assert (exact.sum(-1) <= 1 + 1e-9).all()


def test_hard_is_expected_alignment_of_certain_stops():
    previous = start((20, L))
    for _ in range(T):
        stop = (torch.rand(20, L, dtype=torch.float64) > 0.7).double()
        hard = hard_alignment(stop, previous)
        torch.testing.assert_close(hard, expected_alignment(stop, previous))
        previous = hard
    assert (previous.sum(-1) == 0).any() and (previous.sum(-1) == 1).any()


def test_hard_attention_never_goes_back_and_ends_past_the_last_key():
    attention = MonotonicAttention(additive(heads=2), offset=0.0).double().eval()
    query, keys = tensors()
    memory = attention.prepare(keys, lengths=LENGTHS)
    context, weights, _ = attention(query, memory)
    place = torch.where(weights.sum(-1) > 0, weights.argmax(-1), L)
    assert ((weights == 0) | (weights == 1)).all()
    assert (place.diff(dim=-1) >= 0).all()
    at = place.clamp(max=L - 1).permute(0, 2, 1)[..., None].expand(-1, -1, -1, K)
    value = keys[:, None].expand(-1, T, -1, -1).gather(2, at)
    expected = torch.where(place.permute(0, 2, 1)[..., None] < L, value, 0).flatten(2)
    torch.testing.assert_close(context, expected)


def test_soft_steps_are_expected_alignments_of_the_scores():
    attention = MonotonicAttention(additive(), noise=0.0, offset=0.5).double()
    query, keys = tensors()
    memory = attention.prepare(keys, lengths=LENGTHS)
    context, weights, state = attention(query, memory)
    logits = regard.score(query, keys, attention.score) + attention.offset
    stop = torch.sigmoid(logits).masked_fill(torch.arange(L) >= LENGTHS[:, None, None], 0)
    alpha = start((B, L))
    for t in range(T):
        alpha = by_enumeration(stop[:, t], alpha)
        torch.testing.assert_close(weights[:, 0, t], alpha)
    torch.testing.assert_close(context, weights[:, 0] @ keys)
    torch.testing.assert_close(state.total, weights.sum(2))
    context.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in attention.parameters())


def test_noise_is_for_training_alone():
    query, keys = tensors()
    attention = MonotonicAttention(additive(), hard=False).double()
    memory = attention.prepare(keys)
    assert not torch.equal(attention(query, memory).weights, attention(query, memory).weights)
    attention.eval()
    assert torch.equal(attention(query, memory).weights, attention(query, memory).weights)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: MonotonicAttention(additive(2), noise=0.0, location=Location(3, 2), coverage=True),
        lambda: MonotonicAttention(regard.Bilinear(Q, K), noise=0.0, coverage=True),
        lambda: MonotonicAttention(
            SoftCapped(regard.Bilinear(Q, K), 0.5), noise=0.0, window=(1, 1)
        ),
    ],
    ids=["additive", "bilinear", "capped"],
)
def test_padding_has_weight_zero_and_does_not_matter(build, training):
    attention, (query, keys) = build().double().train(training), tensors()
    filled = keys.masked_fill(torch.arange(L)[:, None] >= LENGTHS[:, None, None], torch.nan)
    context, weights, _ = attention(query, attention.prepare(filled, lengths=LENGTHS))
    for b, length in enumerate(LENGTHS):
        assert (weights[b, ..., length:] == 0).all()
        alone = attention(query[b : b + 1], attention.prepare(keys[b : b + 1, :length]))
        torch.testing.assert_close(context[b], alone.context[0])
        # Padding on the left is walked past as well.
        moved, mask = keys[b : b + 1].roll(L - int(length), 1), torch.arange(L) >= L - length
        left = attention(query[b : b + 1], attention.prepare(moved, visible=mask[None]))
        torch.testing.assert_close(left.context, alone.context)


def test_a_soft_cap_of_the_score_holds():
    attention = MonotonicAttention(SoftCapped(regard.Dot(), 0.5), offset=0.0, noise=0.0).double()
    keys = 100 * torch.ones(1, 3, 2, dtype=torch.float64)
    weights = attention(keys[:, 0], attention.prepare(keys)).weights
    torch.testing.assert_close(weights[0, 0, 0], torch.sigmoid(torch.tensor(0.5).double()))


def test_nothing_to_attend_to():
    for module in (MonotonicAttention(additive()), MonotonicAttention(additive()).eval()):
        query, keys = (x.float() for x in tensors())
        found = module(query, module.prepare(keys, lengths=[0, 0, 2]))
        assert (found.weights[:2] == 0).all() and (found.context[:2] == 0).all()
        assert module(query, module.prepare(keys[:, :0])).context.shape == (B, T, K)


def test_reset_puts_the_offset_back():
    attention = MonotonicAttention(additive(heads=2), offset=-3.0)
    assert torch.equal(attention.offset, torch.tensor([-3.0, -3.0]))
    with torch.no_grad():
        attention.offset.add_(5)
    attention.reset_parameters()
    assert torch.equal(attention.offset, torch.tensor([-3.0, -3.0]))


@pytest.mark.parametrize("score", [additive, lambda: regard.Gaussian(), lambda: "dot"])
def test_the_reference_engine_gives_the_same(score):
    query, keys = tensors()
    query = torch.randn(B, T, K, dtype=torch.float64) if score is not additive else query
    plain = MonotonicAttention(score(), noise=0.0, coverage=True).double()
    reference = MonotonicAttention(score(), noise=0.0, coverage=True, engine="reference").double()
    reference.load_state_dict(plain.state_dict())
    memory = plain.prepare(keys, lengths=LENGTHS)
    torch.testing.assert_close(reference(query, memory), plain(query, memory))


def test_wrong_settings():
    with pytest.raises(ValueError, match="engine must be 'reference', got 'sdpa'"):
        MonotonicAttention(additive(), engine="sdpa")
    with pytest.raises(ValueError, match="noise must be a number of 0 or more, got -1"):
        MonotonicAttention(additive(), noise=-1)
    with pytest.raises(ValueError, match="'parallel' or 'recursive', got 'closed'"):
        expected_alignment(torch.rand(3), torch.rand(3), "closed")
    with pytest.raises(ValueError, match="offset must be a finite number, got nan"):
        MonotonicAttention(regard.Dot(), offset=float("nan"))
    with pytest.raises(TypeError, match="hard must be True, False or None, got 'no'"):
        MonotonicAttention(regard.Dot(), hard="no")
