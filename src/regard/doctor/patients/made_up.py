"""Random batches for a model that comes without data.

They show how attention works on inputs of the right kind. On real data a model may behave
differently, so reports always say that the batches were made up.

Shape legend: B examples, T length, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.patients.patient import Batch, Unusable, numbers_of
from regard.doctor.signature import parameters_of, positions_in, required_of, text_config

EXAMPLES, LENGTH, PIXELS, SAMPLES = 4, 64, 32, 16000
# Ends of class names of models that compute a loss themselves if the labels are the tokens.
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
LAYERS = (nn.Embedding, nn.Conv2d, nn.Linear, nn.LayerNorm)
Made = Callable[[torch.Generator], Batch]


def made_up(model: nn.Module, seed: int) -> tuple[Callable[[int], Batch], str]:
    """`step -> batch`, and a description of the batches."""
    make, words = for_config(model) if hasattr(model, "config") else for_layers(model)

    def batch(step: int) -> Batch:
        return make(numbers_of(seed, step))

    return batch, words


def for_config(model: nn.Module) -> tuple[Made, str]:
    """A function that makes batches, from the config of a Hugging Face model, and a description."""
    config: Any = model.config
    kind = getattr(model, "main_input_name", "input_ids")
    if kind == "pixel_values":
        return pictures(config)
    if kind == "input_values":
        return lambda numbers: {kind: torch.randn(EXAMPLES, SAMPLES, generator=numbers)}, "sound"
    if kind != "input_ids":
        raise Unusable(f"no random {kind} can be made up for {type(model).__name__}; give --data")
    return tokens(model)


def pictures(config: Any) -> tuple[Made, str]:
    """Images (B, C, height, width) of the size in the config."""
    size = getattr(config, "image_size", 224)
    size = list(size) if isinstance(size, list | tuple) else [size, size]
    shape = (EXAMPLES, getattr(config, "num_channels", 3), *size)

    def make(numbers: torch.Generator) -> Batch:
        return {"pixel_values": torch.randn(shape, generator=numbers)}

    return make, f"pictures {tuple(shape)} of noise"


def tokens(model: nn.Module) -> tuple[Made, str]:
    """Token ids (B, T) without padding, and what a decoder and a loss need besides."""
    text = text_config(model)
    words = getattr(text, "vocab_size", None)
    if type(words) is not int or words < 2:
        raise Unusable(f"the config of {type(model).__name__} names no vocab_size; give --data")
    most = positions_in(model)
    # Half of the known positions: a probe shifts positions, and RoBERTa starts at the padding id +
    # 1.
    length = LENGTH if most is None else min(LENGTH, max(most // 2, 1))
    learns = type(model).__name__.endswith(LANGUAGE_MODELS)
    takes, _ = parameters_of(model)
    padding = getattr(text, "pad_token_id", None)

    def make(numbers: torch.Generator) -> Batch:
        ids = torch.randint(words, (EXAMPLES, length), generator=numbers)
        ids = torch.where(ids == padding, (ids + 1) % words, ids) if padding is not None else ids
        batch: dict[str, Tensor] = {"input_ids": ids}
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones_like(ids)
        if "decoder_input_ids" in takes:
            batch["decoder_input_ids"] = ids.roll(1, -1)
        if learns and "labels" in takes:
            batch["labels"] = ids
        return batch

    return make, f"token ids {(EXAMPLES, length)} of {words}, drawn evenly"


def for_layers(model: nn.Module) -> tuple[Made, str]:
    """A function that makes batches, from the first layer of a model with one input."""
    wanted = required_of(model)
    first = next((x for x in model.modules() if not x._modules and list(x.parameters())), None)
    if len(wanted) > 1 or not isinstance(first, LAYERS):
        what = f"it takes {', '.join(wanted)}" if len(wanted) > 1 else "its first layer is unusual"
        raise Unusable(
            f"no batch can be made up for {type(model).__name__}: {what}. Let the function return "
            "(model, batch), or give --data"
        )
    if isinstance(first, nn.Embedding):
        words = first.num_embeddings
        # Any of the embeddings may be that of the positions, so the smallest limits the length.
        length = min(
            LENGTH, *(x.num_embeddings for x in model.modules() if isinstance(x, nn.Embedding))
        )
        return (
            lambda numbers: torch.randint(words, (EXAMPLES, length), generator=numbers),
            f"token ids {(EXAMPLES, length)} of {words}, drawn evenly",
        )
    if isinstance(first, nn.Conv2d):
        shape: tuple[int, ...] = (EXAMPLES, first.in_channels, PIXELS, PIXELS)
    else:
        width = first.in_features if isinstance(first, nn.Linear) else first.normalized_shape[-1]
        shape = (EXAMPLES, LENGTH, width)
    return lambda numbers: torch.randn(shape, generator=numbers), f"noise {shape}"
