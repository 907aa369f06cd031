"""Any strides, for every operand and for the incoming gradient.

pytorch#112577, #187506, #191937: kernels that assumed a layout read the wrong numbers.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import PAIRS, SHORT_PAIRS, assert_same, draw, gradients, inputs, make_score


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def sliced(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"))
    wide[..., 1::2] = x
    return wide[..., 1::2]


def offset(x: Tensor) -> Tensor:
    """A view into a larger buffer, as a slice of packed query, key and value is."""
    room = x.new_full((x.numel() + 7,), float("nan"))
    room[5 : 5 + x.numel()] = x.reshape(-1)
    return room[5 : 5 + x.numel()].view(x.shape)


def heads_last(x: Tensor) -> Tensor:
    """(B, L, H, D) memory behind (B, H, L, D), as most models have it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def batch_last(x: Tensor) -> Tensor:
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


def expanded(x: Tensor) -> Tensor:
    """Stride 0 over batch and heads."""
    return x[:1, :1].expand(x.shape)


def expanded_length(x: Tensor) -> Tensor:
    """Stride 0 over the length."""
    return x[:, :, :1].expand(x.shape)


def expanded_width(x: Tensor) -> Tensor:
    """Stride 0 over the last dim."""
    return x[..., :1].expand(x.shape)


LAYOUTS = [
    transposed,
    sliced,
    offset,
    heads_last,
    batch_last,
    expanded,
    expanded_length,
    expanded_width,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_every_operand_in_every_layout(engine, name, layout):
    score, plain = make_score(name, 2), [x.detach() for x in inputs()]
    laid = [layout(x) for x in plain]
    found = []
    for given in (laid, [x.contiguous() for x in laid]):
        tensors = [x.detach().requires_grad_() for x in given]
        output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
        found.append([output, *gradients(output, [*tensors, *score.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_the_incoming_gradient_in_every_layout(engine, name, masked, layout):
    """flash-attention's dO: `output.sum()` hands back a gradient of stride 0."""
    score, tensors = make_score(name, 2), inputs()
    mask = Mask.lengths(keys=torch.tensor([4, 6])) if masked else None
    output = regard.attention(*tensors, score, mask=mask, engine=engine)
    grad = layout(draw(*output.shape))
    wanted = [*tensors, *score.parameters()]
    expected = torch.autograd.grad(output, wanted, grad.contiguous(), retain_graph=True)
    assert_same(list(torch.autograd.grad(output, wanted, grad)), list(expected))


@pytest.mark.parametrize("layout", [transposed, sliced, batch_last, expanded, expanded_width])
@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_masks_and_biases_in_every_layout(engine, layout):
    tensors = [x.detach() for x in inputs()]
    mask, bias = layout(draw(2, 2, 5, 6)) > -0.5, layout(draw(2, 2, 5, 6))
    plain = regard.attention(
        *tensors, mask=mask.contiguous(), bias=bias.contiguous(), engine=engine
    )
    output = regard.attention(*tensors, mask=mask, bias=bias, engine=engine)
    assert_same([output], [plain])


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_temperatures_and_sinks_of_stride_0(engine):
    tensors = inputs()
    temperature = draw(1, 1, 1, 1).abs().expand(2, 2, 5, 1).requires_grad_()
    sink = draw(1).expand(2).requires_grad_()
    wanted = [temperature, sink]
    found = []
    for t, s in ((temperature, sink), (temperature.contiguous(), sink.contiguous())):
        output = regard.attention(*tensors, temperature=t, sink=s, engine=engine)
        found.append([output, *gradients(output, wanted)])
    assert_same(*found)


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_gradients_reach_the_base_of_an_expanded_input(engine, name):
    """The gradient of a stride-0 input is the sum over its copies."""
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(batch=1)]
    bases = [x[:, :1].clone().requires_grad_() for x in tensors]
    output = regard.attention(*(x.expand(3, 2, -1, -1) for x in bases), score, engine=engine)
    copies = [x.detach().repeat(3, 2, 1, 1).requires_grad_() for x in bases]
    expected = regard.attention(*copies, score, engine="reference")
    summed = [x.sum((0, 1), keepdim=True) for x in gradients(expected, copies)]
    assert_same([output, *gradients(output, bases)], [expected, *summed])


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_inputs_are_left_as_they_were(engine, name):
    score, tensors = make_score(name, 2), inputs()
    before = [x.detach().clone() for x in [*tensors, *score.parameters()]]
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    gradients(output, tensors)
    for x, copy in zip([*tensors, *score.parameters()], before, strict=True):
        assert torch.equal(x, copy)


@pytest.mark.parametrize("same", ["query and key", "key and value", "all"])
@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_one_tensor_in_several_places(engine, name, same):
    """Self-attention without projections: gradients of all uses add up."""
    score = make_score(name, 2)
    x, y = draw(2, 2, 5, 4).requires_grad_(), draw(2, 2, 5, 4).requires_grad_()
    call = {"query and key": (x, x, y), "key and value": (y, x, x), "all": (x, x, x)}[same]
    output = regard.attention(*call, score, engine=engine)
    apart = [t.detach().clone().requires_grad_() for t in call]
    expected = regard.attention(*apart, score, engine="reference")
    pieces = gradients(expected, apart)
    wanted = sum(piece for piece, t in zip(pieces, call, strict=True) if t is x)
    assert_same([output, *gradients(output, [x])], [expected, wanted])
