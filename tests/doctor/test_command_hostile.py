"""`regard doctor` on models and folders that were made to mislead it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from torch import nn

from regard.cli.app import group
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
    assert result.exit_code == 2 and "no file" in result.output
    with pytest.raises(ReportError, match="no file"):
        write_report(watch(nn.Linear(2, 2)), pipe)
    assert pipe.is_fifo()


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdout", None)
    assert width_of() == 80
    put([[("nobody reads this", "")]])


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
