"""What code written for `torch.nn.MultiheadAttention` relies on: types of errors, nested tensors, dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard.nn
from regard.nn import MultiheadAttention, from_torch

DIM, HEADS = 8, 2
PROTOTYPE = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
x = torch.randn(3, 2, DIM)


def call(*args, **kwargs):
    return lambda kind: kind(DIM, HEADS)(*args, **kwargs)


def wide(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


# Calls that torch's module refuses.
REFUSED = {
    "heads that do not divide": lambda kind: kind(9, 2),
    "no heads": lambda kind: kind(8, 0),
    "query width": call(wide(3, 2, 7), x, x),
    "key width": call(x, wide(3, 2, 7), x),
    "key and value width": call(x, wide(3, 2, 7), wide(3, 2, 7)),
    "4 dims": call(*[wide(1, 3, 2, 8)] * 3),
    "mixed dims": call(x, x[:, 0], x[:, 0]),
    "batch": call(x, wide(3, 4, 8), wide(3, 4, 8)),
    "key and value length": call(x, wide(4, 2, 8), wide(5, 2, 8)),
    "dtype": call(*[x.double()] * 3),
    "integers": call(*[x.long()] * 3),
    "device": call(*[x.to("meta")] * 3),
    "missing value": call(x, x),
    "padding of integers": call(x, x, x, key_padding_mask=torch.zeros(2, 3, dtype=torch.long)),
    "padding shape": call(x, x, x, key_padding_mask=torch.zeros(3, 3, dtype=torch.bool)),
    "padding without batch": call(x, x, x, key_padding_mask=torch.zeros(3, dtype=torch.bool)),
    "padding that is a list": call(x, x, x, key_padding_mask=[[False] * 3] * 2),
    "mask of integers": call(x, x, x, attn_mask=torch.zeros(3, 3, dtype=torch.long)),
    "mask shape": call(x, x, x, attn_mask=torch.zeros(3, 4)),
    "mask for each sequence": call(x, x, x, attn_mask=torch.zeros(2, 3, 3)),
    "mask of 4 dims": call(x, x, x, attn_mask=torch.zeros(2, 2, 3, 3)),
    "causal without mask": call(x, x, x, is_causal=True),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_of_torchs_types_too(case: str) -> None:
    with pytest.raises(Exception) as theirs:  # whichever it is
        REFUSED[case](nn.MultiheadAttention)
    with pytest.raises(theirs.type) as ours:
        REFUSED[case](MultiheadAttention)
    assert isinstance(ours.value, (ValueError, TypeError))  # and of the library's own


def jagged(*lengths: int, grad: bool = False) -> torch.Tensor:
    rows = [torch.randn(n, DIM) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


@pytest.mark.parametrize("score", [None, "additive"])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_jagged_tensors(score, weights: bool, training: bool) -> None:
    """Each sequence as if it were alone, which is what torch's module gives one by one."""
    module = from_torch(nn.MultiheadAttention(DIM, HEADS, batch_first=True), score).train(training)
    tokens = jagged(3, 1, 5, grad=True)
    found, returned = module(tokens, tokens, tokens, need_weights=weights)
    assert found.layout == torch.jagged and (returned is not None) == weights
    for one, row in zip(found.unbind(), tokens.unbind(), strict=True):
        torch.testing.assert_close(one, module(row, row, row)[0], atol=1e-5, rtol=1e-5)
    # A residual connection adds tensors that share their offsets.
    total = (found + tokens).values().square().sum()
    total.backward()
    leaf = tokens.detach().values().requires_grad_()
    alone = [module(row, row, row)[0] + row for row in leaf.split([3, 1, 5])]
    (wanted,) = torch.autograd.grad(torch.cat(alone).square().sum(), leaf)
    torch.testing.assert_close(tokens.grad.values(), wanted, atol=1e-4, rtol=1e-4)


def test_jagged_queries_over_other_keys() -> None:
    module = MultiheadAttention(DIM, HEADS, batch_first=True)
    query, key = jagged(2, 4), jagged(5, 3)
    found = module(query, key, key)[0]
    for one, q, k in zip(found.unbind(), query.unbind(), key.unbind(), strict=True):
        torch.testing.assert_close(one, module(q, k, k)[0], atol=1e-6, rtol=1e-5)


def test_jagged_tensors_with_gaps_and_empty_sequences() -> None:
    module = MultiheadAttention(DIM, HEADS, batch_first=True)
    values = torch.randn(9, DIM)
    values[2:4] = torch.nan  # belongs to no sequence
    tokens = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([0, 4, 4, 9]), lengths=torch.tensor([2, 0, 5])
    )
    found = module(tokens, tokens, tokens)[0]
    assert [len(row) for row in found.unbind()] == [2, 0, 5]
    alone = values[4:]
    torch.testing.assert_close(
        found.unbind()[2], module(alone, alone, alone)[0], atol=1e-6, rtol=1e-5
    )
    assert found.values().isfinite().all()


@PROTOTYPE
def test_nested_tensors_that_are_refused() -> None:
    module = MultiheadAttention(DIM, HEADS, batch_first=True)
    one = jagged(2, 3)
    strided = torch.nested.nested_tensor([torch.randn(2, DIM), torch.randn(3, DIM)])
    padded = torch.randn(2, 3, DIM)
    with pytest.raises(AssertionError, match="query nested, jagged, key nested, strided"):
        module(one, strided, strided)
    with pytest.raises(AssertionError, match=r"value a tensor of shape \(2, 3, 8\)"):
        module(one, one, padded)
    with pytest.raises(ValueError, match=r"and no masks.*to_padded_tensor.*and a mask"):
        module(one, one, one, attn_mask=torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"as many values as keys, got lengths \[2, 3\].*\[1, 4\]"):
        module(one, one, jagged(1, 4))
    with pytest.raises(ValueError, match=r"nested query must be .batch, length, dim.*transpose"):
        module(*[one.transpose(1, 2)] * 3)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_float_masks_of_another_dtype(name: str, dtype: torch.dtype, weights: bool) -> None:
    """Torch takes them in the dtype of the query alone; here the numbers are what counts."""
    theirs = nn.MultiheadAttention(DIM, HEADS)
    ours = from_torch(theirs)
    mask = torch.randn((3, 3) if name == "attn_mask" else (2, 3)).to(dtype)
    mask[0, 1] = -torch.inf
    wanted = theirs(x, x, x, need_weights=weights, **{name: mask.float()})
    found = ours(x, x, x, need_weights=weights, **{name: mask})
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    mask = mask.nan_to_num(neginf=0).requires_grad_()
    ours(x, x, x, need_weights=weights, **{name: mask})[0].square().sum().backward()
    assert mask.grad.dtype == dtype and mask.grad.abs().max() > 0


@pytest.mark.parametrize(
    "module",
    [
        MultiheadAttention(DIM, HEADS),
        nn.Sequential(nn.Linear(2, 2), regard.nn.SelfAttention(DIM, HEADS, "additive")),
        regard.nn.GraphAttention(DIM, 4, 2),
        regard.nn.EncoderBlock(DIM, HEADS),
        regard.Additive(4, 2),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torchscript_is_refused_in_one_sentence(module: nn.Module) -> None:
    with pytest.raises(RuntimeError, match=r"TorchScript.*torch\.compile.*torch\.export") as error:
        torch.jit.script(module)
    assert "\n" not in str(error.value)
