"""Training by recorded steps: the same gradients as kernel by kernel, here with a recorder that repeats calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.measuring.graphs import CaptureError
from regard.recipes import recorded, training
from regard.recipes.recorded import RecordedGradients
from regard.recipes.training import Job, Trainer, TrainingPlan
from regard.recipes.translate.batches import Corpus
from regard.recipes.translate.job import Regularization, TranslationJob
from regard.recipes.translate.networks import Sizes, network
from regard.recipes.translate.subwords import EOS
from regard.recipes.translate.translator import ARCHITECTURES

CPU = torch.device("cpu")


class RepeatingRecorder:
    """Repeats a call as a CUDA graph repeats its kernels: results go into the memory of the first run."""

    def __init__(self, fails: bool = False) -> None:
        self.device, self.fails, self.records, self.replays = CPU, fails, 0, 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise CaptureError("not permitted when stream is capturing")
        self.records += 1
        run()
        inputs, losses = run.args  # type: ignore[attr-defined] # of the partial
        owners = [*run.func.__self__.parameters, *(x for x in inputs if x is not None)]  # type: ignore[attr-defined]
        gradients, loss = [x.grad for x in owners], losses[0]

        def replay() -> None:
            self.replays += 1
            run()
            loss.copy_(losses[0])
            for owner, gradient in zip(owners, gradients, strict=True):
                if gradient is not None:
                    gradient.copy_(owner.grad)
                owner.grad = gradient
            # A parameter that a recording does not reach has the gradient of whatever ran before.
            for owner in run.func.__self__.parameters:  # type: ignore[attr-defined]
                owner.grad = torch.full_like(owner, torch.nan)

        return replay


class TwoPartJob(Job):
    """A linear layer that is not recorded, then one that is; both share a bias."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
        self.model[1].bias = self.model[0].bias
        self.unused = nn.Parameter(torch.ones(1))
        self.model.register_parameter("unused", self.unused)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        torch.manual_seed(epoch)
        yield from (torch.randn(rows, 3) for rows in (2, 5, 2, 5, 3))

    def steps_per_epoch(self) -> int:
        return 5

    def prepare(self, batch: Tensor) -> tuple[Tensor | None, ...]:
        return self.model[0](batch), None, batch.sum(1)

    def loss(self, batch: tuple[Tensor | None, ...]) -> Tensor:
        hidden, nothing, target = batch
        assert nothing is None
        return (self.model[1](hidden.tanh()).sum(1) - target).square().mean()

    def validate(self, model: nn.Module) -> float:
        return 0.0


class GraphTrainer(Trainer):
    """A trainer on a CPU that has a recorder."""

    def __init__(self, job: Job, plan: TrainingPlan, recorder: Any) -> None:
        super().__init__(job, plan, 0, CPU)
        self.recorded = RecordedGradients(job, self.precision, recorder)


def weights_after(job: Job, recorder: Any = None) -> list[Tensor]:
    plan = TrainingPlan(3, 0.05, average=0.9)
    trainer = Trainer(job, plan, 0, CPU) if recorder is None else GraphTrainer(job, plan, recorder)
    trainer.run(None, None)
    return [one.detach().clone() for one in job.model.parameters()]


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, atol=1e-6) for x, y in zip(ours, theirs, strict=True))


def test_replays_train_to_the_same_weights_and_each_shape_is_recorded_once():
    recorder = RepeatingRecorder()
    assert close(weights_after(TwoPartJob()), weights_after(TwoPartJob(), recorder))
    assert recorder.records == 3 and recorder.replays == 15


def test_gradients_of_an_earlier_shape_are_not_left_behind():
    job, recorder = TwoPartJob(), RepeatingRecorder()
    gradients = RecordedGradients(job, training.nullcontext, recorder)
    for batch in [*job.batches(0), *job.batches(1)]:
        for one in job.model.parameters():
            one.grad = None
        loss = gradients(batch)
        found = [None if x.grad is None else x.grad.clone() for x in job.model.parameters()]
        wanted = torch.autograd.grad(
            job.loss(job.prepare(batch)), list(job.model.parameters()), allow_unused=True
        )
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, atol=1e-6)
        assert not loss.requires_grad


def test_what_cannot_be_recorded_runs_kernel_by_kernel_with_one_warning():
    with pytest.warns(UserWarning, match="not permitted") as told:
        found = weights_after(TwoPartJob(), RepeatingRecorder(fails=True))
    assert len(told) == 1
    assert close(found, weights_after(TwoPartJob()))


def test_shapes_beyond_the_limit_are_not_recorded(monkeypatch):
    monkeypatch.setattr(recorded, "MOST_SHAPES", 1)
    recorder = RepeatingRecorder()
    assert close(weights_after(TwoPartJob(), recorder), weights_after(TwoPartJob()))
    assert recorder.records == 1 and recorder.replays == 6


def test_a_cpu_and_a_watching_doctor_have_no_recordings(monkeypatch):
    assert Trainer(TwoPartJob(), TrainingPlan(1, 0.1, graphs=True), 0, CPU).recorded is None
    monkeypatch.setattr(training, "AROUND", [lambda model: training.nullcontext()])
    assert Trainer(TwoPartJob(), TrainingPlan(1, 0.1, graphs=True), 0, CPU).recorded is None


def translation(architecture: str, device: torch.device, width: int = 8, rows: int = 40) -> Job:
    """The training of a small translator on random pairs, without dropout."""
    torch.manual_seed(0)
    sides = [
        [[*torch.randint(4, 20, (n,)).tolist(), EOS] for n in torch.randint(1, 9, (rows,)).tolist()]
        for _ in range(2)
    ]
    made = Corpus(*sides, tokens=16 * 16, multiples=(8, 4), seed=0, device=device, full=True)
    model = network(architecture, Sizes(20, width, 2, 2, width, width, width, 0.0), None)
    return TranslationJob(model.to(device), made, Regularization(0.1, 0.0, 1.0), lambda model: 0.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_translators_train_by_recordings(architecture):
    recorder = RepeatingRecorder()
    found = weights_after(translation(architecture, CPU), recorder)
    assert close(found, weights_after(translation(architecture, CPU)))
    assert 0 < recorder.records < recorder.replays


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_graphs_train_to_the_same_losses_and_sooner(architecture):
    """After a first epoch, which compiles and records, four are timed."""
    device = torch.device("cuda")
    found, seconds = {}, {}
    for graphs in (False, True):
        job = translation(architecture, device, width=64, rows=400)
        trainer = Trainer(job, TrainingPlan(12, 1e-3, graphs=graphs), 0, device)
        assert (trainer.recorded is not None) == graphs
        trainer.run_epoch(None)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for trainer.epoch in (1, 2, 3, 4):
            trainer.run_epoch(None)
        torch.cuda.synchronize()
        seconds[graphs] = time.perf_counter() - begun
        if trainer.recorded is not None:
            assert not trainer.recorded.broken and all(trainer.recorded.known.values())
        found[graphs] = trainer.history.losses
    assert found[True] == pytest.approx(found[False], rel=1e-3)
    print(
        f"{architecture}: {seconds[False]:.3f} s kernel by kernel, {seconds[True]:.3f} s by graphs"
    )
    assert seconds[True] < seconds[False]
