"""`Translator`: a recipe that translates sentences."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard import Score
from regard.arguments import (
    check_given_sizes,
    check_one_of,
    check_sizes,
)
from regard.recipes.columns import checked_texts, held_out
from regard.recipes.estimator import RecipeError, building, checked_validation
from regard.recipes.training import TrainingPlan, TrainingProgress, train
from regard.recipes.translate.batches import Corpus
from regard.recipes.translate.bleu import METRIC, bleu_statistics, corpus_bleu, corpus_chrf
from regard.recipes.translate.decoding import aligned
from regard.recipes.translate.job import TranslationJob
from regard.recipes.translate.networks import (
    RecurrentTranslator,
    TransformerTranslator,
    network,
)
from regard.recipes.translate.rows import (
    checked_pairs,
    checked_sides,
)
from regard.recipes.translate.searched import SearchedRecipe
from regard.recipes.translate.subwords import EOS, Subwords

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHITECTURES = ("bahdanau", "luong", "transformer", "none")
PRECISIONS = ("fp32", "tf32", "bf16")


class Translator(SearchedRecipe):
    """A recipe that translates sentences: a recurrent network with attention, or a transformer.

    ```python
    model = Translator("transformer", score="cosine").fit(german, english)
    model.predict(["Ein Hund schläft."], beam=5)
    ```

    An empty sentence is translated to an empty one. A character that no training sentence has is read as unknown
    and left out of the output. Of a sentence longer than `max_length` pieces only the first ones are translated,
    with a warning; training leaves such pairs out, and pairs with an empty side.

    Args:
        architecture: "bahdanau" (additive attention before each step of a GRU), "luong" (bilinear attention after
            it), "transformer", or "none", the GRU that reads the source's last state and nothing else.
        score: how queries and keys compare, by name or as a `Score`; None is the architecture's own.
        width: of the decoder's states.
        layers: of the encoder, and of a transformer's decoder; a recurrent decoder has one.
        heads: of the attention; None is 4 for a transformer, else 1.
        embedding: width of a recurrent network's embeddings; None is `width`, which lets the output share them.
        encoder_width: of a recurrent encoder's outputs, the keys; None is twice `width`, both directions.
        score_width: width in which a recurrent network's score compares; None is half of `width`.
        dropout: of embeddings, between layers and before the output; in a transformer also of weights.
        label_smoothing, word_dropout, consistency: see `Regularization`.
        vocabulary: the most subwords, of both languages together.
        lowercase: read and write lower case only; BLEU then ignores case.
        max_length: the most pieces of a sentence.
        epochs: at most.
        rate: the largest learning rate, reached after `warmup` steps; it falls along a cosine.
        warmup: steps.
        batch_tokens: the most pieces of a batch on either side, padding included.
        average: decay of the moving average of the weights, which are the result; None for none.
        precision: "fp32", "tf32" or "bf16" of the training; None is fp32 on a CPU, else bf16 for a transformer and
            tf32 for the others.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        validate_every: epochs between two validations.
        minutes: stop after this much training time.
        checkpoint_every: epochs between two checkpoints.
        graphs: on a GPU, replay training steps as CUDA graphs: the host, which is slower than the GPU with kernels
            this short, then launches each step at once.
        beam: of `predict` and `score`; 1 is greedy.
        length_penalty: exponent of GNMT's length penalty in beam search.
        seed: of weights, order and dropout.
        device: None is the GPU if there is one.

    Attributes:
        subwords_: the vocabulary.
        left_out_: how many training pairs were left out.
    """

    name: ClassVar[str] = "translate"
    metric = METRIC
    subwords_: Subwords
    left_out_: int

    def __init__(
        self,
        architecture: str = "transformer",
        score: str | Score | None = None,
        *,
        width: int = 256,
        layers: int = 2,
        heads: int | None = None,
        embedding: int | None = None,
        encoder_width: int | None = None,
        score_width: int | None = None,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
        word_dropout: float = 0.0,
        consistency: float = 0.0,
        vocabulary: int = 8000,
        lowercase: bool = True,
        max_length: int = 128,
        epochs: int = 30,
        rate: float = 1e-3,
        warmup: int = 400,
        batch_tokens: int = 4096,
        average: float | None = 0.998,
        precision: str | None = None,
        patience: int | None = None,
        validate_every: int = 1,
        minutes: float | None = None,
        checkpoint_every: int = 1,
        graphs: bool = False,
        beam: int = 5,
        length_penalty: float = 1.0,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.architecture, self.score = architecture, score  # type: ignore[bad-override-mutable-attribute] # the base class keeps it as chosen_score
        self.width, self.layers, self.heads, self.embedding = width, layers, heads, embedding
        self.encoder_width, self.score_width = encoder_width, score_width
        self.dropout, self.label_smoothing = dropout, label_smoothing
        self.word_dropout, self.consistency = word_dropout, consistency
        self.vocabulary, self.lowercase, self.max_length = vocabulary, lowercase, max_length
        self.epochs, self.rate, self.warmup, self.batch_tokens = epochs, rate, warmup, batch_tokens
        self.average, self.precision, self.patience = average, precision, patience
        self.validate_every, self.minutes = validate_every, minutes
        self.checkpoint_every, self.graphs = checkpoint_every, graphs
        self.beam, self.length_penalty = beam, length_penalty
        self.seed, self.device = seed, device

    def fit(
        self,
        x: Sequence[str],
        y: Sequence[str] | None = None,
        *,
        validation: tuple[Sequence[str], Sequence[str]] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on sentences and their translations; see `Recipe.fit`.

        Validation is BLEU of greedy translations.

        Raises:
            RecipeError: no sentences, or as many translations as sentences are not given.
        """
        self.check_arguments()
        pairs, self.left_out_ = checked_pairs(x, y)
        if validation is None:
            pairs, held = held_out(pairs, self.seed)
        else:
            held, _ = checked_pairs(*checked_validation(validation))
        sides = [one[0] for one in pairs], [one[1] for one in pairs]
        self.subwords_ = Subwords.learn(
            (text for side in sides for text in side), self.vocabulary, self.lowercase
        )
        encoded = self.fitting(*(self.encoded(side) for side in sides))
        device = self.chosen_device()
        graphs = self.graphs and device.type == "cuda"
        torch.manual_seed(self.seed)
        self.model_ = self.build().to(device)
        corpus = Corpus(
            *encoded,
            tokens=self.batch_tokens,
            multiples=(8, 8 if self.architecture == "transformer" else 4 if graphs else 1),
            seed=self.seed,
            device=device,
            full=graphs,
        )
        sources, references = [one[0] for one in held], [one[1] for one in held]
        rows = self.encoded(sources, cut=True)

        def quality(model: nn.Module) -> float:
            found = self.subwords_.decode(self.greedy(model, rows))
            return corpus_bleu(bleu_statistics(found, references, self.lowercase))

        job = TranslationJob(self.model_, corpus, self.rules(), quality)
        with multiplying(self.chosen_precision()):
            self.history_ = train(
                job, self.plan(), seed=self.seed, device=device, checkpoint=checkpoint, progress=progress,
                identity=lambda: self.identity(pairs, held),
            )  # fmt: skip
        self.model_.eval()
        return self

    def plan(self) -> TrainingPlan:
        """How the network is trained."""
        precise = self.chosen_precision() == "bf16"
        return dataclasses.replace(super().plan(), bf16=precise, graphs=self.graphs)

    def checked(self, x: Sequence[str]) -> list[str]:
        """The sentences; anything but a list of texts is refused."""
        return checked_texts(x, "x")

    def decoded(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The sentence of each row of numbers."""
        return self.subwords_.decode(rows)

    def statistics(self, x: Sequence[str], y: Sequence[str]) -> np.ndarray:
        """The statistics of BLEU (N, 10) of translations by beam search."""
        sources, references = checked_sides(x, y)
        return bleu_statistics(self.predict(sources), references, self.lowercase)

    def chrf(self, x: Sequence[str], y: Sequence[str]) -> float:
        """chrF2, 0 to 100, of translations by beam search."""
        sources, references = checked_sides(x, y)
        return corpus_chrf(self.predict(sources), references, self.lowercase)

    def attend(self, sentence: str) -> tuple[list[str], list[str], Tensor]:
        """The alignment of one sentence with its translation.

        Returns:
            Pieces of the source, pieces of the translation, and weights (translation, source): how much each
            piece of the translation attends to each of the source, a mean over heads and layers. Both end in the
            end mark.
        """
        self.check_fitted()
        if self.architecture == "none":
            raise RecipeError("architecture='none' has no attention to show")
        row = self.encoded(checked_texts([sentence], "sentence"), cut=True)[0]
        if len(row) == 1:
            raise RecipeError("the sentence is empty: there is nothing to attend to")
        tokens, weights = aligned(self.model_, row, self.search(), self.max_length)
        return self.subwords_.pieces(row), self.subwords_.pieces(tokens), weights

    def learned(self) -> dict[str, Any]:
        """The vocabulary, as JSON of the package tokenizers."""
        return {"subwords": self.subwords_.to_json(), "left_out": self.left_out_}

    def restore(self, learned: dict[str, Any]) -> None:
        """Set the vocabulary, and build a network for it."""
        self.subwords_ = Subwords.from_json(learned["subwords"])
        self.left_out_ = learned["left_out"]
        self.check_arguments()
        self.model_ = self.build()

    def build(self) -> RecurrentTranslator | TransformerTranslator:
        """A network with fresh weights for the vocabulary that was learned."""
        return self.network_for(len(self.subwords_))

    def network_for(self, vocabulary: int) -> RecurrentTranslator | TransformerTranslator:
        """A network with fresh weights for so many subwords."""
        recurrent = self.architecture != "transformer"
        sizes = self.sizes(vocabulary, self.heads or (1 if recurrent else 4))
        with building():
            return network(self.architecture, sizes, self.chosen_score)

    def check_arguments(self) -> None:
        """Raise an error that names an argument that does not fit."""
        check_one_of("architecture", self.architecture, ARCHITECTURES)
        if self.precision is not None:
            check_one_of("precision", self.precision, PRECISIONS)
        super().check_arguments()
        check_given_sizes(vocabulary=self.vocabulary, batch_tokens=self.batch_tokens)
        check_sizes(heads=self.heads)
        if self.encoder_width is not None and (
            self.architecture == "transformer" or self.encoder_width % 2
        ):
            raise RecipeError(
                f"encoder_width={self.encoder_width} must be even, for both directions of a recurrent "
                f"encoder; architecture={self.architecture!r}"
            )
        if self.embedding is not None and self.architecture == "transformer":
            raise RecipeError(
                f"embedding={self.embedding} is for recurrent architectures: a transformer's is width"
            )
        if self.chosen_score is not None and self.architecture == "none":
            raise RecipeError(
                f"architecture='none' has no attention, so score must be None, got {self.chosen_score!r}"
            )

    def chosen_precision(self) -> str:
        """The precision that was given, or the usual one for the device and architecture."""
        if self.precision is not None:
            return self.precision
        if self.chosen_device().type != "cuda":
            return "fp32"
        return "bf16" if self.architecture == "transformer" else "tf32"

    def encoded(self, texts: Sequence[str], cut: bool = False) -> list[list[int]]:
        """The pieces of sentences with end marks; `cut` keeps at most `max_length`, with a warning."""
        rows = [[*row, EOS] for row in self.subwords_.encode(texts)]
        long = [number for number, row in enumerate(rows) if len(row) > self.max_length]
        if not cut or not long:
            return rows
        warnings.warn(
            f"longer than max_length={self.max_length} pieces: {len(long)} of {len(rows)} sentences, the first in "
            f"row {long[0]}; only the first pieces of such a sentence are read",
            stacklevel=3,
        )
        return [
            row if len(row) <= self.max_length else [*row[: self.max_length - 1], EOS]
            for row in rows
        ]

    def fitting(
        self, source: list[list[int]], target: list[list[int]]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The pairs of which both sides are at most `max_length` long; the others are counted as left out."""
        kept = [
            (one, other)
            for one, other in zip(source, target, strict=True)
            if max(len(one), len(other)) <= self.max_length
        ]
        self.left_out_ += len(source) - len(kept)
        if not kept:
            raise RecipeError(
                f"every sentence is longer than max_length={self.max_length} pieces: enlarge it"
            )
        return [one for one, _ in kept], [other for _, other in kept]


@contextmanager
def multiplying(precision: str) -> Iterator[None]:
    """A context in which matrices in single precision are multiplied in TF32 if that is the precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
