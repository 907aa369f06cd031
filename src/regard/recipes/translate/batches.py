"""`Corpus`: encoded sentence pairs on the device, and batches of them by number of tokens.

All sentences are copied to the device once. A batch is a selection of rows, cut to the longest of them, so that
an epoch needs one copy of row numbers and little else from the host.

Shape legend: N sentences, B sentences of a batch, S source pieces, T target pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.recipes.translate.subwords import EOS, PAD


class PairBatch(NamedTuple):
    """Sentence pairs: source (B, S) with `lengths` (B,) real pieces, target (B, T) up to and with the end mark.

    Lengths are on the CPU: recurrent layers pack by them there, and would have to wait for a device.
    """

    source: Tensor
    lengths: Tensor
    target: Tensor


class Corpus:
    """Pairs of encoded sentences.

    Args:
        source, target: numbers of pieces, row by row, each with its end mark.
        tokens: the most pieces of a batch, padding included, on either side.
        multiples: widths of source and target batches are rounded up to these. Few widths let the allocator and
            kernels find what they know; a recurrent decoder walks over every padded step, so it takes 1.
        full: batches of equal widths have equally many rows; missing rows are empty sentences, which have no
            loss. For CUDA graphs.
        seed: of the order.
        device: where the tensors are kept.
    """

    def __init__(
        self,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        tokens: int,
        multiples: tuple[int, int],
        seed: int,
        device: torch.device,
        full: bool = False,
    ) -> None:
        self.seed, self.device, self.tokens, self.full = seed, device, tokens, full
        # One more row, the empty sentence: an end mark without a target.
        self.source, sources = padded([*source, [EOS]])
        self.target, targets = padded([*target, []])
        self.lengths = torch.from_numpy(sources)
        self.source, self.target = self.source.to(device), self.target.to(device)
        sources, targets = sources[:-1], targets[:-1]
        self.widths = np.stack([rounded(sources, multiples[0]), rounded(targets, multiples[1])], 1)
        # Rows of equal widths follow each other, so every epoch has the same cuts and as many batches.
        self.order = np.lexsort((self.widths[:, 0], self.widths[:, 1]))
        self.cuts = cut_by_tokens(self.widths[self.order], tokens)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self.cuts)

    def batches(self, epoch: int) -> Iterator[PairBatch]:
        """The batches of an epoch; their order and rows follow from the seed and the epoch."""
        random = np.random.default_rng((self.seed, epoch))
        noise = random.random(len(self.order))
        order = np.lexsort((noise, self.widths[:, 0], self.widths[:, 1]))
        for number in random.permutation(len(self.cuts)).tolist():
            start, stop = self.cuts[number]
            width_s, width_t = self.widths[order[start:stop]].max(0).tolist()
            chosen = order[start:stop]
            if self.full:
                missing = max(self.tokens // max(width_s, width_t), 1) - len(chosen)
                chosen = np.pad(chosen, (0, missing), constant_values=len(order))
            rows = torch.from_numpy(chosen)
            there = rows.to(self.device)
            yield PairBatch(
                self.source[:, :width_s].index_select(0, there),
                self.lengths.index_select(0, rows),
                self.target[:, :width_t].index_select(0, there),
            )


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, np.ndarray]:
    """The rows as one tensor (N, longest, rounded up to 8), filled up with `PAD`, and their lengths (N,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    longest = int(rounded(lengths, 8).max(initial=8))
    found = np.full((len(rows), longest), PAD, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return torch.from_numpy(found), lengths


def rounded(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """The lengths rounded up to a multiple."""
    return -(-lengths // multiple) * multiple


def cut_by_tokens(widths: np.ndarray, tokens: int) -> list[tuple[int, int]]:
    """Where to cut sorted rows of widths (N, 2): each batch has at most `tokens` of either side, or one row."""
    cuts, start = [], 0
    widest = 0
    for number, width in enumerate(widths.max(1).tolist()):
        widest = max(widest, width)
        if number > start and widest * (number - start + 1) > tokens:
            cuts.append((start, number))
            start, widest = number, width
    return [*cuts, (start, len(widths))]
