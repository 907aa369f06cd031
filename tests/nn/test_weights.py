"""Weights in safetensors files: whole or not at all, the right score or a clear error."""

from __future__ import annotations

import json
import os
import pickle
import resource
import stat
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.nn.position import LearnedPosition, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.stacks import Decoder, Encoder
from regard.nn.weights import load, save

MODULES = {
    "encoder": lambda: Encoder(
        [EncoderBlock(8, 2, regard.Additive(3, 2), sink=True) for _ in range(2)],
        position=Sinusoidal(8, learned=True),
    ),
    "decoder": lambda: Decoder(
        [DecoderBlock(8, 2, position=Rotary(4), qk_norm="rms", memory_dim=6)],
        position=LearnedPosition(9, 8),
    ),
    "score": lambda: regard.Projected(regard.GATv2(4, 2), 8, 8),
    "batch norm": lambda: nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)),
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2),
    "torch attention": lambda: nn.MultiheadAttention(8, 2),
    "no parameters": lambda: nn.ReLU(),
}


def names(folder):
    return [path.name for path in folder.iterdir()]


def assert_same(module, other):
    mine, its = module.state_dict(), other.state_dict()
    assert list(mine) == list(its)
    for name in mine:
        assert torch.equal(mine[name], its[name]), name


@pytest.mark.parametrize("name", MODULES)
def test_round_trip(name, tmp_path):
    module, other = MODULES[name](), MODULES[name]()
    save(module, tmp_path / "w.safetensors")
    assert load(other, tmp_path / "w.safetensors") == ([], [])
    assert_same(other, module)
    assert names(tmp_path) == ["w.safetensors"]


@pytest.mark.parametrize("name", MODULES)
def test_plain_safetensors_files_load_and_ours_load_elsewhere(name, tmp_path):
    module, other = MODULES[name](), MODULES[name]()
    save_file(module.state_dict(), tmp_path / "plain.safetensors")
    load(other, tmp_path / "plain.safetensors")
    assert_same(other, module)
    save(module, tmp_path / "ours.safetensors")
    MODULES[name]().load_state_dict(load_file(tmp_path / "ours.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(dtype, tmp_path):
    module, other = (nn.Linear(3, 2).to(dtype) for _ in range(2))
    save(module, tmp_path / "w")
    assert load_file(tmp_path / "w")["weight"].dtype == dtype
    load(other, tmp_path / "w")
    assert_same(other, module)


def test_the_file_says_what_wrote_it(tmp_path):
    save(MODULES["encoder"](), tmp_path / "w")
    with safe_open(tmp_path / "w", "pt") as file:
        entry = json.loads(file.metadata()["regard"])
    assert entry["class"] == "regard.nn.transformer.stacks.Encoder"
    assert entry["version"] == regard.__version__
    assert entry["modules"]["blocks.1.attention.score.score"]["score"] == "additive"


def test_another_score_is_refused_by_name_and_changes_nothing(tmp_path):
    """Additive and GATv2 have the same parameters: shapes alone would let them pass."""
    save(EncoderBlock(8, 2, regard.Additive(3, 2)), tmp_path / "w")
    other = EncoderBlock(8, 2, regard.GATv2(3, 2))
    before = {name: x.clone() for name, x in other.state_dict().items()}
    with pytest.raises(
        RuntimeError, match=r"(?s)saved from .*EncoderBlock.* 'additive', .* 'gatv2'"
    ):
        load(other, tmp_path / "w")
    for name, x in other.state_dict().items():
        assert torch.equal(x, before[name])


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    save(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), tmp_path / "w")
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 5))
    before = {name: x.clone() for name, x in other.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"(?s)does not fit this Sequential.*size mismatch"):
        load(other, tmp_path / "w")
    for name, x in other.state_dict().items():
        assert torch.equal(x, before[name])


def test_strict_by_default_and_names_where_not(tmp_path):
    save(nn.Linear(3, 2), tmp_path / "w")
    other = nn.Linear(3, 2, bias=False)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"bias"'):
        load(other, tmp_path / "w")
    assert load(other, tmp_path / "w", strict=False) == ([], ["bias"])
    save(other, tmp_path / "w")
    assert load(nn.Linear(3, 2), tmp_path / "w", strict=False) == (["bias"], [])


class Tied(nn.Module):
    """An embedding and a last layer that are one tensor, and a block used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight
        block = EncoderBlock(4, 2)
        self.stack = Encoder([block, block])
        memory = torch.randn(12)
        for name, part in (("all", memory), ("part", memory[:6]), ("square", memory.view(3, 4))):
            self.register_buffer(name, part)
        self.register_buffer("turned", memory.view(3, 4).T)


def test_shared_tensors_are_stored_once_and_stay_shared(tmp_path):
    module, other = Tied(), Tied()
    save(module, tmp_path / "w")
    stored = load_file(tmp_path / "w")
    assert "embed.weight" in stored and "out.weight" not in stored
    assert not any(name.startswith("stack.blocks.1.") for name in stored)
    load(other, tmp_path / "w")
    assert_same(other, module)
    assert other.out.weight is other.embed.weight


def test_empty_tensors_are_not_taken_for_shared_ones(tmp_path):
    module = nn.Module()
    module.register_buffer("a", torch.empty(0, 3))
    module.register_buffer("b", torch.empty(2, 0))
    save(module, tmp_path / "w")
    load(module, tmp_path / "w")
    stored = load_file(tmp_path / "w")
    assert {name: x.shape for name, x in stored.items()} == {"a": (0, 3), "b": (2, 0)}


def test_a_truncated_file_at_any_length(tmp_path):
    save(nn.Linear(3, 2), tmp_path / "w")
    whole = (tmp_path / "w").read_bytes()
    for length in (0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            load(nn.Linear(3, 2), tmp_path / "cut")


class Bomb:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return (sys.exit, ("unpickled",))


@pytest.mark.parametrize("how", ["pickle", "old pickle", "torch.save", "old torch.save"])
def test_a_pickle_is_refused_and_never_unpickled(how, tmp_path):
    path = tmp_path / "w.safetensors"
    if how.endswith("torch.save"):
        new = how == "torch.save"
        torch.save({"bomb": Bomb()}, path, _use_new_zipfile_serialization=new)
        expected = "never unpickled"
    else:
        protocol = 4 if how == "pickle" else 0
        path.write_bytes(pickle.dumps({"bomb": Bomb()}, protocol))
        expected = "never unpickled" if protocol else "not a complete safetensors file"
    with pytest.raises(ValueError, match=expected):
        load(nn.Linear(3, 2), path)


def test_paths_that_are_no_files(tmp_path):
    module = nn.Linear(3, 2)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(module, tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        load(module, tmp_path)
    with pytest.raises(IsADirectoryError, match="is a directory"):
        save(module, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"folder of path .* does not exist"):
        save(module, tmp_path / "none" / "w")


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe"):
        save(nn.Linear(3, 2), tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(nn.Linear(3, 2), tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("name", ["w" * 255, "a b", "-rf", "ü☃", "a\nb", "'\""])
def test_any_name_that_a_file_may_have(name, tmp_path):
    module, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save(module, tmp_path / name)
    load(other, tmp_path / name)
    assert_same(module, other)
    assert names(tmp_path) == [name]


CLASS = json.dumps({"class": "\x1b[2J", "version": "1", "modules": {}, "same": {}})


@pytest.mark.parametrize(
    "entry",
    ["{", "[]", "{}", '{"same": {"weight": "none"}}', "null", "[" * 100_000, CLASS],
    ids=["open", "list", "empty", "no such tensor", "null", "deep", "control characters"],
)
def test_damaged_metadata(entry, tmp_path):
    save_file(nn.Linear(3, 2).state_dict(), tmp_path / "w", {"regard": entry})
    with pytest.raises(ValueError, match=r"is not what regard\.nn\.save writes"):
        load(nn.Linear(3, 2), tmp_path / "w")


def test_hostile_module_metadata_changes_nothing(tmp_path):
    """A version that cannot be compared stops torch half way; its own flags are not the file's."""
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: x.clone() for name, x in module.state_dict().items()}
    other = {name: x + 1 for name, x in before.items()}
    entry = {"class": "a", "version": "1", "modules": {"1": {"version": "x"}}, "same": {}}
    save_file(other, tmp_path / "w", {"regard": json.dumps(entry)})
    with pytest.raises(RuntimeError, match="does not fit this Sequential"):
        load(module, tmp_path / "w")
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    entry["modules"] = {"0": {"assign_to_params_buffers": True}}
    save_file(
        {n: x.double() for n, x in other.items()}, tmp_path / "w", {"regard": json.dumps(entry)}
    )
    load(module, tmp_path / "w")
    assert module[0].weight.dtype == torch.float32


def test_a_full_disk_leaves_the_older_file(tmp_path):
    """A limit on the size of files stands in for the full disk: writing fails on the way."""
    path = tmp_path / "w"
    old = nn.Linear(3, 2)
    save(old, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="could not write"):
            save(nn.Linear(200, 200), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["w"]
    module = nn.Linear(3, 2)
    load(module, path)
    assert_same(module, old)


def test_a_crash_before_the_rename_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "w"
    save(nn.Linear(3, 2), path)
    whole = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("disk gone")))
    with pytest.raises(OSError, match="disk gone"):
        save(nn.Linear(3, 2), path)
    assert path.read_bytes() == whole and names(tmp_path) == ["w"]


def test_permissions_and_links_are_those_of_any_file(tmp_path):
    module, path = nn.Linear(3, 2), tmp_path / "w"
    (tmp_path / "new").touch()
    save(module, path)
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    save(module, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (save, load):
        with pytest.raises(ImportError, match=r"pip install regard\[weights\]"):
            call(nn.Linear(3, 2), tmp_path / "w")


def holder(x):
    module = nn.Module()
    module.register_buffer("x", x)
    return module


def test_conjugate_and_negative_views_are_written_as_they_read(tmp_path):
    """Both are a flag beside memory that holds the opposite."""
    for x in (torch.tensor([1 + 2j]).conj(), torch._neg_view(torch.ones(2))):
        save(holder(x), tmp_path / "w")
        found = holder(torch.zeros_like(x))
        load(found, tmp_path / "w")
        assert torch.equal(found.x, x)


class WithState(nn.Module):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass


def test_what_safetensors_cannot_hold_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"'_extra_state' is .*holds tensors alone"):
        save(WithState(), tmp_path / "w")
    with pytest.raises(ValueError, match=r"'weight' is on meta"):
        save(nn.Linear(3, 2, device="meta"), tmp_path / "w")
    with pytest.raises(ValueError, match=r"has no dtype torch\.complex128"):
        save(holder(torch.zeros(2, dtype=torch.complex128)), tmp_path / "w")
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module"):
        save({"weight": torch.ones(2)}, tmp_path / "w")
    assert names(tmp_path) == []


class Late(nn.Linear):
    """Finds out what is wrong after all other modules have been filled."""

    def _load_from_state_dict(self, *args) -> None:
        super()._load_from_state_dict(*args)
        raise ArithmeticError("too late")


def test_whatever_fails_the_module_keeps_its_own_tensors(tmp_path):
    """Tried on tensors without numbers first: no copy of the model is made to undo it."""
    save(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)), tmp_path / "w")
    module = nn.Sequential(nn.Linear(3, 3), Late(3, 3), nn.BatchNorm1d(3))
    own = list(module.state_dict(keep_vars=True).values())
    before = [x.clone() for x in own]
    with pytest.raises(RuntimeError, match="does not fit this Sequential: too late"):
        load(module, tmp_path / "w")
    after = list(module.state_dict(keep_vars=True).values())
    assert all(x is y for x, y in zip(after, own, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))


def test_lazy_modules_take_their_shapes_from_the_file(tmp_path):
    module, other = nn.Linear(3, 2), nn.LazyLinear(2)
    save(module, tmp_path / "w")
    load(other, tmp_path / "w")
    assert_same(module, other)
