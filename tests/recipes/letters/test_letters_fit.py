"""Letters to sounds learns, saves, loads, resumes to the bit, and works with scikit-learn."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
from sklearn.base import clone

from regard import Additive
from regard.nn.seq2seq import MonotonicAttention
from regard.recipes import training
from regard.recipes.estimator import RecipeError
from regard.recipes.letters import KIT, LettersToSounds
from regard.recipes.letters.errors import error_statistics, phone_error_rate
from regard.recipes.letters.networks import ATTENTIONS
from regard.recipes.letters.rows import checked_sounds
from regard.scores import Projected
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

SMALL = {
    "width": 48,
    "layers": 1,
    "embedding": 32,
    "encoder_width": 64,
    "dropout": 0.1,
    "label_smoothing": 0.0,
    "rate": 1e-2,
    "warmup": 20,
    "batch_symbols": 96,
    "average": None,
    "beam": 2,
    "device": "cpu",
}
FEW = ["cat", "dog", "thing", "sing", "bed", "rat", "dig", "bat", "red", "log"]
SAID = ["K AE T", "D AO G", "TH IH NG", "S IH NG", "B EH D"]
SAID += ["R AE T", "D IH G", "B AE T", "R EH D", "L AO G"]


@pytest.fixture(scope="module")
def words(sample):
    """Short words of CMUdict, which a small network learns in seconds."""
    every = zip(sample.train.x, sample.train.y, strict=True)
    pairs = [(one, ways) for one, ways in every if len(one) < 6]
    return [one for one, _ in pairs], [ways for _, ways in pairs]


def trained_as(attention: str, words) -> LettersToSounds:
    """A small model of 1,000 words, validated on 100 others."""
    x, y = words[0][:1000], words[1][:1000]
    held = words[0][1200:1300], words[1][1200:1300]
    model = LettersToSounds(attention, epochs=5, validate_every=5, **SMALL)
    return model.fit(x, y, validation=held)


@pytest.fixture(scope="module")
def trained(words):
    return trained_as("softmax", words)


def letter_by_letter(words: list[str], sounds: list[list[str]]) -> dict[str, str]:
    """The trivial baseline: for each letter its most frequent sound, in words of as many sounds as letters."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for word, ways in zip(words, sounds, strict=True):
        if len(said := ways[0].split()) == len(word):
            for letter, sound in zip(word, said, strict=True):
                counts[letter][sound] += 1
    return {letter: one.most_common(1)[0][0] for letter, one in counts.items()}


@pytest.mark.parametrize("attention", ["softmax", "location", "monotonic"])
def test_learns_words_it_has_not_seen(attention, words, request):
    x, y = words[0][1300:1500], words[1][1300:1500]
    table = letter_by_letter(words[0][:1000], words[1][:1000])
    trivial = error_statistics([tuple(table[one] for one in word) for word in x], checked_sounds(y))
    own = attention == "softmax"
    model = request.getfixturevalue("trained") if own else trained_as(attention, words)
    assert model.quality(x, y) < model.metric.value(trivial) - 8
    assert model.phone_errors(x, y) < 0.8 * phone_error_rate(trivial)
    assert model.left_out_ == 0
    assert 10 < model.history_.best < 100  # words right, in percent


def test_saved_and_loaded_predicts_the_same(words, trained, tmp_path):
    trained.save(tmp_path / "model")
    again = LettersToSounds.load(tmp_path / "model", device="cpu")
    some = words[0][1300:1330]
    assert again.predict(some) == trained.predict(some)
    assert again.predict(some, n_best=2) == trained.predict(some, n_best=2)
    assert again.left_out_ == trained.left_out_


def test_the_best_of_several_is_the_prediction_and_beams_differ_from_greedy(words, trained):
    some = words[0][1300:1400]
    best = trained.predict(some, beam=4, n_best=3)
    assert [one[0] for one in best] == trained.predict(some, beam=4)
    assert all(len(set(one)) == 3 for one in best)
    assert trained.predict(some, beam=1) != trained.predict(some, beam=4)


def test_alignment_has_a_row_for_each_sound_and_a_column_for_each_letter(trained):
    letters, sounds, weights = trained.attend("Bat")
    assert letters == ["b", "a", "t", "■"] and sounds[-1] == "■"
    assert sounds[:-1] == trained.predict(["bat"])[0].split()
    assert weights.shape == (len(sounds), len(letters))
    torch.testing.assert_close(weights.sum(1), torch.ones(len(sounds)), atol=1e-5, rtol=0)


def test_a_killed_training_resumes_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    model = LettersToSounds(
        epochs=4, **SMALL | {"average": 0.9, "batch_symbols": 16}, word_dropout=0.1
    )
    options = {"validation": (FEW[:3], SAID[:3])}
    whole = clone(model).fit(FEW, SAID, **options)
    place = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        clone(model).fit(FEW, SAID, checkpoint=place, progress=KillAtStep(9), **options)
    assert place.exists()
    resumed = clone(model).fit(FEW, SAID, checkpoint=place, **options)
    assert same_weights(whole, resumed)
    assert resumed.history_.losses == whole.history_.losses
    assert len(resumed.history_.losses) == 4


def test_clone_keeps_every_argument():
    model = LettersToSounds("monotonic", "cosine", width=48, form="NFD", average=None)
    assert clone(model).get_params() == model.get_params()
    assert clone(model).chosen_score == "cosine"


@pytest.mark.parametrize("attention", [*ATTENTIONS, *SIZED, None], ids=str)
def test_every_attention_trains_and_is_saved(attention, tmp_path):
    """None stands for a `Score` object, which trains and cannot be saved."""
    given = attention or Projected(Additive(16), 48, 64)
    model = LettersToSounds(given, epochs=1, **SMALL)
    model.fit(FEW, SAID, validation=(FEW, SAID))
    assert model.history_.losses[0] < 20
    assert isinstance(model.model_.decoder.attention, MonotonicAttention) == (
        attention == "monotonic"
    )
    if attention is None:
        with pytest.raises(RecipeError, match="attention="):
            model.save(tmp_path / "model")
        return
    model.save(tmp_path / "model")
    assert LettersToSounds.load(tmp_path / "model", device="cpu").predict(FEW) == model.predict(FEW)


def test_location_and_monotonic_take_any_score():
    for attention in ("location", "monotonic", "luong"):
        model = LettersToSounds(attention, "scaled_dot", epochs=1, **SMALL)
        model.fit(FEW, SAID, validation=(FEW, SAID))
        assert len(model.predict(FEW)) == len(FEW)


def test_monotonic_alignment_never_goes_back():
    model = LettersToSounds("monotonic", epochs=3, **SMALL).fit(FEW, SAID)
    _, _, weights = model.attend("thing")
    places = [row.argmax().item() for row in weights if row.sum() > 0]
    assert places == sorted(places)


def test_training_takes_the_first_way_to_say_a_word_and_scoring_any(trained):
    both = LettersToSounds(epochs=1, **SMALL).fit(FEW, [[one, "Z"] for one in SAID])
    assert "Z" not in both.sounds_.known
    said = trained.predict(FEW)
    assert trained.quality(FEW, [["Q Q", one] for one in said]) == 0
    assert trained.quality(FEW, [["Q Q", "Z"]] * len(FEW)) == 100


def test_kit_arguments_build_for_every_set():
    for name in KIT.sets:
        KIT.estimator(**KIT.arguments(name)).check_arguments()  # type: ignore[attr-defined]
