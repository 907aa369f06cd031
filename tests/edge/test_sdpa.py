"""What the SDPA engine does differently when no gradient is asked for."""

import pytest
import torch

import regard


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lead", [(1,), (2,), (2, 3)])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_terms_of_the_key_alone_without_gradient(dtype, lead, key_heads):
    """Without gradient beta travels as a mask, with gradient as columns: both are the score."""
    score = regard.Gaussian(heads=key_heads).to(dtype)
    with torch.no_grad():
        score.log_factor.copy_(torch.linspace(-0.3, 0.4, key_heads))
    query = torch.randn(*lead, 4, 19, 8, dtype=dtype)
    key, value = (torch.randn(*lead, key_heads, 21, 8, dtype=dtype) for _ in "kv")
    call = lambda engine: regard.attention(  # noqa: E731
        query, key, value, score, temperature=0.7, engine=engine
    )
    with torch.no_grad():
        ours, wanted = call("sdpa"), call("reference")
    tolerance = {torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-6}[dtype]
    torch.testing.assert_close(ours, wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, call("sdpa").detach(), rtol=tolerance, atol=tolerance)
