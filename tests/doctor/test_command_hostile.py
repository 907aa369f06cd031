"""`regard doctor` on models and folders that were made to mislead it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from regard.cli.app import group
from regard.doctor.patients import Unusable
from regard.doctor.patients.sizes import check_sizes
from regard.doctor.report import ReportError, write_report
from regard.doctor.report.lines import put, width_of
from regard.doctor.watch import watch

MODELS = """
import sys

import torch
from torch import nn


def model(): return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
def loss(out, batch): return out.square().mean()
def x(): return torch.randn(2, 5, 8)
def leaves(): sys.exit(0)
def batch_leaves(): return model(), lambda step: sys.exit(0)
def loss_leaves(): return model(), x(), lambda out, batch: sys.exit(0)
def frozen(): return model().requires_grad_(False), x().requires_grad_(), loss
def meta(): return model().to("meta"), x()
def meta_batch(): return model(), x().to("meta")
def loader():
    batches = iter([x(), x()])
    return model(), lambda step: next(batches), loss


class Stuck(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()

    @staticmethod
    def backward(ctx, grad): raise RuntimeError("no way back")


def one_way(): return model(), x(), lambda out, batch: Stuck.apply(out).sum()
"""


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `regard doctor` on a function of the file above."""
    monkeypatch.chdir(tmp_path)
    name = f"hostile_{tmp_path.name.replace('-', '_')}"  # modules stay imported
    (tmp_path / f"{name}.py").write_text(MODELS)

    def run(function: str, *arguments: str) -> Result:
        return CliRunner().invoke(group, ["doctor", f"{name}:{function}", *arguments])

    return run


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("leaves", "SystemExit"),
        ("batch_leaves", "SystemExit"),
        ("loss_leaves", "SystemExit"),
        ("meta", "meta device"),
        ("meta_batch", "meta tensor"),
        ("one_way", "backward: RuntimeError: no way back"),
    ],
)
def test_what_cannot_be_examined_is_no_clean_bill(doctor, function: str, words: str):
    result = doctor(function, "--steps", "2")
    assert result.exit_code == 2 and words in result.output, result.output


def test_frozen_weights_are_run_and_not_trained(doctor):
    result = doctor("frozen", "--steps", "2")
    assert result.exit_code == 0 and "run as it is" in result.output
    result = doctor("frozen", "--train")
    assert result.exit_code == 2 and "frozen" in result.output


def test_each_batch_of_a_loader_is_taken_once(doctor):
    result = doctor("loader", "--steps", "2")
    assert result.exit_code == 0, result.output


def test_a_report_takes_the_place_of_no_device(doctor, tmp_path: Path):
    pipe = tmp_path / "report.html"
    os.mkfifo(pipe)
    result = doctor("loader", "--report", str(pipe))
    assert result.exit_code == 2 and "exists and is not a file" in result.output
    with pytest.raises(ReportError, match="exists and is not a regular file"):
        write_report(watch(nn.Linear(2, 2)), pipe)
    assert pipe.is_fifo()


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdout", None)
    assert width_of() == 80
    put([[("unread", "")]])


@pytest.mark.parametrize("rate", ["nan", "inf"])
def test_a_rate_that_is_no_number(doctor, rate: str):
    result = doctor("loader", "--steps", "2", "--rate", rate)
    assert result.exit_code == 2 and "--rate" in result.output


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/elsewhere.safetensors", 3])
def test_an_index_of_shards_that_leads_out_of_the_folder(tmp_path: Path, shard):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": shard}}))
    result = CliRunner().invoke(group, ["doctor", str(tmp_path)])
    assert result.exit_code == 2 and index.name in result.output, result.output


@pytest.fixture
def bert(tmp_path: Path):
    """A small folder of transformers with another config."""
    transformers = pytest.importorskip("transformers")
    small = transformers.BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip

    def saved(safe: bool = True, **changes: int) -> Path:
        model = transformers.BertModel(small)
        model.save_pretrained(tmp_path)
        if not safe:
            (tmp_path / "model.safetensors").unlink()
            torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return tmp_path

    return saved


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**4}, "num_hidden_layers = 10,000"),
        ({"num_hidden_layers": 10**4, "safe": False}, "num_hidden_layers = 10,000"),
        ({"hidden_size": 10**9}, "hidden_size = 1,000,000,000"),
        ({"max_position_embeddings": 10**11}, "max_position_embeddings = 100,000,000,000"),
        ({"hidden_size": 2**20, "intermediate_size": 2**22}, "TiB of memory"),
    ],
)
def test_sizes_that_no_weights_have_are_refused_before_anything_is_built(
    bert, monkeypatch: pytest.MonkeyPatch, changes: dict, words: str
):
    folder = bert(**changes)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)  # would build it
    result = CliRunner().invoke(group, ["doctor", str(folder)])
    assert result.exit_code == 2 and words in result.stderr, result.output
    assert result.stderr.count("\n") == 1


def test_sizes_that_the_weights_have_are_believed(bert):
    result = CliRunner().invoke(group, ["doctor", str(bert(max_position_embeddings=32))])
    assert result.exit_code == 0, result.output


def test_a_config_inside_of_a_config_is_looked_at_too(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    save = pytest.importorskip("safetensors.torch").save_file
    save({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    deep = transformers.CLIPConfig(vision_config={"num_hidden_layers": 5000})
    with pytest.raises(Unusable, match="num_hidden_layers = 5,000"):
        check_sizes(tmp_path, deep, [tmp_path / "model.safetensors"])
