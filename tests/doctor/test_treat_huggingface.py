"""Remedies in models of transformers: applied, trained with, undone bit by bit."""

from __future__ import annotations

import pytest
import torch

from regard.doctor.remedies import locate
from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.watch import watch

from .treating import LARGE, finding

pytestmark = pytest.mark.slow
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
OLD = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
OLD = {**OLD, "bos_token_id": 1, "eos_token_id": 2}
# Model class, config class, its arguments, and remedies that cannot be applied.
KINDS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", OLD, {"scale"}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, {"scale"}),
    "eager": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**GROUPED, "attn_implementation": "eager"},
        {"scale"},
    ),
    "bert": ("BertModel", "BertConfig", SMALL, {"scale"}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}, set()),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, {"scale", "qk-clip"}),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, {"scale"}),
    "gptj": (
        "GPTJForCausalLM",
        "GPTJConfig",
        {**OLD, "rotary_dim": 4},
        {"scale", "swap-score"},
    ),
}
OPTIONS = {
    "scale": {},
    "temperature": {"start": 2.0},
    "qk-norm": {"keep": True},
    "cosine": {},
    "key-clip": {"times": 0.5},
    "soft-cap": {},
    "qk-clip": {"tau": 1e-3},
    "swap-score": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_remedy(kind):
    transformers = pytest.importorskip("transformers")
    name, config, arguments, missing = KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**arguments)).eval()
    batch = {"input_ids": torch.randint(3, 64, (2, 12))}
    site = list(locate(model, batch))[-1]
    doctor = watch(model)
    for remedy, options in OPTIONS.items():
        before = {n: x.clone() for n, x in model.state_dict().items()}
        output = model(**batch)[0]
        made = finding(*LARGE, site=site, remedies=(remedy,))
        try:
            treatment = doctor.treat(made, remedy, batch, **options)
        except TreatmentRefused:
            assert remedy in missing
        else:
            assert remedy not in missing and "moved" in treatment.summary()
            if remedy == "temperature":
                assert treatment.effects[0].after == pytest.approx(
                    treatment.effects[0].before / 2, rel=1e-3
                )
            model(**batch)[0].sum().backward()
            for parameter in treatment.applied.parameters:
                assert model.get_parameter(parameter).grad is not None
            treatment.undo()
        assert torch.equal(model(**batch)[0], output)
        after = model.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[n], before[n]) for n in before)


def test_generation_with_a_cache_is_treated_too():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).eval()
    ids = torch.randint(3, 64, (1, 6))
    doctor = watch(model)
    for layer in ("model.layers.0.self_attn", "model.layers.1.self_attn"):
        doctor.treat(finding(*LARGE, site=layer), "qk-norm", {"input_ids": ids})
    whole = model(input_ids=ids).logits
    first = model(input_ids=ids[:, :4], use_cache=True)
    rest = model(input_ids=ids[:, 4:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(rest, whole[:, 4:], atol=1e-5, rtol=1e-4)


class Two(torch.nn.Module):
    """A model that does not call the attention interface, and one that does."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.first(input_ids=ids).logits + self.second(input_ids=ids).logits


def test_a_score_is_swapped_in_the_second_of_two_models():
    transformers = pytest.importorskip("transformers")
    first = transformers.GPTJForCausalLM(transformers.GPTJConfig(**KINDS["gptj"][2]))
    second = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))
    model, ids = Two(first, second).eval(), torch.randint(3, 64, (1, 6))
    made = finding(*LARGE, site="second.model.layers.1.self_attn", remedies=("swap-score",))
    before = model(ids)
    treatment = watch(model).treat(made, "swap-score", ids)
    assert not torch.equal(model(ids), before)
    treatment.undo()
    assert torch.equal(model(ids), before)
