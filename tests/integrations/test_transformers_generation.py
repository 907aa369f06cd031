"""Generation with a cache gives what the whole sequence gives without one."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import DynamicCache

from regard.integrations.transformers import use_score

from .models import DECODERS, ENCODER_DECODERS, inputs, padding, real_rows, tiny, words

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
STEPS = 5


def generated(model, given, **options):
    """Tokens, and the logits of each step side by side."""
    result = model.generate(
        **given,
        min_new_tokens=STEPS,
        max_new_tokens=STEPS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return result.sequences, torch.stack(result.logits, 1)


def prompt(family: str) -> dict[str, torch.Tensor]:
    given = inputs(family)
    given.pop("decoder_input_ids", None)
    return given


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("family", [*DECODERS, *ENCODER_DECODERS])
def test_cache_equals_no_cache(family, score):
    model = use_score(tiny(family), score)
    given = prompt(family)
    tokens, logits = generated(model, given, use_cache=True)
    slow_tokens, slow_logits = generated(model, given, use_cache=False)
    assert torch.equal(tokens, slow_tokens)
    assert_close(logits, slow_logits, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_scaled_dot_generates_as_eager_with_beams(family):
    model, given = tiny(family), prompt(family)
    theirs = generated(model, given, num_beams=3)
    use_score(model, "scaled_dot")
    for cache in (True, False):
        ours = generated(model, given, num_beams=3, use_cache=cache)
        assert torch.equal(ours[0], theirs[0])
        assert_close(ours[1], theirs[1], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("padded", [True, False])
def test_static_cache_equals_no_cache(family, padded):
    """The cache has room for later keys: they must stay hidden."""
    model, given = use_score(tiny(family), "additive"), prompt(family)
    if not padded:
        del given["attention_mask"]
    tokens, logits = generated(model, given, cache_implementation="static")
    slow_tokens, slow_logits = generated(model, given, use_cache=False)
    assert torch.equal(tokens, slow_tokens)
    assert_close(logits, slow_logits, **CLOSE)


@pytest.mark.parametrize("cuts", [[9], [4, 5], [8, 1], [1] * 9])
@torch.no_grad()
def test_pieces_with_a_cache_equal_the_whole(cuts):
    model, given = use_score(tiny("llama"), "additive"), inputs("llama")
    whole = model(**given).logits
    cache, pieces, start = DynamicCache(config=model.config), [], 0
    for length in cuts:
        part = {
            "input_ids": given["input_ids"][:, start : start + length],
            "attention_mask": given["attention_mask"][:, : start + length],
        }
        pieces.append(model(**part, past_key_values=cache).logits)
        start += length
    assert_close(real_rows("llama", torch.cat(pieces, 1)), real_rows("llama", whole), **CLOSE)


@torch.no_grad()
def test_one_query_without_a_mask_sees_the_whole_cache():
    model, ids = use_score(tiny("llama"), "additive"), words()
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :-1], past_key_values=cache)
    last = model(input_ids=ids[:, -1:], past_key_values=cache).logits[:, -1]
    assert_close(last, model(input_ids=ids).logits[:, -1], **CLOSE)


def test_attentions_of_generation():
    model, given = use_score(tiny("llama"), "additive"), prompt("llama")
    result = model.generate(
        **given,
        min_new_tokens=2,
        max_new_tokens=2,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    last = result.attentions[1][0]
    assert last.shape == (2, 4, 1, given["input_ids"].shape[1] + 1)
    assert_close(last.sum(-1), torch.ones(2, 4, 1), **CLOSE)
    hidden = (padding("llama") == 0)[:, None, None, :]
    assert bool((last[..., :-1].masked_select(hidden) == 0).all())
