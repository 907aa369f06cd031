"""Translating encoded sentences by greedy or beam search, in batches of like lengths.

Shape legend: N sentences, S source pieces, T output pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.arguments import check_sizes
from regard.nn.seq2seq import EncoderDecoder, Hypotheses, beam_search, greedy
from regard.recipes.estimator import RecipeError
from regard.recipes.translate.batches import padded
from regard.recipes.translate.networks import TransformerTranslator
from regard.recipes.translate.subwords import EOS

# Sentences searched at once. On a GPU a step costs the same for many; on a CPU a small batch stays in cache.
AT_ONCE = {"cuda": 1024, "cpu": 32}


class Search(NamedTuple):
    """How to search: beam 1 is greedy; `length_penalty` is the exponent of GNMT's penalty."""

    beam: int
    length_penalty: float
    n_best: int = 1


def chosen_search(beam: int, n_best: int | None, length_penalty: float) -> Search:
    """The search for so many results, one if `n_best` is None.

    Raises:
        RecipeError: the beam is narrower than that.
    """
    count = 1 if n_best is None else n_best
    check_sizes(beam=beam, n_best=count)
    if count > beam:
        raise RecipeError(
            f"n_best={count} results need a beam of at least {count}, got beam={beam}"
        )
    return Search(beam, length_penalty, count)


def best_texts(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    search: Search,
    longest: int,
    decode: Callable[[list[list[int]]], list[str]],
) -> list[list[str]]:
    """For each encoded sentence the texts of its best translations; empty ones for an empty sentence.

    Args:
        model: the network.
        rows: encoded sentences with end marks.
        search: beam, penalty and number of results.
        longest: the most pieces of a translation.
        decode: from translations in numbers to their texts.
    """
    some = [number for number, row in enumerate(rows) if len(row) > 1]  # more than the end mark
    found = searched(model, [rows[number] for number in some], search, longest)
    texts: list[list[str]] = [[""] * search.n_best for _ in rows]
    for number, best in zip(some, found, strict=True):
        texts[number] = decode(best)
    return texts


def searched(
    model: nn.Module, rows: Sequence[Sequence[int]], search: Search, longest: int
) -> list[list[list[int]]]:
    """For each encoded sentence its `n_best` best translations, best first, without their end marks.

    Args:
        model: the network.
        rows: encoded sentences with end marks.
        search: beam and penalty.
        longest: the most pieces of a translation.
    """
    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    found: list[list[list[int]]] = [[] for _ in rows]
    step = AT_ONCE.get(device.type, AT_ONCE["cpu"])
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        source, lengths = padded([rows[row] for row in chosen])
        counts = torch.from_numpy(lengths)
        source = source[:, : int(counts.max())].to(device)
        most = most_pieces(source.shape[1], longest)
        tokens = best_tokens(model, source, counts.to(device), search, most)
        for row, best in zip(chosen, tokens.tolist(), strict=True):
            found[row] = [without_end(one) for one in best]
    return found


def best_tokens(
    model: nn.Module, source: Tensor, lengths: Tensor, search: Search, longest: int
) -> Tensor:
    """The best translations (N, n_best, T) of a batch."""
    return best_found(model, source, lengths, search, longest).tokens


def best_found(
    model: nn.Module, source: Tensor, lengths: Tensor, search: Search, longest: int
) -> Hypotheses:
    """The best translations of a batch with all that the search knows of them."""
    # The searches name EncoderDecoder, and use what every network here has: encode, step and three marks.
    steps = cast("EncoderDecoder", model)
    if search.beam == 1:
        return greedy(steps, source, lengths, max_length=longest)
    return beam_search(
        steps,
        source,
        lengths,
        beam=search.beam,
        n_best=search.n_best,
        length_penalty=search.length_penalty,
        max_length=longest,
    )


def without_end(tokens: list[int]) -> list[int]:
    """The tokens before the end mark."""
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


def piece_log_prob(model: nn.Module, row: Sequence[int], search: Search, longest: int) -> float:
    """The mean log probability of the pieces of an encoded sentence's best translation, end mark included."""
    found = best_of_one(model, row, search, longest)
    return float(found.log_probs[0, 0] / found.lengths[0, 0].clamp(min=1))


def aligned(
    model: nn.Module, row: Sequence[int], search: Search, longest: int
) -> tuple[list[int], Tensor]:
    """The best translation of an encoded sentence with its end mark, and the weights (T, S) on the CPU."""
    if isinstance(model, TransformerTranslator):
        model.keep_weights = True
    try:
        found = best_of_one(model, row, search, longest)
    finally:
        if isinstance(model, TransformerTranslator):
            model.keep_weights = False
    count = int(found.lengths[0, 0])
    weights = found.weights[0, 0, :, :count].float().mean(0).cpu()
    return found.tokens[0, 0, :count].tolist(), weights


def best_of_one(model: nn.Module, row: Sequence[int], search: Search, longest: int) -> Hypotheses:
    """What a search finds for one encoded sentence."""
    device = next(model.parameters()).device
    source = torch.tensor([list(row)], device=device)
    lengths = torch.tensor([len(row)], device=device)
    return best_found(model, source, lengths, search, most_pieces(len(row), longest))


def most_pieces(source: int, longest: int) -> int:
    """The most pieces of a translation of so many: twice as many and some, and at most `longest`."""
    return min(longest, 2 * source + 10)
