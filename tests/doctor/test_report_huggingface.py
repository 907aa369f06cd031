"""The callback in a real `Trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import transformers

from regard.doctor.report.huggingface import DoctorCallback
from regard.observed import WATCHERS


def trainer(folder: Path, callback: DoctorCallback, **options) -> transformers.Trainer:
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    tokens = torch.randint(32, (16, 8))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[callback],
    )


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the trainer's own
def test_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[tuple[dict, int]] = []
    callback = DoctorCallback(
        tmp_path / "out.html", log=lambda found, step: logged.append((found, step)), every=1
    )
    whole = trainer(tmp_path, callback)
    whole.train()
    capsys.readouterr()
    assert callback.doctor.steps == 4
    assert not callback.doctor.attached
    assert WATCHERS == []
    assert callback.doctor.sites == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert [step for _, step in logged] == [2, 4, 4]
    key = "attention/transformer.h.1.attn/entropy/worst"
    assert key in whole.state.log_history[0]
    assert key in logged[0][0]
    assert "transformer.h.1.attn" in (tmp_path / "out.html").read_text()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_training_that_failed_is_let_go(tmp_path: Path) -> None:
    callback = DoctorCallback(every=1)
    whole = trainer(tmp_path, callback)
    whole.compute_loss = lambda *given, **more: 1 / 0
    with pytest.raises(ZeroDivisionError):
        whole.train()
    assert callback.doctor.attached
    callback.detach()
    assert WATCHERS == []
    callback.detach()
