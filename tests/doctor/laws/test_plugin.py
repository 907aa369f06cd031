"""The pytest plugin in a process of its own, as a project loads it, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from regard.cli.app import group

SOURCE = Path(__file__).parents[3] / "src"
MODEL = """
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.offset, self.embed = offset, nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(self.offset)
        return self.layer(self.embed(x), src_mask=hidden)


def right():
    torch.manual_seed(0)
    return Decoder(1), torch.randint(0, 30, (3, 9))


def wrong():
    torch.manual_seed(0)
    return Decoder(2), torch.randint(0, 30, (3, 9))


def nothing():
    return nn.Linear(3, 3), torch.randn(2, 3)
"""
TESTS = """
import sys
import model


def test_right(attention_doctor):
    assert attention_doctor.check(*model.right(), causal=True).ok


def test_wrong(attention_doctor):
    attention_doctor.check(*model.wrong(), causal=True)


def test_allowed(attention_doctor):
    attention_doctor.check(*model.wrong(), causal=True, allow=["who-may-see-whom"])


def test_required(attention_doctor):
    attention_doctor.check(*model.right(), causal=True, require=["padding-is-not-read"])


def test_nothing(attention_doctor):
    attention_doctor.check(*model.nothing())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_attention.py").write_text(TESTS)
    return tmp_path


def python(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(SOURCE), str(project)])
    # The plugin is named here, so that it is this one and not that of an installed regard.
    kept = {k: x for k, x in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    setting = {**kept, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=project, env=setting, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_broken_law_fails_its_test_with_a_message_to_act_on(project: Path) -> None:
    done = python(
        project, "-m", "pytest", "-p", "regard_pytest", "-p", "no:cacheprovider", "--junitxml=out.xml",
        "--attention-report", "out.html",
    )  # fmt: skip
    assert done.returncode == 1 and "3 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    cases = {x.attrib["name"]: x for x in ET.parse(project / "out.xml").iter("testcase")}  # noqa: S314
    failures = {
        name: x.find("failure").attrib["message"]
        for name, x in cases.items()
        if len(x.findall("failure"))
    }
    assert set(failures) == {"test_wrong", "test_required", "test_nothing"}
    assert "who-may-see-whom broken at layer.self_attn" in failures["test_wrong"]
    assert "model.py:" in cases["test_wrong"].find("failure").text
    assert "padding-is-not-read is required and was not tested" in failures["test_required"]
    assert "no attention was seen" in failures["test_nothing"]
    told = cases["test_right"].find("properties/property").attrib
    assert told["name"] == "attention" and "none is broken" in told["value"]
    page = (project / "out.html").read_text()
    assert page.count('class="check"') == 5 and "test_attention.py::test_wrong" in page


def test_pytest_without_the_fixture_loads_neither_torch_nor_regard(project: Path) -> None:
    (project / "test_plain.py").write_text(
        "import sys\n\ndef test():\n    assert not {'torch', 'regard'} & set(sys.modules)\n"
    )
    done = python(project, "-m", "pytest", "-p", "regard_pytest", "-q", "test_plain.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_is_an_entry_point() -> None:
    text = (SOURCE.parent / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nregard = "regard_pytest"' in text
    assert '"src/regard_pytest.py"' in text


def test_the_command_exits_with_1_if_a_law_is_broken(project: Path, monkeypatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))

    def doctor(*arguments: str):
        return CliRunner().invoke(
            group, ["doctor", "--device", "cpu", *arguments], prog_name="regard"
        )

    good = doctor("model:right", "--check", "--causal", "--report", "out.html")
    assert good.exit_code == 0 and "none is broken" in good.output, good.output
    assert (project / "out.html").exists()
    bad = doctor("model:wrong", "--check", "--causal", "--json")
    assert bad.exit_code == 1
    data = json.loads(bad.stdout)
    assert data["check"]["findings"][0]["site"] == "layer.self_attn" and not data["check"]["ok"]
    # Nobody declares it: a note, which --strict counts.
    assert doctor("model:wrong", "--check").exit_code == 0
    assert doctor("model:wrong", "--check", "--strict").exit_code == 1
    for arguments, said in (
        (("model:nothing", "--check"), "no attention was seen"),
        (("model:right", "--causal"), "add --check"),
        (("model:right", "--check", "--steps", "3"), "leave out --steps"),
    ):
        refused = doctor(*arguments)
        assert refused.exit_code == 2 and said in refused.stderr
