"""Few keys, or none: NaN stays NaN, and what no pair reads stays out of every gradient."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

NAN = float("nan")
SCORES = {
    "scaled_dot": lambda: regard.ScaledDot(),
    "cosine": lambda: regard.Cosine(1),
    "gaussian": lambda: regard.Gaussian(heads=1),
    "bilinear": lambda: regard.Bilinear(4, 4),
    "low_rank": lambda: regard.LowRank(4, 4, 2),
    "additive": lambda: regard.Projected(regard.Additive(4), 4, 4),
    "gatv2": lambda: regard.GATv2(4),
    "gat": lambda: regard.GAT(4),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keys", [1, 3, 15, 16, 17])
def test_rows_of_nan_scores_are_nan(keys: int, dtype: torch.dtype) -> None:
    """SDPA's CPU kernel takes them for masked rows below 16 keys, and would give 0."""
    query, value = torch.randn(1, 2, 3, 4, dtype=dtype), torch.randn(1, 2, keys, 4, dtype=dtype)
    key = torch.full((1, 2, keys, 4), NAN, dtype=dtype)
    for engine in (None, "sdpa", "reference"):
        assert regard.attention(query, key, value, engine=engine).isnan().all()


@pytest.mark.parametrize("keys", [2, 15, 16])
@pytest.mark.parametrize(
    "mask", [Mask.causal("top_left"), Mask.lengths(keys=[1])], ids=["causal", "lengths"]
)
def test_a_hidden_nan_key_does_not_make_a_row_nan(mask: Mask, keys: int) -> None:
    """The rows that do not see the NaN are those of the reference."""
    query, value = torch.randn(1, 1, keys, 4), torch.randn(1, 1, keys, 4)
    key = torch.randn(1, 1, keys, 4)
    key[..., -1, :] = NAN
    expected = regard.attention(query, key, value, mask=mask, engine="reference")
    found = regard.attention(query, key, value, mask=mask, engine="cpu")
    torch.testing.assert_close(found, expected, equal_nan=True)
    lengths = mask.key_lengths is not None
    found = regard.attention(query, key, value, mask=mask)
    if lengths:  # hidden from every query: the promise of every engine
        torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[..., -1, :].isnan().all() == expected[..., -1, :].isnan().all()


def test_scores_of_minus_infinity_give_what_the_reference_gives() -> None:
    """All -inf without a mask is a row that sees nothing; inf - inf is NaN."""
    query, value = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2)
    for entries in ((-torch.inf, -torch.inf), (torch.inf, -torch.inf), (torch.inf, torch.inf)):
        key = torch.tensor(entries).expand(1, 1, 3, 2)
        expected = regard.attention(query, key, value, engine="reference")
        found = regard.attention(query, key, value)
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_large_fp16_products_are_not_taken_for_nan() -> None:
    """A sum above 65,504 overflows fp16, but not the kernel's fp32."""
    query = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)
    key, value = query.expand(1, 1, 3, 64), torch.ones(1, 1, 3, 64, dtype=torch.float16)
    assert regard.attention(query, key, value).eq(1).all()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (3, 0)])
@pytest.mark.parametrize("engine", [None, "reference", "cpu"])
def test_what_has_no_partner_reaches_no_gradient(
    name: str, queries: int, keys: int, engine: str | None
) -> None:
    """NaN in keys without a query, or in queries without a key."""
    score = SCORES[name]()
    query = torch.full((1, 1, queries, 4), NAN, requires_grad=True)
    key = torch.full((1, 1, keys, 4), NAN, requires_grad=True)
    value = torch.full((1, 1, keys, 2), NAN, requires_grad=True)
    out = regard.attention(query, key, value, score, engine=engine)
    assert out.eq(0).all()
    out.sum().backward()
    for x in (query, key, value, *score.parameters()):
        assert x.grad is None or x.grad.eq(0).all()


@pytest.mark.parametrize("empty", ["query", "key", "value"])
def test_an_empty_batch_reaches_no_gradient_of_what_it_shares(empty: str) -> None:
    """The other two have a batch of 1, which broadcasts to none."""
    score = regard.Bilinear(4, 4)
    given = {
        name: torch.full((0 if name == empty else 1, 1, 3, 4), NAN, requires_grad=True)
        for name in ("query", "key", "value")
    }
    regard.attention(**given, score=score).sum().backward()
    for x in (*given.values(), score.weight):
        assert x.grad is not None and x.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("keys", [0, 5])
@pytest.mark.parametrize("name", SCORES)
def test_lowered_keys_serve_half_precision(name: str, keys: int, dtype: torch.dtype) -> None:
    """GAT lowers its keys to fp32 logits; the output has the dtype of the query all the same."""
    score = SCORES[name]().to(dtype)
    query, key = torch.randn(1, 1, 3, 4, dtype=dtype), torch.randn(1, 1, keys, 4, dtype=dtype)
    value = torch.randn(1, 1, keys, 2, dtype=dtype)
    found = regard.attention(query, score.key(key), value, score)
    assert found.dtype == dtype
    torch.testing.assert_close(found, regard.attention(query, key, value, score))
