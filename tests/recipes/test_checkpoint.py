"""Checkpoints: a killed training goes on to the same bits; full disks, damage and other data are seen."""

from __future__ import annotations

import copy
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from regard import Additive
from regard.recipes import checkpoint as checkpoints
from regard.recipes import training
from regard.recipes.checkpoint import TRAINING_ENTRY, CheckpointError, read_checkpoint

from .fake_recipe import FakeRecipe, load
from .killing import Killed, same_weights

TESTS = Path(__file__).parents[1]
# Trains for ever, as far as a test can tell; the parent kills it once there is a checkpoint.
KILLED = """
import sys, time
from regard.recipes import training
from recipes.fake_recipe import FakeRecipe, PointsJob, load
training.CHECKPOINT_PAUSE = 0.0
old = PointsJob.validate
def slow(self, model):
    time.sleep(0.05)
    return old(self, model)
PointsJob.validate = slow
FakeRecipe(epochs=60, average=0.9, seed=3).fit_dataset(load("points"), checkpoint=sys.argv[1])
"""


class KillAtEpoch:
    """Progress that ends the training after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def start(self, steps: int, done: int) -> None:
        self.done = done

    def step(self, loss: Any) -> None:
        pass

    def validated(self, epoch: int, quality: float, best: float) -> None:
        if epoch == self.epoch:
            raise Killed


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)


def test_really_killed_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "x.checkpoint"
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    victim = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], env=environment)
    try:
        until = time.monotonic() + 120
        while not path.exists() and victim.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    found = read_checkpoint(path)
    assert found is not None
    assert 0 < found.facts["epoch"] < 60, "it was killed in the middle"
    arguments: dict[str, Any] = {"epochs": 60, "average": 0.9, "seed": 3}
    whole = FakeRecipe(**arguments).fit_dataset(load("points"))
    resumed = FakeRecipe(**arguments).fit_dataset(load("points"), checkpoint=path)
    assert same_weights(whole, resumed)
    assert resumed.history_.validations == whole.history_.validations
    assert resumed.history_.losses == whole.history_.losses


@pytest.mark.parametrize("average", [None, 0.9])
def test_interrupted_anywhere_the_result_is_the_same(tmp_path: Path, average: float | None) -> None:
    path, data = tmp_path / "x.checkpoint", load("points")
    whole = FakeRecipe(epochs=6, average=average).fit_dataset(data)
    resumed = FakeRecipe(epochs=6, average=average)
    for epoch in (1, 3, 6):
        with pytest.raises(Killed):
            resumed.fit_dataset(data, checkpoint=path, progress=KillAtEpoch(epoch))
    resumed.fit_dataset(data, checkpoint=path)
    assert same_weights(whole, resumed)
    assert resumed.history_.best == whole.history_.best
    again = FakeRecipe(epochs=6, average=average).fit_dataset(data, checkpoint=path)
    assert same_weights(whole, again), "a finished training is not trained on"
    assert again.history_.seconds == resumed.history_.seconds


def test_checkpoints_are_not_written_more_often_than_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 1000.0)
    written = []
    monkeypatch.setattr(training, "write_checkpoint", lambda path, state: written.append(state))
    FakeRecipe(epochs=6).fit_dataset(load("points"), checkpoint=tmp_path / "x")
    assert [one.facts["epoch"] for one in written] == [6], "the end is always kept"


def test_full_disk_keeps_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tmp_path / "x.checkpoint", load("points")
    with pytest.raises(Killed):
        FakeRecipe(epochs=6).fit_dataset(data, checkpoint=path, progress=KillAtEpoch(4))
    before = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.warns(
            UserWarning, match=r"could not be written \(No space left.*goes on"
        ) as said:
            trained = FakeRecipe(epochs=6).fit_dataset(data, checkpoint=path)
    assert len(said) == 1, "said once, not at every epoch"
    assert same_weights(trained, FakeRecipe(epochs=6).fit_dataset(data)), "the model is whole"
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name], "no half file is left"
    resumed = FakeRecipe(epochs=6).fit_dataset(data, checkpoint=path)
    assert same_weights(resumed, FakeRecipe(epochs=6).fit_dataset(data))


def test_files_over_a_limit_fail_as_a_full_disk_does(tmp_path: Path) -> None:
    """A limit on the size of files makes the kernel refuse the write half way."""
    resource = pytest.importorskip("resource")
    path, data = tmp_path / "x.checkpoint", load("points")
    with pytest.raises(Killed):
        FakeRecipe(epochs=6).fit_dataset(data, checkpoint=path, progress=KillAtEpoch(2))
    before = path.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, old[1]))
    try:
        with pytest.warns(UserWarning, match="too large"):
            FakeRecipe(epochs=6).fit_dataset(data, checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_missing_folder_of_a_checkpoint_is_an_error_before_training(tmp_path: Path) -> None:
    """It was one after the first epochs, and they were lost."""
    told = KillAtEpoch(1)
    with pytest.raises(CheckpointError, match=r"checkpoint='.*none/x': there is no folder .*none"):
        FakeRecipe().fit_dataset(load("points"), checkpoint=tmp_path / "none" / "x", progress=told)


def test_folder_in_the_place_of_a_checkpoint_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"checkpoint=.* exists and is not a file; give another"
    ):
        FakeRecipe().fit_dataset(load("points"), checkpoint=tmp_path)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The checkpoint of a training that was killed."""
    path = tmp_path / "x.checkpoint"
    with pytest.raises(Killed):
        FakeRecipe(epochs=6).fit_dataset(load("points"), checkpoint=path, progress=KillAtEpoch(2))
    return path


@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        ({"seed": 1}, "seed"),
        ({"epochs": 7}, "plan"),
        ({"rate": 0.01}, "plan"),
        ({"score": "additive"}, "arguments"),
    ],
)
def test_checkpoint_of_other_arguments_is_refused(
    kept: Path, arguments: dict[str, Any], differs: str
) -> None:
    before = kept.read_bytes()
    with pytest.raises(CheckpointError, match=rf"differs in .*{differs}.*remove it"):
        FakeRecipe(**{"epochs": 6} | arguments).fit_dataset(load("points"), checkpoint=kept)
    assert kept.read_bytes() == before


def test_data_that_changed_are_noticed(kept: Path) -> None:
    data = load("points")
    x = data.train.x.copy()
    x[0, 0] += 1e-3
    held = (data.validation.x, data.validation.y)
    with pytest.raises(CheckpointError, match="differs in data"):
        FakeRecipe(epochs=6).fit(x, data.train.y, validation=held, checkpoint=kept)
    flipped = (data.validation.x, 1 - data.validation.y)
    with pytest.raises(CheckpointError, match="differs in data"):
        FakeRecipe(epochs=6).fit(data.train.x, data.train.y, validation=flipped, checkpoint=kept)
    same_rows = np.array(data.train.x), np.array(data.train.y)
    FakeRecipe(epochs=6).fit(*same_rows, validation=held, checkpoint=kept)


def test_another_object_of_the_same_repr_is_another_training(tmp_path: Path) -> None:
    """Training starts from the weights of the object, which its repr does not show."""
    path, data = tmp_path / "x.checkpoint", load("points")
    torch.manual_seed(0)
    first, second = Additive(4), Additive(4)
    assert repr(first) == repr(second)
    with pytest.raises(Killed):
        FakeRecipe(first, 6).fit_dataset(data, checkpoint=path, progress=KillAtEpoch(2))
    with pytest.raises(CheckpointError, match="differs in weights of the score"):
        FakeRecipe(second, 6).fit_dataset(data, checkpoint=path)
    FakeRecipe(copy.deepcopy(first), 6).fit_dataset(data, checkpoint=path)


def test_device_and_pace_do_not_make_another_training(kept: Path) -> None:
    FakeRecipe(epochs=6, device="cpu").fit_dataset(load("points"), checkpoint=kept)


def changed(path: Path, change: Any) -> None:
    """Write the checkpoint again with the facts that `change` returns, or those that it had if None."""
    with safetensors.safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()[TRAINING_ENTRY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    found = change(facts, tensors)
    facts = facts if found is None else found
    safetensors.torch.save_file(tensors, path, {TRAINING_ENTRY: json.dumps(facts)})


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, tensors: [],
        lambda facts, tensors: {"owner": 3},
        lambda facts, tensors: {k: v for k, v in facts.items() if k != "epoch"},
        lambda facts, tensors: facts | {"history": {"nonsense": 1}},
        lambda facts, tensors: facts | {"schedule": "x"},
        lambda facts, tensors: tensors.__delitem__("random.cpu"),
        lambda facts, tensors: tensors.__delitem__("model.0.weight"),
    ],
)
def test_damaged_checkpoint_is_refused_with_advice(kept: Path, change: Any) -> None:
    changed(kept, change)
    with pytest.raises(CheckpointError, match=r"x\.checkpoint is .*to start over"):
        FakeRecipe(epochs=6).fit_dataset(load("points"), checkpoint=kept)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100, None])
def test_foreign_file_is_refused_with_advice(kept: Path, content: bytes | None) -> None:
    kept.write_bytes(kept.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match=r"x\.checkpoint is not a checkpoint.*start over"):
        FakeRecipe(epochs=6).fit_dataset(load("points"), checkpoint=kept)


def test_model_file_is_no_checkpoint(tmp_path: Path) -> None:
    model = FakeRecipe(epochs=1).fit_dataset(load("points"))
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        read_checkpoint(tmp_path / "model")
    assert read_checkpoint(tmp_path / "none") is None
    assert checkpoints.prefixed("a.", {"b": 3})["a.b"].item() == 3
