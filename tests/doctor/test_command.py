"""`regard doctor` from outside: what is opened, what is printed, exit codes, messages."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from regard.cli.app import group
from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.patients import EXAMPLES
from regard.doctor.watch import Doctor

MODELS = '''
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.layer = nn.MultiheadAttention(dim, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x)[0]


class Counting(Small):
    """Counts how often it learned, as a user's model might."""

    def forward(self, x, labels=None):
        out = super().forward(x)
        return {"logits": out, "loss": out.square().mean()}


class Fragile(Small):
    def forward(self, x):
        if x.abs().max() > 20:
            raise RuntimeError("too loud")
        return super().forward(x)


def alone(): return Small()
def with_batch(): return Small(), torch.randn(2, 5, 8)
def with_loss(): return Small(), torch.randn(2, 5, 8), lambda out, batch: (out - batch).square().mean()
def own_loss(): return Counting(), lambda step: {"x": torch.randn(2, 5, 8)}
def exploding(): return Small(), torch.randn(2, 5, 8), lambda out, batch: out.sum() * float("nan")
def talks(): print("hello from the model"); return with_batch()
def fragile(): return Fragile(), torch.rand(2, 5, 8)
def raises(): raise KeyError("no weights today")
def nothing(): return None
def bad_batch(): return Small(), torch.full((2, 5, 8), float("nan"))
def words(): return Small(), ["hello"]
def bad_loss(): return Small(), torch.randn(2, 5, 8), 3
def vector_loss(): return Small(), torch.randn(2, 5, 8), lambda out, batch: out
def misfit(): return Small(), torch.randn(2, 5, 9)
def no_attention(): return nn.Linear(8, 8)
def two_inputs(): return nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
'''


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `regard doctor` in a folder with models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    name = f"models_{tmp_path.name.replace('-', '_')}"  # modules stay imported
    (tmp_path / f"{name}.py").write_text(MODELS)

    def run(model: str, *arguments: str) -> Result:
        model = f"{name}{model}" if model.startswith(":") else model
        given = ["doctor", model, "--device", "cpu", *arguments]
        return CliRunner().invoke(group, given, prog_name="regard")

    return run


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Lets every doctor find one thing of this severity."""

    def find(severity: Severity) -> None:
        signals = tuple(Signal(x, 5.0, 1.0, True, "ours") for x in ("logit_max", "max_weight"))
        finding = Finding(
            "growing-logits", "logits grow", severity, "layer", (0,), 1, signals, 0.9,
            "Logits grow.", (Advice("qk-norm", "bounds them"),),
        )  # fmt: skip
        monkeypatch.setattr(Doctor, "findings", lambda self: [finding], raising=False)

    return find


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch):
    """Lets every doctor find nothing: what is found is tested elsewhere."""
    monkeypatch.setattr(Doctor, "findings", lambda self: [], raising=False)


def assert_mistake(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    said = " ".join(result.stderr.splitlines()[-1:])
    assert said.startswith("Error: ")
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("name", "trained"), [(":with_loss", True), (":own_loss", True), (":with_batch", False)]
)
def test_a_function_is_trained_where_it_has_a_loss(doctor, healthy, name, trained):
    result = doctor(name, "--steps", "4", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["trained"] is trained and record["steps"] == 4
    assert record["level"] == ("sampled" if trained else "exact")
    assert len(record["losses"]) == (4 if trained else 0)
    assert [site["name"] for site in record["sites"]] == ["layer"]
    assert record["findings"] == [] and record["said"] == [] and result.stderr == ""


def test_without_training_gradients_are_measured_and_weights_stay(doctor, healthy):
    record = json.loads(doctor(":with_loss", "--steps", "3", "--no-train", "--json").stdout)
    assert not record["trained"]
    assert len(set(record["losses"])) == 1
    assert record["sites"][0]["last"]["key_grad"][0] > 0


def test_data_that_is_made_up_is_said_and_not_learned(doctor, healthy):
    result = doctor(":alone", "--json", "--steps", "2")
    assert "the batches are made up, noise (4, 64, 8)" in result.stderr
    record = json.loads(result.stdout)
    assert record["said"] and not record["trained"]


def test_the_same_seed_gives_the_same_numbers(doctor, healthy):
    def sites(seed: str) -> list:
        return json.loads(doctor("healthy", "--steps", "2", "--json", "--seed", seed).stdout)[
            "sites"
        ]

    assert sites("1") == sites("1") != sites("2")


@pytest.mark.parametrize(
    ("severity", "strict", "code"),
    [
        (Severity.FAILURE, False, 1),
        (Severity.WARNING, False, 0),
        (Severity.WARNING, True, 1),
        (Severity.NOTE, True, 0),
    ],
)
def test_exit_status(doctor, found, severity, strict, code):
    found(severity)
    result = doctor(":with_batch", *(["--strict"] if strict else []))
    assert result.exit_code == code
    assert "logits grow" in result.stdout and "qk-norm: bounds them" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_a_loss_that_is_no_number_stops_the_training_and_fails(doctor, healthy):
    result = doctor(":exploding", "--steps", "9", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["stopped"] == "the loss is nan at step 1"
    assert record["losses"] == [None] and record["steps"] == 1


def test_the_report_is_written(doctor, healthy, tmp_path):
    result = doctor(":with_batch", "--report", "out.html")
    assert result.exit_code == 0, result.output
    assert "Report: out.html" in result.stdout
    assert "</html>" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_the_report_is_written_as_json_where_its_name_says_so(doctor, healthy, tmp_path):
    assert doctor(":with_batch", "--report", "out.json").exit_code == 0
    assert json.loads((tmp_path / "out.json").read_text())["model"].endswith(":with_batch")


def test_a_report_on_a_folder_loses_only_the_report(doctor, healthy, tmp_path):
    (tmp_path / "taken.html").mkdir()
    result = doctor(":with_batch", "--report", "taken.html")
    assert result.exit_code == 2 and "taken.html" in result.stderr


def test_what_a_model_prints_is_no_part_of_the_json(doctor, healthy):
    result = doctor(":talks", "--json")
    assert json.loads(result.stdout)["steps"] == 1
    assert "hello from the model" in result.stderr


def test_a_report_that_cannot_be_written_is_refused_first(doctor):
    assert_mistake(doctor(":raises", "--report", "nowhere/out.html"), "no folder nowhere")


def test_probe_prints_what_is_withstood(doctor, healthy):
    result = doctor("hijacked-key", "--steps", "1", "--probe")
    assert result.exit_code == 0, result.output
    for words in ("One key gets longer", "Inputs multiplied", "rolled round"):
        assert words in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    record = json.loads(doctor("hijacked-key", "--steps", "1", "--probe", "--json").stdout)
    assert len(record["probe"]["keys"]) == 2


def test_a_report_has_what_the_probe_found(doctor, healthy):
    arguments = ["hijacked-key", "--steps", "1", "--probe", "--report"]
    assert doctor(*arguments, "out.json").exit_code == 0
    found = json.loads(Path("out.json").read_text())["probe"]
    assert [attack["site"] for attack in found["keys"]] == [
        "blocks.0.attention",
        "blocks.1.attention",
    ]
    doctor(*arguments, "out.html")
    assert "One key gets longer. A query is captured when" in Path("out.html").read_text()


def test_a_model_that_does_not_survive_the_probe_loses_only_that(doctor, healthy):
    result = doctor(":fragile", "--probe", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["probe"] is None
    assert "the model raised an error: RuntimeError: too loud" in result.stderr


def test_interrupted_prints_what_was_measured(doctor, healthy, monkeypatch):
    from regard.doctor import checkup

    honest = checkup.one_step

    def stop(found, step, *rest):
        if step == 2:
            raise KeyboardInterrupt
        return honest(found, step, *rest)

    monkeypatch.setattr(checkup, "one_step", stop)
    result = doctor(":with_loss", "--steps", "9")
    assert result.exit_code == 130
    assert "stopped: interrupted after step 2" in result.stdout


@pytest.mark.parametrize(
    ("name", "steps", "disease"),
    [
        ("growing-logits", "60", "growing-logits"),
        ("jammed-tanh", "6", "saturated-tanh"),
        ("hijacked-key", "12", "key-norm-hijack"),
    ],
)
def test_an_ill_example_is_found_ill(doctor, name, steps, disease):
    result = doctor(name, "--steps", steps, "--json", "--strict")
    assert result.exit_code == 1, result.output
    record = json.loads(result.stdout)
    found = [finding["disease"] for finding in record["findings"]]
    assert disease in found and record["trained"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_full(doctor, name):
    result = doctor(name, "--json", "--strict")
    record = json.loads(result.stdout)
    if name == "healthy":
        assert result.exit_code == 0 and record["findings"] == []
        assert record["losses"][-1] < 0.05  # it has learned the look-up
    else:
        assert result.exit_code == 1 and record["findings"][0]["severity"] == "failure"


def test_list(doctor):
    result = doctor("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(EXAMPLES)
    assert list(json.loads(doctor("--list", "--json").stdout)) == list(EXAMPLES)


def test_help_shows_examples():
    result = CliRunner().invoke(group, ["doctor", "--help"])
    assert "regard doctor growing-logits" in result.stdout and "Exit codes" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "regard doctor" in CliRunner().invoke(group, ["--help"]).stdout


MISTAKES = [
    ((":raises",), ["raises() fails: KeyError", "no weights today", "line"]),
    ((":nothing",), ["must return a model, (model, batch)", "None"]),
    ((":missing",), ["has no function 'missing'", "it has Small"]),
    (("no_such_module:build",), ["there is no module 'no_such_module'"]),
    (("models/small.py:build",), ["name the module as `import` does", "small:build"]),
    (("a-b:build",), ["is not of the form package.module:function"]),
    (("healty",), ["bundled examples healthy, growing-logits"]),
    ((":bad_batch",), ["holds 80 NaN or infinite numbers"]),
    ((":words",), ["a batch is a tensor"]),
    ((":bad_loss",), ["must be a function (output, batch)"]),
    ((":vector_loss",), ["must be a tensor with one number"]),
    ((":misfit",), ["failed on its batch"]),
    ((":no_attention",), ["no attention was seen"]),
    ((":two_inputs",), ["it takes src, tgt", "return (model, batch)"]),
    ((":with_batch", "--train"), ["has no loss to train by"]),
    ((":alone", "--data", "none.npz"), ["there is no such file"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"), MISTAKES, ids=lambda x: "" if isinstance(x, list) else " ".join(x)
)
def test_a_mistake_is_one_message(doctor, arguments, words):
    assert_mistake(doctor(*arguments), *words)


def test_without_a_model_it_says_how():
    result = CliRunner().invoke(group, ["doctor"])
    assert_mistake(result, "MODEL is missing", "regard doctor healthy")


@pytest.mark.parametrize("code", ["import nonsense_package", "1 / 0", "def f(:"])
def test_a_module_that_cannot_be_imported(doctor, tmp_path, code):
    (tmp_path / f"broken{len(code)}.py").write_text(code)
    assert_mistake(doctor(f"broken{len(code)}:f"), f"broken{len(code)}:f")


# Data.


def arrays() -> dict[str, torch.Tensor]:
    return {"x": torch.arange(6 * 5 * 8).reshape(6, 5, 8) / 100}


def save_npz(path: Path, found: dict[str, torch.Tensor]) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.savez(path, **{name: x.double().numpy() for name, x in found.items()})


def save_safetensors(path: Path, found: dict[str, torch.Tensor]) -> None:
    pytest.importorskip("safetensors.torch").save_file(found, path)


SAVERS = {".npz": save_npz, ".safetensors": save_safetensors, ".pt": lambda p, x: torch.save(x, p)}


@pytest.mark.parametrize("suffix", SAVERS)
def test_data_in_every_format(doctor, healthy, suffix):
    SAVERS[suffix](Path(f"data{suffix}"), arrays())
    result = doctor(":alone", "--data", f"data{suffix}", "--batch", "4", "--steps", "2", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["said"] == []


def test_batches_go_round(tmp_path):
    from regard.doctor.patients.data import open_data

    torch.save(torch.arange(5).float(), tmp_path / "data.pt")
    batch = open_data(tmp_path / "data.pt", torch.nn.Linear(1, 1), 2)
    assert [batch(i).tolist() for i in range(3)] == [[0, 1], [2, 3], [4, 0]]


class Trap:
    """What a hostile file would hold."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize(
    ("suffix", "write", "words"),
    [
        (".pt", lambda p: torch.save({"x": Trap()}, p), ["is not unpickled"]),
        (".pt", lambda p: p.write_bytes(pickle.dumps(Trap())), ["data.pt"]),
        (".pt", lambda p: p.write_bytes(b"nonsense"), ["data.pt"]),
        (".npz", lambda p: p.write_bytes(b"nonsense"), ["cannot be read"]),
        (".safetensors", lambda p: p.write_bytes(b"nonsense"), ["cannot be read"]),
        (".csv", lambda p: p.write_text("1,2"), [".npz, .safetensors, .pt or .txt"]),
        (".txt", lambda p: p.write_text("some words"), ["needs the tokenizer"]),
        (".pt", lambda p: torch.save({"x": "text"}, p), ["x is not an array"]),
        (".pt", lambda p: torch.save({}, p), ["holds no arrays"]),
        (".pt", lambda p: torch.save({"x": torch.tensor([1.0, float("inf")])}, p), ["x holds 1 NaN"]),
        (".pt", lambda p: torch.save({"x": torch.zeros(0, 5, 8)}, p), ["x is empty"]),
        (".pt", lambda p: torch.save({"x": torch.zeros(2, 5, 8), "y": torch.zeros(3)}, p), ["differ"]),
        (".pt", lambda p: torch.save({"x": torch.zeros(2, 5, 8), "z": torch.zeros(2)}, p), ["has no argument z"]),
        (".pt", lambda p: torch.save(torch.zeros(2, 5, 3), p), ["failed on its batch"]),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used(doctor, tmp_path, suffix, write, words):
    write(tmp_path / f"data{suffix}")
    assert_mistake(doctor(":alone", "--data", f"data{suffix}"), *words)
    assert not (tmp_path / "sprung").exists()
