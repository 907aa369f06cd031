"""`SearchedRecipe`: what recipes share whose predictions are texts that a beam search finds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from torch import nn

from regard.arguments import check_finite, check_given_sizes
from regard.recipes.estimator import Recipe
from regard.recipes.training import TrainingPlan
from regard.recipes.translate.decoding import Search, best_texts, chosen_search, searched
from regard.recipes.translate.job import Regularization
from regard.recipes.translate.networks import Sizes


class SearchedRecipe(Recipe):
    """Base class of `Translator` and `LettersToSounds`.

    A subclass has the arguments below, and says how texts are checked (`checked`), become numbers (`encoded`) and are
    made of them (`decoded`).
    """

    width: int
    layers: int
    embedding: int | None
    encoder_width: int | None
    score_width: int | None
    dropout: float
    label_smoothing: float
    word_dropout: float
    consistency: float
    max_length: int
    epochs: int
    rate: float
    warmup: int
    average: float | None
    patience: int | None
    validate_every: int
    minutes: float | None
    checkpoint_every: int
    beam: int
    length_penalty: float

    @abstractmethod
    def checked(self, x: Sequence[str]) -> list[str]:
        """The inputs as they are encoded; anything but a list of texts is refused."""

    @abstractmethod
    def encoded(self, texts: Sequence[str], cut: bool = False) -> list[list[int]]:
        """The numbers of texts with end marks; `cut` keeps at most `max_length` of each, with a warning."""

    @abstractmethod
    def decoded(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of numbers."""

    @overload
    def predict(
        self, x: Sequence[str], beam: int | None = ..., n_best: None = ...
    ) -> list[str]: ...
    @overload
    def predict(
        self, x: Sequence[str], beam: int | None = ..., *, n_best: int
    ) -> list[list[str]]: ...
    def predict(
        self, x: Sequence[str], beam: int | None = None, n_best: int | None = None
    ) -> list[str] | list[list[str]]:
        """The translations of sentences, or the sounds of words with spaces between.

        Args:
            x: sentences or words.
            beam: prefixes kept at each step; 1 is greedy; None is the argument of the constructor.
            n_best: a number gives for each input the list of so many best results, best first; None gives the best
                one as text.
        """
        self.check_fitted()
        texts = self.checked(x)
        search = chosen_search(self.beam if beam is None else beam, n_best, self.length_penalty)
        self.warn_of_unknown(texts)
        found = self.best(self.encoded(texts, cut=True), search)
        return found if n_best is not None else [one[0] for one in found]

    def warn_of_unknown(self, texts: Sequence[str]) -> None:
        """Warn of inputs that cannot be read as they are; by default of none."""

    def best(self, rows: Sequence[list[int]], search: Search) -> list[list[str]]:
        """The best results for each encoded input, best first."""
        return best_texts(self.model_, rows, search, self.max_length, self.decoded)

    def greedy(self, model: nn.Module, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """The results of greedy search for encoded inputs, as numbers."""
        return [best[0] for best in searched(model, rows, Search(1, 0.0), self.max_length)]

    def search(self) -> Search:
        """How `predict` searches."""
        return Search(self.beam, self.length_penalty)

    def plan(self) -> TrainingPlan:
        """How the network is trained."""
        return TrainingPlan(
            epochs=self.epochs,
            rate=self.rate,
            warmup=self.warmup,
            average=self.average,
            patience=self.patience,
            validate_every=self.validate_every,
            minutes=self.minutes,
            checkpoint_every=self.checkpoint_every,
        )

    def rules(self) -> Regularization:
        """What the loss adds against learning by heart."""
        return Regularization(self.label_smoothing, self.word_dropout, self.consistency)

    def sizes(self, vocabulary: int, heads: int) -> Sizes:
        """The sizes of the network."""
        return Sizes(
            vocabulary=vocabulary,
            width=self.width,
            layers=self.layers,
            heads=heads,
            embedding=self.embedding or self.width,
            encoder_width=self.encoder_width or 2 * self.width,
            score_width=self.score_width or max(self.width // 2, 1),
            dropout=self.dropout,
        )

    def check_arguments(self) -> None:
        """Raise an error that names an argument that does not fit."""
        self.check_training()
        check_given_sizes(width=self.width, layers=self.layers, beam=self.beam)
        check_given_sizes(max_length=self.max_length)
        check_finite(length_penalty=self.length_penalty)
