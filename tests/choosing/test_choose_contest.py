"""A fair contest: equal sizes, wider rates, standardised data, a control, and models that project."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.choosing.api import ChooseError
from regard.choosing.tasks.models import Match
from regard.choosing.training.candidates import ScoreSizes, candidates
from regard.choosing.training.data import DataParts
from regard.choosing.training.run import Contest
from regard.choosing.training.scaling import column_scale, notes_on_classes, notes_on_scales
from regard.choosing.training.sizes import candidate_sizes
from regard.choosing.training.splits import split_rows
from regard.choosing.training.stages import Settings
from regard.choosing.training.storage import open_study, opened, quiet

from .known import SMALL, small, trials


def parameters(make) -> int:
    return sum(p.numel() for p in make().parameters())


def test_every_candidate_has_a_null_with_its_heads_and_width() -> None:
    found = candidates(ScoreSizes(16, 12, 16, True), hidden=(16, 64), heads=(1, 4))
    by_name = {one.name: one for one in found}
    assert len(by_name) == len(found) and found[0].null == ""
    for one in found[1:]:
        null = by_name[one.null]
        assert null.is_null
        if one.is_null:
            assert null is found[0]  # more heads or more width are candidates too
            continue
        assert null.heads == one.heads == one.make().heads
        if one.score not in ("bilinear", "low_rank"):
            # The same projections: what is left are a few numbers of the score's own.
            assert 0 <= parameters(one.make) - parameters(null.make) <= 2 * 64 + 4 + 4 * 16


def test_heads_share_out_the_width() -> None:
    one, four = (
        candidates(ScoreSizes(16, 16, 16, True), ("additive",), ("none",), (16,), heads=(count,))
        for count in (1, 4)
    )
    for first, second in zip(one, four, strict=True):
        assert parameters(first.make) == parameters(second.make)
    assert "width=4, heads=4" in four[0].code and "Additive(4, 4" in four[1].code


def test_own_scores_get_a_null_with_their_heads() -> None:
    own = {"mine": lambda: regard.Projected(regard.Cosine(2), 8, 8, width=4, heads=2)}
    found = {one.name: one for one in candidates(ScoreSizes(8, 8, 8, True), own)}
    assert found[found["mine"].null].heads == 2
    assert next(iter(found.values())).heads == 1


def test_nulls_of_finalists_are_in_the_final(tmp_path: Path) -> None:
    verdict = small(tmp_path / "a", hidden=(32,), finalists=1, seeds=1, rates=(1e-2,))
    row = verdict.row("additive h=32")
    if row.status != "final":  # then a null is the best of the others
        assert verdict.row("scaled_dot w=32").status == "final"
        return
    assert row.null == "scaled_dot w=32" and verdict.row(row.null).status == "final"
    assert row.parameters is not None and row.parameters > 0


def less_loss(output: torch.Tensor, target: torch.Tensor) -> float:
    """A smooth metric, for which a little learning is better than none."""
    return -float(nn.functional.cross_entropy(output, target))


def test_rates_at_the_end_of_the_grid_are_widened(tmp_path: Path) -> None:
    """Rates far too low: two more are tried beyond the end, and the row says it is still at the end."""
    loss = nn.functional.cross_entropy
    options = {"rates": (1e-5, 3e-5), "scores": (), "loss": loss, "metric": less_loss}
    verdict = small(tmp_path / "a", **options)
    cells = [t.user_attrs["cell"]["rate"] for t in trials(tmp_path / "a", "choose/search")]
    assert sorted(cells) == [1e-5, 3e-5, 9e-5, 2.7e-4]
    row = verdict.row("scaled_dot")
    assert row.rate == 2.7e-4 and row.at_edge
    assert any("at the end of those tried" in note.en for note in verdict.facts["notes"])
    # A resumed run finds nothing left to try.
    small(tmp_path / "a", **options, resume=True)
    assert len(trials(tmp_path / "a", "choose/search")) == len(cells)


def test_the_ladder_of_rates() -> None:
    settings = Settings(["a"], [1e-3, 1e-2, 3e-2], [1], 10, 8, "accuracy", 1)
    assert settings.ladder == [1.11e-4, 3.33e-4, 1e-3, 1e-2, 3e-2, 9e-2, 0.27]
    grid = set(settings.rates)
    assert settings.beyond(1e-2, grid) is None
    assert settings.beyond(3e-2, grid) == 9e-2 and settings.beyond(1e-3, grid) == 3.33e-4
    assert settings.beyond(3e-2, grid | {9e-2}) is None  # the next one was tried and is worse
    assert settings.beyond(0.27, grid | {9e-2, 0.27}) is None
    fixed = Settings(["a"], [1e-2], [1], 10, 8, "accuracy", 1)
    assert fixed.beyond(1e-2, {1e-2}) is None


def housing(rows: int = 600) -> tuple[torch.Tensor, ...]:
    """Rows with the scales of raw housing data: rooms near 5, people in thousands, prices in 100,000s."""
    generator = torch.Generator().manual_seed(3)
    key = torch.randn(rows, 6, 4, generator=generator)
    right = torch.randint(6, (rows,), generator=generator)
    query = key[torch.arange(rows), right] + 0.1 * torch.randn(rows, 4, generator=generator)
    value = torch.randn(rows, 6, 1, generator=generator)
    target = 2e5 + 1e5 * value[torch.arange(rows), right]
    scales, shift = torch.tensor([1.0, 50.0, 1000.0, 1e4]), torch.tensor([5.0, 30.0, 2e3, -1e4])
    return query * scales + shift, key * scales + shift, value * 300 + 1000, target


class Read(nn.Module):
    """Attention over the keys, and a linear layer."""

    def __init__(self, score: regard.Score) -> None:
        super().__init__()
        self.score, self.out = score, nn.Linear(1, 1)

    def forward(self, query, key, value):
        read = regard.attention(query[:, None, None], key[:, None], value[:, None], self.score)
        return self.out(read.flatten(1))


def test_scaled_dot_learns_raw_scales_when_standardised(tmp_path: Path) -> None:
    options = {
        "build": Read, "data": housing(), "dims": 4, "width": 4, "scores": (), "steps": 250, "seeds": 2,
        "rates": (3e-2,), "baselines": False, "control": False,
    }  # fmt: skip
    raw = small(tmp_path / "a", **options)
    good = small(tmp_path / "b", **options, standardize=True)
    level = [x.row("scaled_dot").mean().value for x in (raw, good)]
    assert level[0] < 0.3 and level[1] > 0.6
    assert "were not standardised: standardize=True" in " ".join(x.en for x in raw.facts["notes"])
    assert "Standardise yours too" in " ".join(x.en for x in good.facts["notes"])
    with pytest.raises(ChooseError, match="it differs in standardize"):
        small(tmp_path / "b", **options, resume=True)


def test_scales_ignore_padding_and_keep_constant_columns() -> None:
    x = torch.tensor([[[1.0, 7.0], [99.0, 7.0]], [[3.0, 7.0], [5.0, 7.0]]])
    mask = torch.tensor([[True, False], [True, True]])
    scale = column_scale(x, mask)
    assert scale.mean.tolist() == [3.0, 7.0] and scale.std[1] == 1
    parts = [(x[:, 0], x, mask, torch.tensor([1.0, 2.0]))] * 3
    found = DataParts(parts, standardize=True)
    key = found.train.tensors[1]
    assert key[0, 1].tolist() == [0, 0] and key[0, 0, 0] == pytest.approx(-2 / 8**0.5 * 3**0.5)
    assert found.target_scale is not None
    assert torch.allclose(
        found.target_scale.back(found.target_scale.into(torch.ones(3))), torch.ones(3)
    )
    with pytest.raises(ChooseError, match="standardize=True needs the parts as arrays"):
        DataParts([Batched(parts)] * 2, standardize=True)


def test_notes_on_columns_and_classes() -> None:
    x = torch.randn(50, 3) * torch.tensor([1.0, 1e4, 0.0])
    told = [note.en for note in notes_on_scales([x], (), scaled=False)]
    assert told[0].startswith("1 of the 3 columns of query are constant") and len(told) == 2
    assert notes_on_scales([torch.randn(50, 3)], (), scaled=False) == []
    target = torch.tensor([0] * 95 + [1] * 3 + [2] * 12)
    told = [note.en for note in notes_on_classes(target)]
    assert "86% of the training rows are of class 0" in told[0] and "1 of the 3 classes" in told[1]
    assert notes_on_classes(torch.arange(40) % 4) == []


def test_the_control_learns_nothing(tmp_path: Path) -> None:
    data = SMALL(0)
    verdict = small(tmp_path / "a", data=data, steps=60, seeds=3, rates=(3e-2,), scores=())
    assert verdict.control is not None and len(verdict.control) == 3
    level = verdict.row("scaled_dot").mean().value
    assert level > 0.6 and sum(verdict.control) / 3 < level - 0.2
    count = len(trials(tmp_path / "a", "choose/final"))
    again = small(
        tmp_path / "a", data=data, steps=60, seeds=3, rates=(3e-2,), scores=(), resume=True
    )
    assert again.control == verdict.control
    assert len(trials(tmp_path / "a", "choose/final")) == count == 6
    assert small(tmp_path / "b", rates=(3e-2,), scores=(), steps=5).control is None  # drawn data


def test_a_loader_s_targets_are_shuffled_within_batches() -> None:
    batches = [(torch.arange(8.0), torch.arange(8)), (torch.arange(8.0), torch.arange(8) + 8)]
    parts = DataParts([Batched(batches), Batched(batches)])
    first, again = (parts.shuffled(1).train.batches() for _ in range(2))
    assert torch.equal(first[1][-1], again[1][-1]) and not torch.equal(first[0][-1], batches[0][1])
    assert sorted(first[1][-1].tolist()) == list(range(8, 16))


class Batched:
    """A loader that gives these batches."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def encoder(score: regard.Score) -> nn.Module:
    """A torch encoder whose attention is replaced."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), Pool())
    regard.nn.replace_attention(model, score)
    return model


class Pool(nn.Module):
    """The mean over positions, as two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.mean(1))


def test_replace_attention_inside_build_model(tmp_path: Path) -> None:
    """It failed for additive: "score=Projected(...) would project twice"."""
    x = torch.randn(120, 5, 16)
    data = [(part, (part[..., 0].sum(1) > 0).long()) for part in x.split((80, 20, 20))]
    verdict = regard.choose(
        encoder, data, scores=("additive", "cosine", "bilinear"), stabilizers=("none", "layer_norm"),
        steps=4, seeds=2, rates=(1e-2,), progress=False, vitals=False, control=False, finalists=9,
        storage=tmp_path / "a",
    )  # fmt: skip
    assert {row.status for row in verdict.rows} == {"final"}, [row.reason for row in verdict.rows]
    codes = {row.candidate.name: row.candidate.code for row in verdict.rows}
    assert codes["additive h=16"] == "regard.Additive(4, 4, bias=True)"
    assert not any("Projected" in code for code in codes.values())
    with pytest.raises(ValueError, match="heads=2, but the MultiheadAttention in your model has 4"):
        candidate_sizes(encoder, data, None, 2, None, None)
    with pytest.raises(ValueError, match="dims must be a number"):
        candidate_sizes(Match, data, None, None, None, None)


def test_heads_of_data_of_one_s_own() -> None:
    data = split_rows((torch.randn(60, 16), torch.randn(60, 4, 16), torch.randint(4, (60,))))
    found = candidate_sizes(Match, data, 16, None, None, True)
    assert found.heads == (1, 4) and found.optional
    asked, optional = found.kept(candidates(found.sizes, heads=found.heads, hidden=(16,)))
    assert "cosine heads=4" in optional and "cosine heads=1" not in optional
    assert "scaled_dot+layer_norm heads=4" not in {one.name for one in asked}
    assert candidate_sizes(Match, data, 8, None, None, True).heads == (
        1,
    )  # heads of width 2 are no use
    assert candidate_sizes(Match, SMALL, 16, None, None, True).heads == (1,)
    assert candidate_sizes(Match, data, 16, (1, 2), None, True) == (found.sizes, (1, 2), False)


def test_several_heads_are_left_out_if_time_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = split_rows((torch.randn(90, 16), torch.randn(90, 4, 16), torch.randint(4, (90,))))
    options = {
        "dims": 16, "data": data, "heads": None, "width": 16, "scores": (), "baselines": False,
        "control": False, "seeds": 1, "rates": (1e-2,),
    }  # fmt: skip
    long = small(tmp_path / "b", **options, steps=5)
    assert {row.candidate.heads for row in long.rows} == {1, 4}
    monkeypatch.setattr(Contest, "fitting_steps", lambda self, costs: 4)
    short = small(tmp_path / "a", **options, steps=5)
    assert [row.candidate.name for row in short.rows] == ["scaled_dot heads=1"]
    # A resumed run follows the first, whatever time it has.
    assert len(small(tmp_path / "b", **options, steps=5, resume=True).rows) == 2


def test_a_journal_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    with quiet(), opened(tmp_path / "a") as storage:
        old = {"candidates": ["scaled_dot"], "rates": [0.01], "steps": 20}
        open_study(storage, "choose/search").set_user_attr("settings", old)
    with pytest.raises(ChooseError, match=r"begun by an earlier version.*resume=False"):
        small(tmp_path / "a", resume=True)
