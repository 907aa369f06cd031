"""Models with scores are saved and opened again; what does not fit is refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaForCausalLM,
    LlamaModel,
    T5EncoderModel,
)

from regard import (
    Additive,
    Bilinear,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    InnerScore,
    LowRank,
    Projected,
    ScaledDot,
    scores,
    stabilize,
)
from regard.integrations.transformers import attention_layers, load_pretrained, restore, use_score
from regard.integrations.transformers.recipe import KNOWN, describe_score, rebuild_score
from regard.scores import GAT, Score
from regard.stabilize import ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys

from .models import CONFIGS, FAMILIES, inputs, tiny


class Halved(InnerScore):
    """A score of a user's own."""

    name = "halved"

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(0.5))

    def query(self, q):
        return super().query(q * self.gain)


def additive_llama():
    return use_score(tiny("llama"), lambda layer: Additive(layer.head_dim, layer.heads, bias=True))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_saved_and_loaded_gives_the_same_outputs(family, tmp_path):
    model, given = use_score(tiny(family), "additive"), inputs(family)
    model.save_pretrained(tmp_path)
    opened = load_pretrained(tmp_path)
    assert type(opened) is CONFIGS[family][0]
    assert not opened.training
    assert torch.equal(opened(**given).logits, model(**given).logits)
    for ours, theirs in zip(attention_layers(opened), attention_layers(model), strict=True):
        assert torch.equal(ours.module.regard_score.v, theirs.module.regard_score.v)
    attentions = opened(**given, output_attentions=True)
    assert any(len(attentions[name]) for name in attentions if name.endswith("attentions"))


@torch.no_grad()
def test_folder_says_which_layer_has_which_score(tmp_path):
    model = use_score(tiny("llama"), "additive", layers=1)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["attn_implementation"] == "regard"
    described = {"type": "Additive", "name": "additive", "hidden": 8, "heads": 4}
    assert config["regard_scores"] == {
        "model.layers.1.self_attn": {**described, "bias": False, "weight_norm": False}
    }
    assert not list(tmp_path.glob("*.bin")) and list(tmp_path.glob("*.safetensors"))
    opened = load_pretrained(tmp_path)
    assert [layer.module.regard_score is None for layer in attention_layers(opened)] == [
        True,
        False,
    ]


@torch.no_grad()
def test_sharded_files_another_dtype_and_a_second_save(tmp_path):
    model, given = additive_llama(), inputs("llama")
    model.save_pretrained(tmp_path / "one", max_shard_size="12KB")
    assert len(list((tmp_path / "one").glob("*.safetensors"))) > 1
    opened = load_pretrained(tmp_path / "one", LlamaForCausalLM)
    assert torch.equal(opened(**given).logits, model(**given).logits)
    opened.save_pretrained(tmp_path / "two")
    assert torch.equal(load_pretrained(tmp_path / "two")(**given).logits, model(**given).logits)
    half = load_pretrained(tmp_path / "two", dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert bool(half(**given).logits.isfinite().all())


@torch.no_grad()
def test_a_part_of_the_saved_model_and_back(tmp_path):
    model, given = additive_llama(), inputs("llama")
    model.save_pretrained(tmp_path / "whole")
    bare = load_pretrained(tmp_path / "whole", LlamaModel)
    hidden = bare(**given).last_hidden_state
    assert torch.equal(hidden, model.model(**given).last_hidden_state)
    bare.save_pretrained(tmp_path / "bare")
    headed = load_pretrained(tmp_path / "bare", LlamaForCausalLM)
    assert torch.equal(headed.model(**given).last_hidden_state, hidden)
    t5, words = use_score(tiny("t5"), "additive"), inputs("t5")
    words.pop("decoder_input_ids")
    t5.save_pretrained(tmp_path / "t5")
    encoder = load_pretrained(tmp_path / "t5", T5EncoderModel)
    whole = t5.encoder(**words).last_hidden_state
    assert torch.equal(encoder(**words).last_hidden_state, whole)


def test_plain_from_pretrained_does_not_run_silently_without_the_scores(tmp_path):
    additive_llama().save_pretrained(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"has no score.*use_score.*load_pretrained\(folder\)"):
        plain(**inputs("llama"))


def test_wrong_score_is_refused_by_name(tmp_path):
    model = use_score(tiny("llama"), "additive")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"saved with score 'additive'.*gives 'gatv2'"):
        load_pretrained(tmp_path, score="gatv2")
    with pytest.raises(ValueError, match=r"'bias': False.*'bias': True"):
        load_pretrained(tmp_path, score=Additive(8, 4, bias=True))
    other = use_score(tiny("llama"), "gatv2")
    with pytest.raises(RuntimeError, match="of score 'additive', but this module has score 'gatv2"):
        other.load_state_dict(model.state_dict())


@torch.no_grad()
def test_a_users_own_score_is_given_again(tmp_path):
    model, given = use_score(tiny("llama"), Halved()), inputs("llama")
    for layer in attention_layers(model):
        layer.module.regard_score.gain.fill_(0.2 + layer.index)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"'Halved' \(named 'halved'\).*pass score="):
        load_pretrained(tmp_path)
    opened = load_pretrained(tmp_path, score=Halved())
    assert torch.equal(opened(**given).logits, model(**given).logits)


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_weights_that_do_not_fit_the_scores_are_refused(tmp_path, change):
    additive_llama().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    key = "model.layers.0.self_attn.regard_score."
    if change == "missing":
        del weights[key + "v"]
    else:
        weights[key + "gain"] = torch.ones(4)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"do not fit: {change} keys {key}"):
        load_pretrained(tmp_path)


def test_folders_and_arguments_that_load_refuses(tmp_path):
    tiny("llama").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="names no scores; open it with from_pretrained"):
        load_pretrained(tmp_path / "plain")
    model = additive_llama()
    model.save_pretrained(tmp_path / "scored")
    with pytest.raises(TypeError, match="not an Auto class"):
        load_pretrained(tmp_path / "scored", AutoModelForCausalLM)
    with pytest.raises(ValueError, match="reads safetensors only"):
        load_pretrained(tmp_path / "scored", use_safetensors=False)
    with pytest.raises(TypeError, match="load_pretrained sets attn_implementation="):
        load_pretrained(tmp_path / "scored", attn_implementation="eager")
    file = tmp_path / "scored" / "model.safetensors"
    torch.save(load_file(file), tmp_path / "scored" / "pytorch_model.bin")
    file.unlink()
    with pytest.raises(OSError, match="safetensors"):  # never unpickled
        load_pretrained(tmp_path / "scored")
    config = json.loads((tmp_path / "scored" / "config.json").read_text())
    config["architectures"] = ["os.system"]
    (tmp_path / "scored" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"'os.system', which transformers does not have"):
        load_pretrained(tmp_path / "scored")


# For a layer with 4 query heads and 2 key heads of width 8.
SCORES = [
    Dot(),
    ScaledDot(),
    Cosine(4, scale=3.0, eps=1e-3),
    Cosine(None),
    Gaussian(2.0, heads=2),
    Bilinear(8, 8, 4),
    LowRank(8, 8, 3, 4, 2),
    Additive(8, 4, bias=True, weight_norm=True),
    GAT(8, 4, negative_slope=0.3),
    GATv2(8, 4, negative_slope=0.1),
    Projected(Additive(5, 4), 8, 8, key_heads=2, bias=True),
    Projected(ScaledDot(), 8, 8, width=5, heads=4, key_heads=2),
    Tempered(Additive(8, 4), 2.0, heads=4),
    Tempered(ScaledDot(), 0.5),
    Normalized(ScaledDot(), (8, 8), norm="layer", eps=1e-4),
    UnitKeys(Dot()),
    ClippedKeys(ScaledDot(), 3.0),
    SoftCapped(Normalized(Additive(8, 4), 8), 30.0),
]


def test_every_score_and_stabiliser_is_tried_here():
    """One that is added later must be added to the list of what may be rebuilt, too."""
    concrete = {
        found
        for module in (scores, stabilize)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Score) and not found.__subclasses__()
    }
    # Additive has a subclass, and is concrete all the same.
    assert {type(score) for score in SCORES} == concrete | {Additive} == set(KNOWN)


@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
@torch.no_grad()
def test_a_description_builds_the_score_again(score, tmp_path):
    described = json.loads(json.dumps(describe_score(score)))
    again = rebuild_score(described)
    assert type(again) is type(score)
    assert describe_score(again) == describe_score(score) == described
    again.load_state_dict(score.state_dict())
    assert again.softcap == score.softcap
    model, given = use_score(tiny("llama"), score), inputs("llama")
    model.save_pretrained(tmp_path)
    for opened in (load_pretrained(tmp_path), load_pretrained(tmp_path, score=score)):
        assert torch.equal(opened(**given).logits, model(**given).logits)


def test_a_description_of_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match=r"unknown score 'os.system'; known: Dot, "):
        rebuild_score({"type": "os.system"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": ["Additive"]}, "unknown score"),
        ({"hidden": 2**40, "heads": 2**40}, "cannot be built"),
        ({"hidden": "8"}, "cannot be built: hidden must be an integer"),
        ({"self": 1}, "cannot be built"),
        ({"evil": 1}, "cannot be built: .* unexpected keyword"),
        ({"score": "dot"}, "describes a score as 'dot'"),
        ({"name": "gatv2"}, "by the name 'gatv2': 'additive'"),
    ],
)
def test_a_description_that_was_edited_is_one_clear_error(change, message):
    with pytest.raises(ValueError, match=message):
        rebuild_score({**describe_score(Additive(8, 4)), **change})


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_hostile_folders(tmp_path, monkeypatch):
    """Nothing in a folder makes `load_pretrained` run its code, ask whether to, or fetch any."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    additive_llama().save_pretrained(tmp_path)
    for given in ([1], "additive", 3, {"model.layers.0.self_attn": "additive"}):
        with pytest.raises(ValueError, match=r"table of layers|describes a score as 'additive'"):
            load_pretrained(edited(tmp_path, regard_scores=given))
    additive_llama().save_pretrained(tmp_path)
    for named in ([3], 3, {}):
        with pytest.raises(ValueError, match="which transformers does not have"):
            load_pretrained(edited(tmp_path, architectures=named))
    additive_llama().save_pretrained(tmp_path)
    load_pretrained(
        edited(tmp_path, _attn_implementation="some/kernel", attn_implementation="some/kernel")
    )
    with pytest.raises(ValueError, match="contains custom code"):
        load_pretrained(
            edited(tmp_path, auto_map={"AutoConfig": "code.Config"}, model_type="unknown")
        )
    torch.save({}, tmp_path / "weights.bin")
    with pytest.raises(ValueError, match="is a file; give the folder"):
        load_pretrained(tmp_path / "weights.bin")


@pytest.mark.parametrize(
    "path", ["nowhere", "./no/where", "a/b/c", Path("owner/name"), "/no/where"]
)
def test_what_is_no_folder_is_refused_without_asking_the_hub(path, monkeypatch):
    monkeypatch.setattr(
        AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("asked the hub")
    )
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*is 'owner/name'"):
        load_pretrained(path)


def test_folders_without_a_config_and_names_on_the_hub(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        load_pretrained(tmp_path)
    additive_llama().save_pretrained(tmp_path / "inner")
    assert load_pretrained(tmp_path, subfolder="inner").config.regard_scores
    asked = []
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *given, **_: asked.append(given))
    with pytest.raises(AttributeError):  # of the None that stands for the config
        load_pretrained("owner/name.v2")
    assert asked == [("owner/name.v2",)]


@torch.no_grad()
def test_a_part_and_then_the_whole_get_a_config_of_their_own():
    config, given = tiny("llama").config, inputs("llama")
    base, model = (LlamaForCausalLM(config).eval() for _ in range(2))
    plain = base(**given).logits
    use_score(model.model, "additive")
    assert model(**given).logits.isfinite().all() and not hasattr(model.config, "regard_scores")
    use_score(model, "cosine")
    assert len(model.config.regard_scores) == 2
    assert model(**given).logits.isfinite().all()
    assert torch.equal(base(**given).logits, plain)


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
@torch.no_grad()
def test_models_of_one_config_do_not_disturb_one_another(family, tmp_path):
    model_class, config_class, options = CONFIGS[family]
    config, given = config_class(**options), inputs(family)
    base, model, third = (model_class(config).eval() for _ in range(3))
    before, plain = config.to_dict(), base(**given).logits
    use_score(model, "additive")
    assert config.to_dict() == before and base.config is config
    assert torch.equal(base(**given).logits, plain)
    use_score(third, "cosine", layers=0)
    scored = model(**given).logits
    for place, one in (("base", base), ("model", model)):
        one.save_pretrained(tmp_path / place)
    opened = model_class.from_pretrained(tmp_path / "base")
    assert torch.equal(opened(**given).logits, plain)
    assert torch.equal(load_pretrained(tmp_path / "model")(**given).logits, scored)


@torch.no_grad()
def test_deepcopy_and_restore(tmp_path):
    model, given = tiny("llama"), inputs("llama")
    before = model(**given).logits
    names = set(model.state_dict())
    config = model.config.to_dict()
    use_score(use_score(model, "additive"), "gatv2", layers=0)
    scored = model(**given).logits
    twin = copy.deepcopy(model)
    assert torch.equal(twin(**given).logits, scored)
    restore(model)
    assert model.config.to_dict() == config
    assert set(model.state_dict()) == names
    assert torch.equal(model(**given).logits, before)
    assert torch.equal(twin(**given).logits, scored), "the copy is its own model"
    with pytest.raises(ValueError, match="no scores to remove"):
        restore(model)
    twin.save_pretrained(tmp_path)
    opened = restore(load_pretrained(tmp_path))
    assert opened.config._attn_implementation == "sdpa"
    real = given["attention_mask"].bool()
    torch.testing.assert_close(opened(**given).logits[real], before[real])


@torch.no_grad()
def test_safetensors_file_of_the_state_dict(tmp_path):
    model, given = additive_llama(), inputs("llama")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other = additive_llama()
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(other(**given).logits, model(**given).logits)
