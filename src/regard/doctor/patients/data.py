"""Reads data from a file: arrays as .npz, .safetensors or .pt, or lines of text, never a pickle.

Shape legend: N examples, which the first dim of every array counts.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.patients.patient import Batch, Unusable, check_batch, one_line
from regard.doctor.signature import parameters_of

NOT_UNPICKLED = "That is not unpickled, because a pickle can run any code"
KINDS = ".npz, .safetensors, .pt or .txt"
# From lines of text to tensors by name.
Tokenizer = Callable[[list[str]], Mapping[str, Tensor]]


def open_data(path: Path, model: nn.Module, size: int, tokenizer: Tokenizer | None = None) -> Any:
    """`step -> batch` of `size` examples in the order of the file, starting again at its end.

    Args:
        path: the file.
        model: the names of its arguments say which arrays it takes.
        size: the number of examples in a batch.
        tokenizer: for text; None where the model has none.
    """
    if not path.is_file():
        raise Unusable(f"--data {path}: there is no such file")
    arrays = read_text(path, tokenizer) if path.suffix == ".txt" else read_arrays(path)
    check_batch(arrays, f"--data {path}")
    counts = {name: len(x) if x.ndim else 0 for name, x in arrays.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise Unusable(
            f"--data {path}: the first dim of every array counts the examples, but they differ: "
            + ", ".join(f"{name} {tuple(x.shape)}" for name, x in arrays.items())
        )
    named = fitted(arrays, model, path)
    examples = next(iter(counts.values()))

    def batch(step: int) -> Batch:
        place = torch.arange(step * size, step * size + min(size, examples)) % examples
        if isinstance(named, Tensor):
            return named[place]
        return {name: x[place] for name, x in named.items()}

    return batch


def read_text(path: Path, tokenizer: Tokenizer | None) -> dict[str, Tensor]:
    """Lines of text as token ids."""
    if tokenizer is None:
        raise Unusable(
            f"--data {path}: text needs the tokenizer of a Hugging Face folder "
            "(tokenizer.json or tokenizer_config.json beside config.json). Every model takes "
            "arrays: .npz, .safetensors or .pt"
        )
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"--data {path}: {error}") from None
    if not lines:
        raise Unusable(f"--data {path}: there is no text in it")
    return dict(tokenizer(lines))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """Arrays by name; a single tensor is named "data"."""
    reader = READERS.get(path.suffix)
    if reader is None:
        raise Unusable(f"--data {path}: the name of the file must end in {KINDS}")
    try:
        found = reader(path)
    except ImportError as error:
        raise Unusable(
            f"--data {path}: reading it needs {error.name}: pip install {error.name}"
        ) from None
    except Exception as error:  # every reader raises its own kinds
        why = f"cannot be read: {one_line(error)}"
        if is_pickle(error):
            why = (
                f"holds something other than tensors. {NOT_UNPICKLED}; save tensors, or a dict of "
                "them"
            )
        raise Unusable(f"--data {path} {why}") from None
    if isinstance(found, Tensor):
        found = {"data": found}
    elif isinstance(found, list | tuple):
        found = {f"data {place}": x for place, x in enumerate(found)}
    if not isinstance(found, Mapping) or not found:
        raise Unusable(f"--data {path}: it holds no arrays")
    for name, x in found.items():
        if not isinstance(x, Tensor):
            raise Unusable(f"--data {path}: {name} is not an array but {type(x).__name__}")
    return {str(name): x for name, x in found.items()}


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of a file of NumPy, by name."""
    import numpy

    if not zipfile.is_zipfile(path):  # numpy would try to read it as a pickle
        raise ValueError("it is not an .npz archive")
    with numpy.load(path, allow_pickle=False) as file:
        return {name: as_tensor(file[name], name) for name in file.files}


def as_tensor(array: Any, name: str) -> Tensor:
    """An array as a tensor; integers as int64 and doubles as fp32, which models take."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {array.dtype}, not numbers")
    x = torch.from_numpy(array.astype("int64") if array.dtype.kind in "iu" else array)
    return x.float() if x.dtype == torch.float64 else x


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def read_tensors(path: Path) -> Any:
    """What `torch.save` wrote, if it holds only tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the pickle protocol before it refuses
        return torch.load(path, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".pt": read_tensors,
}


def fitted(arrays: dict[str, Tensor], model: nn.Module, path: Path) -> Tensor | dict[str, Tensor]:
    """The arrays as arguments of the model by name; a single array may have any name."""
    takes, anything = parameters_of(model)
    if len(arrays) == 1 and not set(arrays) <= set(takes):
        return next(iter(arrays.values()))
    strange = [name for name in arrays if name not in takes]
    if strange and not anything:
        raise Unusable(
            f"--data {path}: the model has no argument {', '.join(strange)}; it takes "
            f"{', '.join(takes)}. "
            "Name the arrays like its arguments"
        )
    return arrays


def is_pickle(error: BaseException) -> bool:
    """Whether torch refused a file because it holds more than tensors."""
    return type(error).__name__ == "UnpicklingError"
