"""Log-sum-exp and entropy where one key has nearly all weight: log(1 + rest) by a series of rest."""

from __future__ import annotations

import pytest
import torch

import regard

pytestmark = pytest.mark.interpreted
# On both sides of where the series ends, at 1e-4 in fp64 and at 1e-2 in fp32.
RESTS = (1e-9, 1e-6, 8e-5, 0.99e-4, 1.01e-4, 3e-3, 0.99e-2, 1.01e-2, 0.1, 1.0)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_a_small_rest_keeps_its_digits(dtype, error):
    """Two keys, the second with `rest` of the weight of the first: lse = log(1 + rest) in relative terms."""
    query = torch.tensor(RESTS, dtype=torch.float64).log().to(dtype)[:, None]
    key = torch.tensor([[0.0], [1.0]], dtype=dtype)
    value = torch.ones(2, 1, dtype=dtype)
    found = regard.attend(query, key, value, score="dot", engine="triton", want=("lse", "entropy"))
    logit = query[:, 0].double()
    rest = logit.exp()
    lse = rest.log1p()
    entropy = lse - logit * rest / (1 + rest)
    torch.testing.assert_close(found.lse.double(), lse, rtol=error, atol=0)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=error, atol=0)
