"""`MultiheadAttention` beside `torch.nn.MultiheadAttention`: output, weights, gradients, parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.nn.multihead import MultiheadAttention

BATCH, QUERIES, KEYS, DIM, HEADS = 2, 4, 5, 12, 3
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "bias_kv and zero": {"add_bias_kv": True, "add_zero_attn": True},
    "kdim": {"kdim": 7},
    "kdim and vdim": {"kdim": 7, "vdim": 9, "add_bias_kv": True, "bias": False},
}
LAYOUTS = {"batch first": True, "length first": False, "no batch": None}
WEIGHTS = [
    {"need_weights": True},
    {"need_weights": True, "average_attn_weights": False},
    {"need_weights": False},
]


def hidden(*shape: int) -> torch.Tensor:
    """A random boolean mask that hides no row completely."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).masked_fill(hidden(*shape), -torch.inf)


def padding_shape(layout: str, keys: int) -> tuple[int, ...]:
    return (keys,) if layout == "no batch" else (BATCH, keys)


def each_head(layout: str) -> int:
    return HEADS if layout == "no batch" else BATCH * HEADS


MASKS = {
    "none": lambda layout, q, k: {},
    "padding": lambda layout, q, k: {"key_padding_mask": hidden(*padding_shape(layout, k))},
    "float padding": lambda layout, q, k: {"key_padding_mask": floats(*padding_shape(layout, k))},
    "pairs": lambda layout, q, k: {"attn_mask": hidden(q, k)},
    "float pairs": lambda layout, q, k: {"attn_mask": floats(q, k)},
    "heads": lambda layout, q, k: {"attn_mask": hidden(each_head(layout), q, k)},
    "float heads": lambda layout, q, k: {"attn_mask": floats(each_head(layout), q, k)},
    "both": lambda layout, q, k: {
        "attn_mask": hidden(q, k),
        "key_padding_mask": hidden(*padding_shape(layout, k)),
    },
    "both float": lambda layout, q, k: {
        "attn_mask": floats(each_head(layout), q, k),
        "key_padding_mask": floats(*padding_shape(layout, k)),
    },
}


def pair(**options) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """Both modules with the same parameters, none of them 0."""
    theirs = nn.MultiheadAttention(DIM, HEADS, dtype=torch.float64, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = MultiheadAttention(DIM, HEADS, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(layout: str, options: dict, alone: bool) -> list[torch.Tensor]:
    """Query, key and value; one tensor for all with `alone`."""

    def make(length: int, dim: int) -> torch.Tensor:
        sizes = {"batch first": (BATCH, length), "length first": (length, BATCH)}
        return torch.randn(*sizes.get(layout, (length,)), dim, dtype=torch.float64)

    if alone:
        return [make(KEYS, DIM)] * 3
    return [
        make(QUERIES, DIM),
        make(KEYS, options.get("kdim", DIM)),
        make(KEYS, options.get("vdim", DIM)),
    ]


def run(module: nn.Module, tensors: list[torch.Tensor], call: dict) -> tuple:
    """Output, weights, and the gradients of inputs and parameters through both."""
    made: dict[int, torch.Tensor] = {}
    given = [made.setdefault(id(x), x.clone().requires_grad_()) for x in tensors]
    output, weights = module(*given, **call)
    loss = (
        output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    ).sum()
    if weights is not None:
        loss = loss + weights.square().sum()
    wanted = [*made.values(), *module.parameters()]
    return output, weights, torch.autograd.grad(loss, wanted)


def assert_alike(theirs: nn.Module, ours: nn.Module, tensors: list, call: dict) -> None:
    found, wanted = run(ours, tensors, call), run(theirs, tensors, call)
    for got, want in zip((*found[:2], *found[2]), (*wanted[:2], *wanted[2]), strict=True):
        assert (got is None) == (want is None)
        assert got is None or (got.shape == want.shape and torch.allclose(got, want, atol=1e-10))


# Every mask with every option in one layout, and with the fewest and the most options in the others.
CASES = [(mask, options, "batch first") for mask in MASKS for options in OPTIONS] + [
    (mask, options, layout)
    for mask in MASKS
    for options in ("plain", "bias_kv and zero")
    for layout in ("length first", "no batch")
]


@pytest.mark.parametrize(("mask", "options", "layout"), CASES)
def test_as_torch(mask, options, layout):
    options = OPTIONS[options]
    theirs, ours = pair(batch_first=bool(LAYOUTS[layout]), **options)
    for alone in (False, True) if "kdim" not in options else (False,):
        tensors = inputs(layout, options, alone)
        queries = KEYS if alone else QUERIES
        masks = MASKS[mask](layout, queries, KEYS)
        for weights in WEIGHTS:
            assert_alike(theirs, ours, tensors, masks | weights)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_causal_hint_as_torch(weights, padded):
    theirs, ours = pair()
    causal = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=torch.float64)
    call = weights | {"attn_mask": causal, "is_causal": True}
    if padded:
        call["key_padding_mask"] = floats(BATCH, KEYS)
    assert_alike(theirs, ours, inputs("length first", {}, True), call)


def test_causal_hint_is_top_left_aligned_as_in_torch():
    theirs, ours = pair(batch_first=True)
    mask = torch.ones(QUERIES, KEYS).triu(1).bool()
    call = {"attn_mask": mask, "is_causal": True, "need_weights": False}
    assert_alike(theirs, ours, inputs("batch first", {}, False), call)


def test_key_is_value_but_not_the_query():
    theirs, ours = pair(batch_first=True)
    memory = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    query = torch.randn(BATCH, QUERIES, DIM, dtype=torch.float64)
    for weights in WEIGHTS:
        assert_alike(theirs, ours, [query, memory, memory], weights)


@pytest.mark.parametrize("average", [True, False])
def test_weights_in_training_are_those_after_dropout_as_in_torch(average):
    """From one seed both drop the same weights."""
    theirs, ours = pair(dropout=0.5, add_zero_attn=True)
    tensors = inputs("length first", {}, False)
    call = {"average_attn_weights": average, "key_padding_mask": hidden(BATCH, KEYS)}
    found = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        found.append(run(module, tensors, call))
    torch.testing.assert_close(found[1], found[0])
    _, weights, _ = found[1]
    assert (weights.sum(-1) - 1).abs().max() > 0.01
    theirs.eval()
    ours.eval()
    assert_alike(theirs, ours, tensors, call)


def test_dropout_acts_with_and_without_weights_in_training_alone():
    module = MultiheadAttention(DIM, HEADS, dropout=0.5)
    x = torch.randn(KEYS, BATCH, DIM)
    for weights in (True, False):
        first, second = (module.train()(x, x, x, need_weights=weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (module.eval()(x, x, x, need_weights=weights)[0] for _ in range(2))
        assert torch.equal(first, second)


def test_dropout_keeps_the_mean():
    module = MultiheadAttention(DIM, HEADS, dropout=0.3).double()
    x = torch.randn(3, 1, DIM, dtype=torch.float64)
    wanted = module.eval()(x, x, x)[0]
    many = x.expand(3, 4000, DIM)
    for weights in (True, False):
        found = module.train()(many, many, many, need_weights=weights)[0].mean(1, keepdim=True)
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_seed_gives_the_parameters_of_torch(options):
    found = []
    for build in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(11)
        found.append(build(DIM, HEADS, **OPTIONS[options]).state_dict())
    theirs, ours = found
    assert list(theirs) == list(ours)
    for name in theirs:
        assert torch.equal(theirs[name], ours[name]), name


@pytest.mark.parametrize("options", OPTIONS)
def test_state_dict_loads_both_ways(options):
    theirs, ours = pair(**OPTIONS[options])
    again = nn.MultiheadAttention(DIM, HEADS, dtype=torch.float64, **OPTIONS[options])
    again.load_state_dict(ours.state_dict())
    for name, parameter in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter)


def test_attributes_that_other_code_reads():
    theirs, ours = nn.MultiheadAttention(DIM, HEADS), MultiheadAttention(DIM, HEADS)
    names = "embed_dim kdim vdim num_heads dropout batch_first head_dim add_zero_attn bias_k bias_v"
    names += " _qkv_same_embed_dim q_proj_weight k_proj_weight v_proj_weight"
    for name in names.split():
        assert getattr(ours, name) == getattr(theirs, name), name
