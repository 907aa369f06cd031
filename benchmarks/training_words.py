"""The words that training_equivalence.py trains on, and how they come in batches."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PAD, END = 0, 1  # END opens and closes the sounds of a word


class Words(NamedTuple):
    """Padded words on a device: letters (B, L), their counts (B,) on the CPU, sounds (B, 1 + Q)."""

    letters: Tensor
    lengths: Tensor
    sounds: Tensor

    def pick(self, index: Tensor) -> Words:
        """Some of the words, without columns that none of them needs."""
        where = index.to(self.letters.device)
        lengths, sounds = self.lengths[index], self.sounds[where]
        width = int((sounds != PAD).sum(-1).max())
        return Words(self.letters[where, : int(lengths.max())], lengths, sounds[:, :width])

    def by_length(self, most: int) -> list[Words]:
        """The first words, at most so many, in groups of equally many letters."""
        lengths = self.lengths[:most]
        return [self.pick((lengths == n).nonzero()[:, 0]) for n in lengths.unique()]


def read(folder: Path, language: str) -> tuple[dict[str, Words], int, int]:
    """The words of `train` and `dev`, and how many letters and sounds there are."""
    pairs = {}
    for part in ("train", "dev"):
        path = folder / "sigmorphon2021_g2p" / f"{language}_{part}.tsv.gz"
        if not path.is_file():
            raise SystemExit(f"no {path}; --data or REGARD_DATA names the folder that holds it")
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        pairs[part] = [line.split("\t") for line in lines]
    known = [sorted({x for word, _ in pairs["train"] for x in word})]
    known.append(sorted({x for _, sounds in pairs["train"] for x in sounds.split()}))
    ids = [{x: i + 2 for i, x in enumerate(names)} for names in known]
    found = {}
    for part, all_rows in pairs.items():
        # A held-out word with a letter or a sound that was never seen teaches nothing here.
        rows = [
            (word, sounds.split())
            for word, sounds in all_rows
            if set(word) <= ids[0].keys() and set(sounds.split()) <= ids[1].keys()
        ]
        letters = [torch.tensor([ids[0][x] for x in word]) for word, _ in rows]
        sounds = [torch.tensor([END, *(ids[1][x] for x in y), END]) for _, y in rows]
        lengths = torch.tensor([len(x) for x in letters])
        found[part] = Words(
            pad_sequence(letters, True, PAD), lengths, pad_sequence(sounds, True, PAD)
        )
    return found, len(ids[0]) + 2, len(ids[1]) + 2


def batches(lengths: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Numbers of words with equally many letters: once through all, then in a new order, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(lengths), generator=generator)
        alike = [order[lengths[order] == n].split(size) for n in lengths.unique()]
        full = [batch for group in alike for batch in group if len(batch) == size]
        if len(full) == 0:
            raise SystemExit(f"no {size} words have equally many letters: take a smaller --batch")
        yield from (full[i] for i in torch.randperm(len(full), generator=generator))
