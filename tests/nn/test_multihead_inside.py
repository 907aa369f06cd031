"""`MultiheadAttention` inside torch's transformer layers, in training and in evaluation.

In evaluation torch's encoder layer reads the weights of its attention and computes the scaled dot
product itself, and `nn.TransformerEncoder` makes nested tensors of padded ones. Every test here
counts calls of our forward.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import regard
from regard.nn.multihead import MultiheadAttention, replace_attention

BATCH, LENGTH, DIM, HEADS = 3, 6, 16, 4
# Said by torch, once, whenever it makes a nested tensor.
PROTOTYPE = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
SCORES = {
    "scaled dot": None,
    "cosine": "cosine",
    "additive": regard.Additive(DIM // HEADS, HEADS),
    "wide additive": regard.Additive(7, HEADS),
}


@pytest.fixture
def calls(monkeypatch) -> list:
    """The modules of ours whose forward has run, in order."""
    seen, forward = [], MultiheadAttention.forward

    def counted(self, *args, **kwargs):
        seen.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(MultiheadAttention, "forward", counted)
    return seen


def layer(**options) -> nn.TransformerEncoderLayer:
    options = {"batch_first": True, "dropout": 0.0} | options
    return nn.TransformerEncoderLayer(DIM, HEADS, 32, **options)


def encoder(**options) -> nn.TransformerEncoder:
    """Two layers; the first is no copy of the second."""
    whole = nn.TransformerEncoder(layer(**options), 2)
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.3)
    return whole


def data() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, DIM)


def padding() -> torch.Tensor:
    return torch.arange(LENGTH) >= torch.tensor([[LENGTH], [4], [1]])


MASKS = {
    "none": dict,
    "padding": lambda: {"src_key_padding_mask": padding()},
    "causal": lambda: {"mask": nn.Transformer.generate_square_subsequent_mask(LENGTH)},
    "97409: heads": lambda: {
        "mask": (torch.rand(BATCH * HEADS, LENGTH, LENGTH) < 0.3) & ~torch.eye(LENGTH).bool()
    },
    "107084: floats": lambda: {"mask": torch.randn(LENGTH, LENGTH)},
}


@PROTOTYPE
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_an_encoder_with_scaled_dot_is_torchs(mask, train, grad, calls):
    theirs = encoder().train(train)
    ours = copy.deepcopy(theirs)
    assert replace_attention(ours) == ["layers.0.self_attn", "layers.1.self_attn"]
    x, call = data(), MASKS[mask]()
    real = ~call.get("src_key_padding_mask", torch.zeros(BATCH, LENGTH).bool())
    with nullcontext() if grad else torch.no_grad():
        found = ours(x, **call)
        # torch's fast path takes any float mask for a boolean one (107084): its slow path is right.
        torch.backends.mha.set_fastpath_enabled("floats" not in mask)
        try:
            wanted = theirs(x, **call)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert calls == [part.self_attn for part in ours.layers]
    torch.testing.assert_close(found[real], wanted[real])
    assert found.shape == (BATCH, LENGTH, DIM)  # 97111: not cut to the longest sequence


@PROTOTYPE
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("score", ["cosine", "additive", "wide additive"])
def test_evaluation_gives_what_training_gives(score, mask, grad, calls):
    """Without dropout the two differ only if something else has run."""
    model, x, call = encoder(), data(), MASKS[mask]()
    dot = copy.deepcopy(model).eval()
    replace_attention(model, SCORES[score])
    real = ~call.get("src_key_padding_mask", torch.zeros(BATCH, LENGTH).bool())
    with nullcontext() if grad else torch.no_grad():
        trained = model.train()(x, **call)
        found = model.eval()(x, **call)
        other = dot(x, **call)
    assert len(calls) == 4
    torch.testing.assert_close(found[real], trained[real])
    assert (found[real] - other[real]).abs().max() > 0.01


@pytest.mark.parametrize("score", SCORES)
def test_one_layer_in_evaluation(score, calls):
    part = layer()
    part.self_attn = MultiheadAttention(DIM, HEADS, batch_first=True, score=SCORES[score])
    part.eval()
    with torch.inference_mode():
        part(data())
        part(data(), src_key_padding_mask=padding())
    assert len(calls) == 2


def test_without_the_hook_the_fast_path_is_refused_and_not_taken():
    part = layer()
    part.self_attn = MultiheadAttention(DIM, HEADS, batch_first=True, score="cosine")
    part.self_attn._forward_pre_hooks.clear()
    with torch.no_grad(), pytest.raises(RuntimeError, match="in place of score 'cosine'"):
        part.eval()(data())


def test_the_hook_survives_copies_and_files(calls, tmp_path):
    part = layer()
    part.self_attn = MultiheadAttention(DIM, HEADS, batch_first=True, score="cosine")
    torch.save(part, tmp_path / "layer")
    for again in (copy.deepcopy(part), torch.load(tmp_path / "layer", weights_only=False)):
        with torch.no_grad():
            again.eval()(data())
    assert len(calls) == 2


@PROTOTYPE
def test_190486_a_sequence_of_padding_alone():
    ignore = padding()
    ignore[1] = True
    model = encoder()
    replace_attention(model)
    for grad in (torch.enable_grad(), torch.no_grad()):
        for train in (True, False):
            with grad:
                found = model.train(train)(data(), src_key_padding_mask=ignore)
            assert found[~ignore].isfinite().all()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_decoder_with_scaled_dot_is_torchs(first, train, calls):
    theirs = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(DIM, HEADS, 32, dropout=0.0, batch_first=first), 2
    ).train(train)
    ours = copy.deepcopy(theirs)
    names = replace_attention(ours)
    assert names == [
        f"layers.{n}.{part}" for n in (0, 1) for part in ("self_attn", "multihead_attn")
    ]
    x, memory = data(), torch.randn(BATCH, 4, DIM)
    if not first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    call = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(LENGTH),
        "tgt_is_causal": True,
        "memory_key_padding_mask": torch.arange(4) >= torch.tensor([[4], [2], [3]]),
    }
    torch.testing.assert_close(ours(x, memory, **call), theirs(x, memory, **call))
    assert len(calls) == 4


@pytest.mark.parametrize("train", [True, False])
def test_a_decoder_with_another_score_is_causal(train):
    """The hint reaches scores of both forms; what comes later changes nothing before it."""
    for score in ("cosine", regard.Additive(5, HEADS)):
        model = nn.TransformerDecoderLayer(DIM, HEADS, 32, dropout=0.0, batch_first=True)
        replace_attention(model, score)
        model.train(train)
        x, memory = data(), data()
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hinted = model(x, memory, tgt_mask=mask, tgt_is_causal=True)
        torch.testing.assert_close(hinted, model(x, memory, tgt_mask=mask))
        x[:, -1] += 1
        after = model(x, memory, tgt_mask=mask, tgt_is_causal=True)
        torch.testing.assert_close(after[:, :-1], hinted[:, :-1])


@PROTOTYPE
def test_a_whole_transformer(calls):
    theirs = nn.Transformer(DIM, HEADS, 1, 1, 32, dropout=0.0, batch_first=True).eval()
    ours = copy.deepcopy(theirs)
    assert len(replace_attention(ours)) == 3
    x, y = data(), data()
    torch.testing.assert_close(ours(x, y), theirs(x, y))
    assert len(calls) == 3


@PROTOTYPE
@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_nested_tensors(need, added):
    module = MultiheadAttention(
        DIM, HEADS, score=regard.Additive(5, HEADS), add_bias_kv=added, add_zero_attn=added
    )
    queries = [torch.randn(n, DIM) for n in (3, 1, 5)]
    keys = [torch.randn(n, DIM) for n in (2, 6, 1)]
    query, key = (torch.nested.as_nested_tensor(x) for x in (queries, keys))
    output, weights = module(query, key, key, need_weights=need)
    for n, row in enumerate(output.unbind()):
        alone, p = module(queries[n], keys[n], keys[n])
        torch.testing.assert_close(row, alone)
        if weights is not None:
            length = len(keys[n])
            found = weights[n, : len(queries[n])]
            found = torch.cat([found[:, :length], found[:, 6:]], -1)
            torch.testing.assert_close(found, p)
    with pytest.raises(ValueError, match=r"nested tensors need.*no masks"):
        module(query, key, key, key_padding_mask=torch.zeros(3, 6).bool())
    with pytest.raises(ValueError, match="nested tensors need query, key and value to be all"):
        module(query, keys[0], keys[0])
    with pytest.raises(ValueError, match=r"each as many values as keys, got lengths \[3, 1, 5\]"):
        module(query, key, query)
    with pytest.raises(ValueError, match="give attn_mask too"):
        module(query, key, key, is_causal=True)


def test_building_an_encoder_of_our_layers_warns_of_nothing():
    """There is a warning for attention that cannot take nested tensors; ours can."""
    part = layer()
    part.self_attn = MultiheadAttention(DIM, HEADS, batch_first=True, score="cosine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.TransformerEncoder(part, 2)


def test_the_only_warning_in_evaluation_is_torchs_own():
    """It says once that nested tensors are a prototype; here it says so every time."""
    theirs = encoder().eval()
    ours = copy.deepcopy(theirs)
    replace_attention(ours, "cosine")
    found = []
    torch.set_warn_always(True)
    try:
        for model in (theirs, ours):
            with warnings.catch_warnings(record=True) as caught, torch.no_grad():
                warnings.simplefilter("always")
                model(data(), src_key_padding_mask=padding())
            found.append({str(warning.message) for warning in caught})
    finally:
        torch.set_warn_always(False)
    assert len(found[0]) == 1 and found[1] == found[0]


class Twice(nn.Module):
    """One attention under two names, as tied layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(DIM, HEADS)
        self.second = self.first


def test_replace_keeps_parameters_for_the_optimizer_and_ties():
    model = Twice()
    before = dict(model.named_parameters())
    assert replace_attention(model) == ["first", "second"]
    assert model.first is model.second and isinstance(model.first, MultiheadAttention)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_replace_gives_each_layer_a_score_of_its_own():
    model = encoder()
    replace_attention(model, lambda module: regard.Additive(5, module.num_heads))
    one, two = (part.self_attn.score.v for part in model.layers)
    assert not torch.equal(one, two)
    model, score = encoder(), regard.Additive(5, HEADS)
    replace_attention(model, score)
    assert len({id(score), *(id(part.self_attn.score) for part in model.layers)}) == 3


class Changed(nn.MultiheadAttention):
    """Somebody's own forward."""


def test_replace_leaves_subclasses_and_says_if_there_is_nothing():
    model = nn.Sequential(Changed(DIM, HEADS), nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match="found no MultiheadAttention, torch's or regard's, inside Sequential"
    ):
        replace_attention(model)
    with pytest.raises(ValueError, match="from_torch"):
        replace_attention(nn.MultiheadAttention(DIM, HEADS))


def test_replace_that_fails_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.MultiheadAttention(DIM, 4), nn.MultiheadAttention(DIM, 2))
    with pytest.raises(ValueError, match="does not fit"):
        replace_attention(model, regard.Additive(3, 4))
    assert type(model[0]) is nn.MultiheadAttention
