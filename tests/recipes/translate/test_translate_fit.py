"""The translator learns, saves, loads, resumes to the bit, and works with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from regard import Additive
from regard.recipes import training
from regard.recipes.estimator import RecipeError
from regard.recipes.translate import KIT, Translator
from regard.recipes.translate.bleu import bleu_statistics, corpus_bleu
from regard.recipes.translate.dates import DAYS, written
from regard.recipes.translate.decoding import Search, best_of_one
from regard.recipes.translate.translator import ARCHITECTURES
from regard.scores import Projected
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

SMALL = {
    "width": 64,
    "layers": 1,
    "vocabulary": 60,
    "label_smoothing": 0.0,
    "dropout": 0.0,
    "rate": 5e-3,
    "warmup": 20,
    "average": None,
    "batch_tokens": 128,
    "max_length": 24,
    "validate_every": 99,
    "beam": 3,
    "device": "cpu",
}
TINY = SMALL | {"width": 16, "batch_tokens": 24, "vocabulary": 40, "warmup": 2}
FEW = ["ein Hund", "eine Katze", "zwei Hunde", "zwei Katzen", "ein Haus", "zwei Häuser"]
SAID = ["a dog", "a cat", "two dogs", "two cats", "a house", "two houses"]


@pytest.fixture(scope="module")
def slice_of_dates():
    """German dates in digits: two parts, for training and to look at."""
    days = np.random.default_rng(0).permutation(DAYS)[:700].tolist()
    part = written(days, ["de"] * 700, ["medium"] * 700)
    assert part.x[0] != part.y[0] and part.x[0].count(".") == 2
    return (part.x[:600], part.y[:600]), (part.x[600:], part.y[600:])


def learner(architecture: str, slice_of_dates, rows: int, **more) -> Translator:
    (x, y), held = slice_of_dates
    model = Translator(architecture, **SMALL | {"epochs": 4} | more)
    return model.fit(x[:rows], y[:rows], validation=held)


@pytest.fixture(scope="module")
def trained(slice_of_dates):
    return learner("bahdanau", slice_of_dates, 400)


def trivial_bleu(slice_of_dates) -> float:
    """The best of two translations that look at nothing: the sentence itself, and one date for all."""
    train, (x, y) = slice_of_dates
    return max(corpus_bleu(bleu_statistics(one, y, True)) for one in (x, [train[1][0]] * len(y)))


def test_bahdanau_learns_well_above_the_trivial(slice_of_dates, trained):
    assert trained.score(*slice_of_dates[1]) > 85 > 15 > trivial_bleu(slice_of_dates)
    assert trained.history_.losses[-1] < 0.2 * trained.history_.losses[0]


@pytest.mark.parametrize(
    ("architecture", "rows", "more"),
    [("luong", 400, {"encoder_width": 64}), ("transformer", 550, {"width": 32, "rate": 8e-3})],
)
def test_so_do_the_others(slice_of_dates, architecture, rows, more):
    found = learner(architecture, slice_of_dates, rows, **more)
    assert found.score(*slice_of_dates[1]) > 60 > 15 > trivial_bleu(slice_of_dates)


def test_a_digit_looks_at_the_piece_that_it_comes_from(trained):
    """The learned alignment, in pieces and rows that sum to one."""
    source, target, weights = trained.attend("25.12.2074")
    assert "".join(source[:-1]).replace("▁", "") == "25.12.2074"
    assert "".join(target[:-1]).replace("▁", "") == trained.predict(["25.12.2074"])[0]
    assert weights.shape == (len(target), len(source))
    torch.testing.assert_close(weights.sum(1), torch.ones(len(target)), atol=1e-5, rtol=0)


def test_several_best_are_sorted_distinct_and_begin_with_the_best(slice_of_dates, trained):
    some = slice_of_dates[1][0][:20]
    best = trained.predict(some, beam=4, n_best=3)
    assert [one[0] for one in best] == trained.predict(some, beam=4)
    assert all(len(one) == 3 == len(set(one)) for one in best)
    row = trained.encoded(some[:1])[0]
    scores = best_of_one(trained.model_, row, Search(4, 1.0, 3), 24).scores[0].tolist()
    assert scores == sorted(scores, reverse=True)


def test_saved_and_loaded_translates_the_same(slice_of_dates, trained, tmp_path):
    trained.save(tmp_path / "model.safetensors")
    again = Translator.load(tmp_path / "model.safetensors", device="cpu")
    some = slice_of_dates[1][0][:30]
    assert again.predict(some) == trained.predict(some)
    assert again.predict(some, n_best=2) == trained.predict(some, n_best=2)
    assert torch.equal(again.attend(some[0])[2], trained.attend(some[0])[2])
    assert again.get_params() == trained.get_params()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_killed_training_resumes_to_the_same_weights(architecture, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    more = {"average": 0.9, "dropout": 0.2, "word_dropout": 0.2, "consistency": 1.0, "epochs": 4}
    model = Translator(architecture, **TINY | more | {"validate_every": 1})
    held = {"validation": (FEW[:2], SAID[:2])}
    whole = clone(model).fit(FEW, SAID, **held)
    place = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        clone(model).fit(FEW, SAID, checkpoint=place, progress=KillAtStep(5), **held)
    assert place.exists()
    resumed = clone(model).fit(FEW, SAID, checkpoint=place, **held)
    assert same_weights(whole, resumed)
    assert resumed.history_.losses == whole.history_.losses
    assert resumed.history_.validations == whole.history_.validations


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, second, other = (
        Translator("bahdanau", seed=seed, epochs=1, **TINY | {"dropout": 0.2}).fit(FEW, SAID)
        for seed in (1, 1, 2)
    )
    weights = [one.model_.state_dict()["decoder.bridge.weight"] for one in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_clone_keeps_every_argument():
    model = Translator("luong", "cosine", width=48, encoder_width=32, average=None, graphs=True)
    assert clone(model).get_params() == model.get_params()
    assert clone(model).chosen_score == "cosine"


@pytest.mark.parametrize("score", [*SIZED, None, "object"], ids=str)
def test_every_score_trains_a_transformer(score, tmp_path):
    given = Additive(4, 4) if score == "object" else score
    model = Translator("transformer", given, epochs=1, **TINY).fit(FEW, SAID)
    assert model.history_.losses[0] < 20 and len(model.predict(FEW)) == len(FEW)
    if score == "object":
        with pytest.raises(RecipeError, match="score="):
            model.save(tmp_path / "model")


def test_a_score_object_trains_a_recurrent_network_and_is_not_shared():
    given = Projected(Additive(8), 16, 32)
    one, two = (Translator("bahdanau", given, epochs=1, **TINY).fit(FEW, SAID) for _ in range(2))
    scores = [model.model_.decoder.attention.score for model in (one, two)]
    assert scores[0] is not scores[1] and given not in scores


def test_a_validation_part_is_kept_apart_where_none_is_given():
    model = Translator("bahdanau", epochs=1, **TINY | {"validate_every": 1}).fit(FEW, SAID)
    assert len(model.history_.validations) == 1
    assert Translator("bahdanau", epochs=1, **TINY).fit(["a b"], ["c d"]).predict(["a b"])


def test_patience_and_minutes_end_a_training():
    few = TINY | {"validate_every": 1, "rate": 1e-9}
    patient = Translator("bahdanau", epochs=50, patience=2, **few).fit(FEW, SAID)
    assert patient.history_.stopped == "patience" and len(patient.history_.losses) < 10
    late = Translator("bahdanau", epochs=50, minutes=1e-9, **few).fit(FEW, SAID)
    assert late.history_.stopped == "minutes" and len(late.history_.losses) == 1


def test_bfloat16_trains_on_the_cpu_too():
    model = Translator("transformer", precision="bf16", epochs=2, **TINY).fit(FEW, SAID)
    assert np.isfinite(model.history_.losses).all()
    assert next(model.model_.parameters()).dtype == torch.float32


def test_not_fitted_is_said():
    for use in (lambda one: one.predict(["a"]), lambda one: one.attend("a")):
        with pytest.raises(NotFittedError):
            use(Translator())


def test_kit_arguments_build_for_every_set():
    for name in KIT.sets:
        KIT.estimator(**KIT.arguments(name)).check_arguments()  # type: ignore[attr-defined]
