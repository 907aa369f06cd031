"""Models of transformers with every attention of theirs that runs on a CPU."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from regard.doctor.watch import watch  # noqa: E402

from .watching import Kept, assert_same_bits, output_of, pass_through  # noqa: E402

WORDS, LENGTH, HEADS = 40, 7, 4
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
POSITIONS = {**SMALL, "max_position_embeddings": 64}
PICTURE = {"image_size": 16, "num_channels": 3}
# Class of the model, options, path of an attention layer, and how many attention calls there are.
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", {**SMALL, "n_positions": 64}, "transformer.h.{}.attn", 2),
    "bert": ("BertModel", POSITIONS, "encoder.layer.{}.attention.self", 2),
    "vit": (
        "ViTModel",
        {**SMALL, **PICTURE, "patch_size": 8},
        "layers.{}.attention",
        2,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
        "encoder.block.{}.layer.0.SelfAttention",
        6,
    ),
    "llama": ("LlamaForCausalLM", GROUPED, "model.layers.{}.self_attn", 2),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GROUPED, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        "model.layers.{}.self_attn",
        2,
    ),
    "gptj": (
        "GPTJForCausalLM",
        {
            "vocab_size": WORDS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": HEADS,
            "n_positions": 64,
            "rotary_dim": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "transformer.h.{}.attn",
        2,
    ),
    "deberta": (
        "DebertaV2Model",
        {
            **POSITIONS,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
        },
        "encoder.layer.{}.attention.self",
        2,
    ),
    "swinv2": (
        "Swinv2Model",
        {
            **PICTURE,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [HEADS, HEADS],
            "window_size": 4,
        },
        "encoder.layers.{}.blocks.0.attention.self",
        2,
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        "model.layers.{}.self_attn",
        2,
    ),
}
# They have no other code, or what SDPA has not: gpt-oss a sink, Gemma 2 a soft cap.
EAGER_ALONE = ("gptj", "deberta", "swinv2", "gpt_oss", "gemma2")
IMPLEMENTATIONS = [
    (family, kind)
    for family in FAMILIES
    for kind in ("eager", "sdpa")
    if kind == "eager" or family not in EAGER_ALONE
]


def model_and_batch(family: str, implementation: str) -> tuple[torch.nn.Module, dict]:
    name, options, _, _ = FAMILIES[family]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**options, attn_implementation=implementation)
    torch.manual_seed(0)
    model = model_class(config).train()
    if family in ("vit", "swinv2"):
        return model, {"pixel_values": torch.randn(2, 3, 16, 16)}
    batch = {"input_ids": torch.randint(3, WORDS, (2, LENGTH))}
    batch["attention_mask"] = torch.ones(2, LENGTH, dtype=torch.long)
    batch["attention_mask"][0, -2:] = 0
    if family == "t5":
        batch["decoder_input_ids"] = torch.randint(3, WORDS, (2, 5))
    return model, batch


@pytest.mark.parametrize(("family", "implementation"), IMPLEMENTATIONS)
def test_every_implementation_is_seen_and_left_as_it_is(family, implementation):
    model, batch = model_and_batch(family, implementation)
    before = pass_through(model, **batch)
    with watch(model, "sampled", every=2) as d:
        for _ in range(2):
            assert_same_bits(pass_through(model, **batch), before)
    _, _, path, count = FAMILIES[family]
    assert d.notes == [] and len(d.sites) == count and d.steps == 2
    assert {path.format(0), path.format(1)} <= set(d.sites)
    for site in d.chart.sites.values():
        assert site.heads == HEADS
        assert site.route == ("sdpa" if implementation == "sdpa" else "softmax")
        values = d.history(site.name).values
        for vital in ("query_grad", "key_grad", "value_grad"):
            assert values[..., d.vitals.index(vital)].isfinite().all(), (site, vital)
        entropy = values[0, :, d.vitals.index("entropy")]
        assert ((entropy > 0) & (entropy <= 1.0001)).all()


@pytest.mark.parametrize(("family", "implementation"), IMPLEMENTATIONS)
def test_what_is_seen_gives_the_output_of_the_layer(family, implementation):
    """Of the first layer, whose output before its projection is caught where it is led out."""
    model, batch = model_and_batch(family, implementation)
    model.eval()
    kept, caught = Kept(), []
    path = FAMILIES[family][2].format(0)
    with watch(model, vitals=kept.vitals) as d, torch.no_grad():
        for name, module in model.named_modules():
            inside = name.startswith(f"{path.rsplit('.', 1)[0]}.")
            if inside and name.endswith(("o_proj", "c_proj", "out_proj", ".o", "output.dense")):
                module.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        model(**batch)
    index = d.sites.index(path)
    shown = output_of(kept.seen[index])
    flat = shown.transpose(1, 2).flatten(2)
    assert any(
        flat.numel() == x.numel() and torch.allclose(flat.reshape(x.shape), x, atol=1e-5)
        for x in caught
    )


def test_the_sink_of_gpt_oss_is_a_sink():
    model, batch = model_and_batch("gpt_oss", "eager")
    kept = Kept()
    with watch(model, vitals=kept.vitals):
        model(**batch)
    seen = kept.seen[0]
    assert seen.logits.shape == (2, HEADS, LENGTH, LENGTH)
    assert seen.sink.shape == (2, HEADS, LENGTH) and seen.value.shape[-2] == LENGTH


def test_generation_with_a_cache():
    model, batch = model_and_batch("llama", "sdpa")
    model.eval()
    expected = model.generate(**batch, max_new_tokens=3, do_sample=False)
    with watch(model, "cheap", vitals=Kept().vitals) as d:
        tokens = model.generate(**batch, max_new_tokens=3, do_sample=False)
    assert torch.equal(tokens, expected)
    assert d.steps == 3 and d.sites == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_a_score_of_regard_inside():
    from regard.integrations.transformers import use_score

    model, batch = model_and_batch("llama", "eager")
    use_score(model, "cosine")
    before = pass_through(model, **batch)
    with watch(model, vitals=Kept().vitals) as d:
        assert_same_bits(pass_through(model, **batch), before)
    assert {site.route for site in d.chart.sites.values()} == {"regard"}
    assert d.sites == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
