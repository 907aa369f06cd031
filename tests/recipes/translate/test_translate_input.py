"""Bad input has one clear error or a defined result; sets; BLEU and chrF; the kit."""

from __future__ import annotations

import gzip
import os
import sys

import numpy as np
import pytest
import sacrebleu
import torch

from regard.recipes.estimator import RecipeError
from regard.recipes.sources import VARIABLE, DataError, find_folder
from regard.recipes.translate import KIT, Translator
from regard.recipes.translate.bleu import (
    bleu_statistics,
    corpus_bleu,
    corpus_chrf,
    signatures,
)
from regard.recipes.translate.dates import LOCALES, dates
from regard.recipes.translate.kit import load
from regard.recipes.translate.multi30k import MULTI30K
from regard.recipes.translate.picture import EXAMPLES, bare, example, show
from regard.recipes.translate.subwords import BOS, EOS, PAD, SPECIAL, Subwords
from regard.text import LANGUAGES

X = ["Ein Hund!", "eine Katze", "", "zwei Hunde", "ein Haus"]
Y = ["A dog!", "a cat", "nothing", "two dogs", "  "]
HERE = bool(os.environ.get(VARIABLE)) and find_folder(MULTI30K, None) is not None
needs_data = pytest.mark.skipif(not HERE, reason=f"{VARIABLE} names no folder with multi30k/")


def small(architecture: str = "bahdanau", **more) -> Translator:
    fixed = {"width": 16, "layers": 1, "epochs": 1, "vocabulary": 50, "beam": 2, "device": "cpu"}
    return Translator(architecture, **fixed | {"max_length": 12} | more)


@pytest.fixture(scope="module")
def model():
    return small().fit(X, Y)


def test_pairs_without_text_on_a_side_are_left_out_of_training(model):
    assert model.left_out_ == 2
    assert "haus" not in "".join(model.subwords_.pieces(range(len(model.subwords_))))


def test_an_empty_sentence_is_translated_to_an_empty_one(model):
    assert model.predict(["", " \t", "ein Hund"])[:2] == ["", ""]
    assert model.predict([""], n_best=2) == [["", ""]]
    assert model.predict([]) == []
    with pytest.raises(RecipeError, match="x is empty"):
        model.score([], [])
    with pytest.raises(RecipeError, match="empty"):
        model.attend(" ")


def test_halves_of_characters_are_refused(model):
    with pytest.raises(RecipeError, match=r"x\[1\] is no text in Unicode"):
        model.predict(["a", "a\udcff"])


@pytest.mark.parametrize("name", SPECIAL)
def test_names_of_special_pieces_in_a_sentence_are_text(model, name):
    """Whoever wrote "<eos>" in a sentence ended it there."""
    for own in (model.subwords_, Subwords.from_json(model.subwords_.to_json())):
        found = own.encode([f"ein {name} Hund"])[0]
        assert not {PAD, BOS, EOS} & {*found}
        assert found != own.encode(["ein  Hund"])[0]


def test_unknown_characters_are_read_and_never_written(model):
    found = model.predict(["日本 ☃", "ein ☃ Hund"], n_best=2)
    assert not any(mark in text for one in found for text in one for mark in SPECIAL)
    source, _, _ = model.attend("☃")
    assert "<unk>" in source


def test_of_a_sentence_that_is_too_long_the_first_pieces_are_read_with_a_warning(model):
    long = "ein Hund " * 20
    with pytest.warns(UserWarning, match=r"max_length=12 pieces: 1 of 2 sentences.* row 1"):
        found = model.predict(["ein Hund", long])
    with pytest.warns(UserWarning, match="max_length=12"):
        assert found == model.predict(["ein Hund", long + long])
    assert small().fit([*X, long], [*Y, "a"], validation=(X, Y)).left_out_ == 3
    with pytest.raises(RecipeError, match="enlarge it"):
        small(max_length=2).fit(["ein Hund", "zwei Hunde"], ["a dog", "two dogs"])


def test_case_and_spaces_change_nothing_unless_case_is_kept(model):
    assert model.predict(["  EIN   HUND! "]) == model.predict(["ein hund!"])
    known = small(lowercase=False).fit(X, Y).subwords_
    assert known.encode(["Ein"]) != known.encode(["ein"])
    assert known.decode(known.encode(["Ein Hund!"])) == ["Ein Hund!"]


def test_a_damaged_vocabulary_is_an_error_that_loading_knows():
    for text in ("", "{}", "nonsense"):
        with pytest.raises(ValueError, match="no vocabulary of subwords"):
            Subwords.from_json(text)


def test_subwords_come_back_and_digits_stand_alone():
    known = Subwords.learn(["am 12.03.2028 um halb zwölf"] * 3, 200, True)
    text = "um 12.03 zwölf"
    assert known.decode(known.encode([text])) == [text]
    assert [one for one in known.pieces(known.encode(["2028"])[0]) if len(one.strip("▁")) > 1] == []
    again = Subwords.from_json(known.to_json())
    assert again.encode([text]) == known.encode([text]) and len(again) == len(known)
    # The same character composed and as a letter with a mark.
    assert known.encode(["zw\u00f6lf"]) == known.encode(["zwo\u0308lf"])


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X, None, "y is missing"),
        (X, Y[:-1], "5 sentences and y 4"),
        ("ein Hund", Y, "give \\[x\\]"),
        (X, "a dog", "give \\[y\\]"),
        (3, Y, "list of sentences"),
        (["a", None], ["A", "B"], "x\\[1\\]"),
        (["a", "b"], ["A", float("nan")], "y\\[1\\]"),
        ([], [], "nothing to train on"),
        (["", "a"], ["A", " "], "nothing to train on"),
    ],
)
def test_mistakes_in_rows_are_named(x, y, text):
    with pytest.raises(RecipeError, match=text):
        small().fit(x, y)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"architecture": "cnn"}, "architecture"),
        ({"architecture": "none", "score": "dot"}, "score must be None"),
        ({"score": "nonesuch"}, "nonesuch"),
        ({"encoder_width": 33}, "even"),
        ({"architecture": "transformer", "encoder_width": 32}, "encoder_width"),
        ({"architecture": "transformer", "embedding": 32}, "embedding"),
        ({"precision": "fp8"}, "precision"),
        ({"dropout": 1.5}, "dropout"),
        ({"label_smoothing": -0.1}, "label_smoothing"),
        ({"epochs": 0}, "epochs"),
        ({"vocabulary": 2.5}, "vocabulary"),
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
        model.predict(["ein Hund"], n_best=3)
    for wrong in ({"beam": 0}, {"n_best": 0}):
        with pytest.raises(ValueError, match="must be"):
            model.predict(["ein Hund"], **wrong)
    with pytest.raises(RecipeError, match="give \\[x\\]"):
        model.predict("ein Hund")
    for use in (model.statistics, model.chrf, model.score):
        with pytest.raises(RecipeError, match="1 sentences and y 2"):
            use(["ein Hund"], ["a dog", "a cat"])
    with pytest.raises(RecipeError, match="no attention"):
        small("none").fit(X, Y).attend("ein Hund")


TRANSLATIONS = ["a dog runs , fast .", "the cat sleeps", "", "two men are at the beach ."]
REFERENCES = ["A dog runs, fast.", "A cat is sleeping.", "Nothing.", "Two men are at the beach."]


@pytest.mark.parametrize("lowercase", [True, False])
def test_bleu_and_chrf_are_those_of_sacrebleu(lowercase):
    found = bleu_statistics(TRANSLATIONS, REFERENCES, lowercase)
    assert found.shape == (4, 10)
    for rows in ([0, 1, 2, 3], [3, 3, 0], [2]):
        said, right = [TRANSLATIONS[n] for n in rows], [REFERENCES[n] for n in rows]
        wanted = sacrebleu.corpus_bleu(said, [right], lowercase=lowercase, force=True)
        assert corpus_bleu(found[rows]) == pytest.approx(wanted.score, abs=1e-9)
        chrf = sacrebleu.metrics.CHRF(lowercase=lowercase).corpus_score(said, [right])
        assert corpus_chrf(said, right, lowercase) == pytest.approx(chrf.score, abs=1e-9)
    assert bleu_statistics([], [], lowercase).shape == (0, 10)


def test_signatures_say_which_bleu():
    found = signatures(True)
    assert "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:" in found["BLEU"]
    assert found["chrF"].startswith("nrefs:1|case:lc") and "case:mixed" in signatures(False)["BLEU"]


def test_dates_are_the_same_every_time_and_no_day_is_in_two_parts():
    data, few = dates(), dates(limit=5)
    parts = [data.train, data.validation, data.test]
    assert [len(one) for one in parts] == [8000, 300, 1000]
    every = [day for part in parts for day in part.y]
    assert len(set(every)) == len(every)
    assert few.train.x == data.train.x[:5] and few.test.x == data.test.x
    assert len(set(LOCALES)) == 40 and data.origin == "generated"
    assert "generated" in data.title.en


def test_babel_that_is_not_installed_is_said_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel.dates", None)
    with pytest.raises(DataError, match="pip install 'regard\\[recipes\\]'"):
        load("dates")


def test_multi30k_needs_no_babel(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.setitem(sys.modules, "babel.dates", None)
    with pytest.raises(DataError, match="multi30k"):
        load("multi30k-de-en", tmp_path)


def test_missing_data_name_the_address_the_checksum_and_the_option(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = MULTI30K.files[0]
    with pytest.raises(DataError, match="--data") as error:
        load("multi30k-de-en")
    assert first.address in str(error.value) and first.sha256 in str(error.value)
    with pytest.raises(DataError, match="has no multi30k"):
        load("multi30k-de-en", tmp_path)
    with pytest.raises(RecipeError, match="there is no set"):
        load("multi30k-de-fr")


def test_a_wrong_checksum_is_refused(tmp_path):
    for one in MULTI30K.files:
        (tmp_path / one.name).write_bytes(gzip.compress(b"ein Hund\n"))
    with pytest.raises(DataError, match="sha256"):
        load("multi30k-en-fr", tmp_path)


@needs_data
@pytest.mark.parametrize("name", ["multi30k-de-en", "multi30k-en-de", "multi30k-en-fr"])
def test_sides_of_multi30k_are_aligned(name):
    data = load(name, limit=100)
    for part, rows in ((data.train, 100), (data.validation, 1014), (data.test, 1000)):
        assert len(part.x) == len(part.y) == rows
        assert all(one.strip() for one in (*part.x, *part.y))
        # A sentence and its translation have about as many letters.
        lengths = np.array(
            [[len(one), len(other)] for one, other in zip(part.x, part.y, strict=True)]
        )
        assert np.corrcoef(lengths.T)[0, 1] > 0.7
    assert not data.show_rows and "non-commercial" in data.licence


@needs_data
def test_a_slice_of_multi30k_trains_without_the_name_of_a_device():
    data = load("multi30k-de-en", limit=200)
    more = {"vocabulary": 300, "max_length": 64, "batch_tokens": 512, "warmup": 5, "device": None}
    model = small("transformer", heads=2, epochs=3, validate_every=3, **more)
    model.fit(data.train.x, data.train.y, validation=(data.validation.x[:5], data.validation.y[:5]))
    assert model.history_.losses[-1] < 0.95 * model.history_.losses[0]


@needs_data
def test_the_sentences_that_are_drawn_are_not_of_multi30k():
    for name in ("multi30k-de-en", "multi30k-en-fr"):
        data = load(name)
        known = {
            one.strip().lower()
            for part in (data.train, data.validation, data.test)
            for one in (*part.x, *part.y)
        }
        assert not known & {one.lower() for one in EXAMPLES}


def test_whole_files_and_typed_sentences_go_through_the_kit(model):
    lines = ["ein Hund!\n", "\r\n", "  eine Katze\n"]
    inputs = KIT.read(lines)
    assert inputs == ["ein Hund!", "", "  eine Katze"]
    assert KIT.write(inputs, model.predict(inputs)) == model.predict(
        ["ein hund!", "", "eine katze"]
    )
    best = KIT.write(inputs, model.predict(inputs, n_best=2))
    assert [line.count("\t") for line in best] == [1, 1, 1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_alignment_is_drawn_with_its_sentence(model, language):
    figure = show(model, ["zwei Hunde"], language)
    assert "zwei Hunde" in " ".join(text.get_text() for text in figure.findobj(match=is_text))
    with pytest.warns(UserWarning, match="max_length"):  # all examples are too long for this model
        assert show(model, None, language).axes
    with pytest.raises(RecipeError, match="expected Translator"):
        show(object(), None)  # type: ignore[arg-type]
    assert bare(["▁ein", "▁", "s", "<eos>"]) == ["ein", " ", "s", "■"]


def is_text(artist) -> bool:
    return hasattr(artist, "get_text")


def test_each_model_draws_the_example_that_it_is_surest_of(monkeypatch):
    sure = iter([-3.0, -0.5, -2.0])
    monkeypatch.setattr(
        "regard.recipes.translate.picture.piece_log_prob", lambda *given: next(sure)
    )
    found = small(max_length=60).fit(X, Y)
    assert example(found) == EXAMPLES[1]
    found.max_length = 3
    assert example(found) == EXAMPLES[0]


def test_a_transformer_gives_the_same_in_a_batch_and_alone():
    found = small("transformer", heads=2).fit(X, Y)
    texts = ["ein Hund!", "eine Katze", "zwei Hunde und eine Katze"]
    assert found.predict(texts, beam=2) == [found.predict([one], beam=2)[0] for one in texts]
    assert torch.isfinite(found.attend(texts[0])[2]).all()
