"""`LettersToSounds`: a recipe that says how words are pronounced."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from regard import Score
from regard.arguments import check_given_sizes, check_one_of
from regard.describe import describe
from regard.recipes.columns import checked_texts, held_out
from regard.recipes.estimator import RecipeError, building, checked_validation
from regard.recipes.letters.errors import error_statistics, phone_error_rate
from regard.recipes.letters.networks import ATTENTIONS, letters_network
from regard.recipes.letters.rows import (
    Sounds,
    UnicodeForm,
    Word,
    checked_pairs,
    checked_sounds,
    spelled,
    trainable,
)
from regard.recipes.letters.symbols import Symbols, known_in
from regard.recipes.metrics import WORD_ERRORS, percent_right
from regard.recipes.training import TrainingProgress, train
from regard.recipes.translate.batches import Corpus
from regard.recipes.translate.decoding import Search, aligned
from regard.recipes.translate.job import TranslationJob
from regard.recipes.translate.networks import RecurrentTranslator
from regard.recipes.translate.searched import SearchedRecipe
from regard.recipes.translate.subwords import EOS
from regard.scores.lookup import SIZED

NAMED = 3  # words that a warning about letters names


class LettersToSounds(SearchedRecipe):
    """A recipe that turns the letters of words into sounds: a recurrent network with attention.

    ```python
    model = LettersToSounds("location").fit(["cat", "dog"], ["K AE T", "D AO G"])
    model.predict(["dot"])  # ["D AA T"] once it has seen enough words
    ```

    Letters are the characters of a word in lower case; sounds are symbols with spaces between. A word that is said in
    several ways has a list of texts in place of one: training takes the first way, and in scoring any of them is
    right. Sounds are compared in the Unicode form NFC. An empty word has no sounds. A letter that no training word
    has is read as unknown, with a warning; a word of such letters alone has no sounds. Of a word longer than
    `max_length` letters only the first ones are read, with a warning; training leaves such words out, and words
    without letters or sounds.

    Args:
        attention: "softmax" over all letters; "location", which also sees where it looked before (Chorowski et al.
            2015); "monotonic", which walks along the letters and never back (Raffel et al. 2017); "luong", which
            attends after each step; "none", the control that reads the encoder's last states and nothing else; or
            a score, by name or as a `Score`, short for "softmax" with that score: "additive" is Bahdanau's.
        score: how decoder states and letters compare, by name or as a `Score`; None is bilinear for "luong", else
            additive.
        width: of the decoder's states.
        layers: of the encoder; the decoder has one.
        heads: of the attention.
        embedding: width of the embeddings; None is `width`.
        encoder_width: of the encoder's outputs, both directions together; None is twice `width`.
        score_width: width in which the score compares; None is half of `width`.
        dropout: of embeddings, between layers and before the output.
        label_smoothing, word_dropout, consistency: see `Regularization`; pieces are letters and sounds here.
        form: Unicode form of the letters. "NFD" takes Korean syllables apart, and accents from their letters.
        max_length: the most symbols of a word, the end mark included.
        epochs: at most.
        rate: the largest learning rate, reached after `warmup` steps; it falls along a cosine.
        warmup: steps.
        batch_symbols: the most letters or sounds of a batch, padding included.
        average: decay of the moving average of the weights, which are the result; None for none.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        validate_every: epochs between two validations.
        minutes: stop after this much training time.
        checkpoint_every: epochs between two checkpoints.
        beam: of `predict` and `score`; 1 is greedy.
        length_penalty: exponent of GNMT's length penalty in beam search.
        seed: of weights, order and dropout.
        device: None is the GPU if there is one.

    Attributes:
        letters_, sounds_: the symbols of both sides.
        left_out_: how many training words were left out.
    """

    name: ClassVar[str] = "letters"
    metric = WORD_ERRORS
    letters_: Symbols
    sounds_: Symbols
    left_out_: int

    def __init__(
        self,
        attention: str | Score = "softmax",
        score: str | Score | None = None,
        *,
        width: int = 128,
        layers: int = 2,
        heads: int = 1,
        embedding: int | None = None,
        encoder_width: int | None = None,
        score_width: int | None = None,
        dropout: float = 0.3,
        label_smoothing: float = 0.1,
        word_dropout: float = 0.0,
        consistency: float = 0.0,
        form: UnicodeForm = "NFC",
        max_length: int = 64,
        epochs: int = 30,
        rate: float = 3e-3,
        warmup: int = 100,
        batch_symbols: int = 1024,
        average: float | None = 0.998,
        patience: int | None = None,
        validate_every: int = 1,
        minutes: float | None = None,
        checkpoint_every: int = 1,
        beam: int = 5,
        length_penalty: float = 0.0,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.attention, self.score = attention, score  # type: ignore[bad-override-mutable-attribute] # the base class keeps it as chosen_score
        self.width, self.layers, self.heads, self.embedding = width, layers, heads, embedding
        self.encoder_width, self.score_width = encoder_width, score_width
        self.dropout, self.label_smoothing = dropout, label_smoothing
        self.word_dropout, self.consistency = word_dropout, consistency
        self.form, self.max_length = form, max_length
        self.epochs, self.rate, self.warmup = epochs, rate, warmup
        self.batch_symbols, self.average = batch_symbols, average
        self.patience, self.validate_every = patience, validate_every
        self.minutes, self.checkpoint_every = minutes, checkpoint_every
        self.beam, self.length_penalty = beam, length_penalty
        self.seed, self.device = seed, device

    def fit(
        self,
        x: Sequence[str],
        y: Sequence[Sounds] | None = None,
        *,
        validation: tuple[Sequence[str], Sequence[Sounds]] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on words and their sounds; see `Recipe.fit`.

        Validation is the share of words that greedy search gets right, in percent.

        Raises:
            RecipeError: no words, or there are not as many sounds as words.
        """
        self.check_arguments()
        given = checked_pairs(x, y, self.form)
        rows = self.fitting(trainable(given))
        self.left_out_ = len(given) - len(rows)
        if validation is None:
            rows, held = held_out(rows, self.seed)
        else:
            held = trainable(checked_pairs(*checked_validation(validation), self.form))
        self.letters_ = Symbols.learn(one.letters for one in rows)
        self.sounds_ = Symbols.learn(one.ways[0] for one in rows)
        device = self.chosen_device()
        torch.manual_seed(self.seed)
        self.model_ = self.build().to(device)
        corpus = Corpus(
            [self.letters_.encode(one.letters) for one in rows],
            [self.sounds_.encode(one.ways[0]) for one in rows],
            tokens=self.batch_symbols,
            multiples=(1, 1),  # a recurrent network walks over every padded step
            seed=self.seed,
            device=device,
        )
        sources = self.encoded([one.letters for one in held], cut=True)

        def quality(model: nn.Module) -> float:
            said = [self.sounds_.decode(best) for best in self.greedy(model, sources)]
            # Right words, not wrong ones: greater is better for the training loop.
            return percent_right(error_statistics(said, [one.ways for one in held]))

        job = TranslationJob(self.model_, corpus, self.rules(), quality)
        self.history_ = train(
            job, self.plan(), seed=self.seed, device=device, checkpoint=checkpoint, progress=progress,
            identity=lambda: self.identity(rows, held),
        )  # fmt: skip
        self.model_.eval()
        return self

    def checked(self, x: Sequence[str]) -> list[str]:
        """The words in the form of their letters; anything but a list of texts is refused."""
        return [spelled(one, self.form) for one in checked_texts(x, "x", "words")]

    def best(self, rows: Sequence[list[int]], search: Search) -> list[list[str]]:
        """The best results for each encoded word; empty ones for a word of which no letter is known."""
        read = [row if known_in(row) else [EOS] for row in rows]
        return super().best(read, search)

    def decoded(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The sounds of each row of numbers, with spaces between."""
        return [" ".join(self.sounds_.decode(row)) for row in rows]

    def statistics(self, x: Sequence[str], y: Sequence[Sounds]) -> np.ndarray:
        """For each word (N, 3): right or not, phone errors, and sounds of the nearest right way."""
        self.check_fitted()
        rows = self.encoded(self.checked(x), cut=True)
        # Without the warning of `predict`: a word that cannot be read is an error that counts.
        found = [best[0].split() for best in self.best(rows, self.search())]
        ways = checked_sounds(y)
        if len(found) != len(ways):
            raise RecipeError(f"x has {len(found)} words and y the sounds of {len(ways)}")
        return error_statistics([tuple(one) for one in found], ways)

    def phone_errors(self, x: Sequence[str], y: Sequence[Sounds]) -> float:
        """Phone errors for each 100 sounds."""
        return phone_error_rate(self.statistics(x, y))

    def attend(self, word: str) -> tuple[list[str], list[str], Tensor]:
        """The alignment of a word with its sounds.

        Returns:
            Letters, sounds, and weights (sounds, letters): how much each sound attends to each letter, a mean over
            heads. Both end in the end mark.
        """
        self.check_fitted()
        if self.kind() == "none":
            raise RecipeError("attention='none' has no attention to show")
        words = [spelled(one, self.form) for one in checked_texts([word], "word", "words")]
        row = self.encoded(words, cut=True)[0]
        if len(row) == 1:
            raise RecipeError("the word is empty: there is nothing to attend to")
        if not known_in(row):
            raise RecipeError(
                f"no letter of {word!r} was seen in training: there is nothing to attend to"
            )
        tokens, weights = aligned(self.model_, row, self.search(), self.max_length)
        return self.letters_.shown(row), self.sounds_.shown(tokens), weights

    def criterion(self, quality: float) -> tuple[str, str]:
        """The word error rate, of which the loop was given the complement."""
        return self.metric.title.en, self.metric.show(100 - quality)

    def learned(self) -> dict[str, Any]:
        """The symbols of both sides."""
        return {
            "letters": self.letters_.known,
            "sounds": self.sounds_.known,
            "left_out": self.left_out_,
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set the symbols, and build a network for them."""
        self.letters_, self.sounds_ = Symbols(learned["letters"]), Symbols(learned["sounds"])
        self.left_out_ = learned["left_out"]
        self.check_arguments()
        self.model_ = self.build()

    def kind(self) -> str:
        """How the decoder attends: one of `ATTENTIONS`."""
        known = isinstance(self.attention, str) and self.attention in ATTENTIONS
        return str(self.attention) if known else "softmax"

    def build(self) -> RecurrentTranslator:
        """A network with fresh weights."""
        sizes = self.sizes(len(self.sounds_), self.heads)
        named = self.attention if self.attention not in ATTENTIONS else None
        score = self.chosen_score if named is None else named
        with building():
            return letters_network(self.kind(), score, len(self.letters_), sizes)

    def check_arguments(self) -> None:
        """Raise an error that names an argument that does not fit."""
        if not isinstance(self.attention, Score):
            if not isinstance(self.attention, str):
                raise RecipeError(
                    f"attention must be one of {', '.join(ATTENTIONS)} or a score, got {describe(self.attention)}"
                )
            check_one_of("attention", self.attention, (*ATTENTIONS, *SIZED))
        if self.attention not in ATTENTIONS and self.chosen_score is not None:
            raise RecipeError(
                f"attention={self.attention!r} names a score already, so score must be None, got "
                f"{self.chosen_score!r}"
            )
        if self.attention == "none" and self.chosen_score is not None:
            raise RecipeError(
                f"attention='none' has no score, so score must be None, got {self.chosen_score!r}"
            )
        check_one_of("form", self.form, get_args(UnicodeForm))
        super().check_arguments()
        check_given_sizes(heads=self.heads, batch_symbols=self.batch_symbols)
        if self.encoder_width is not None and self.encoder_width % 2:
            raise RecipeError(
                f"encoder_width={self.encoder_width} must be even, for both directions of the encoder"
            )

    def encoded(self, texts: Sequence[str], cut: bool = False) -> list[list[int]]:
        """The numbers of letters with end marks; `cut` keeps at most `max_length` of a word, with a warning."""
        most = self.max_length - 1
        long = [number for number, one in enumerate(texts) if len(one) > most]
        if not cut:
            return [self.letters_.encode(one) for one in texts]
        if long:
            warnings.warn(
                f"{len(long)} words are longer than the {most} letters of max_length={self.max_length}, the "
                f"first of them in row {long[0]}: only their first letters are read",
                stacklevel=3,
            )
        return [self.letters_.encode(one[:most]) for one in texts]

    def warn_of_unknown(self, texts: Sequence[str]) -> None:
        """Warn of letters that no training word has: sounds cannot be learned from them."""
        unknown = {one: dict.fromkeys(x for x in one if x not in self.letters_) for one in texts}
        told = [f"{one!r} has {', '.join(map(repr, has))}" for one, has in unknown.items() if has]
        if told:
            more = f", and {len(told) - NAMED:,} more words" if len(told) > NAMED else ""
            warnings.warn(
                f"letters that were never seen in training are read as unknown: {'; '.join(told[:NAMED])}{more}. "
                "A word of such letters alone has no sounds",
                stacklevel=3,
            )

    def fitting(self, rows: Sequence[Word]) -> list[Word]:
        """The words whose letters and sounds are at most `max_length`, each with its end mark."""
        most = self.max_length - 1
        found = [one for one in rows if max(len(one.letters), len(one.ways[0])) <= most]
        if not found:
            raise RecipeError(
                f"every word is longer than the {most} letters or sounds of "
                f"max_length={self.max_length}: enlarge it"
            )
        return found
