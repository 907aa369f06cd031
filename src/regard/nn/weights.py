"""`save` and `load`: weights of any module in a safetensors file, never pickled.

Besides the tensors the file names the class and release that wrote it, and holds the metadata of
`state_dict`, which names the score of each module. Loading the weights of another score is refused.
"""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from regard.describe import describe

# Our entry in the file's metadata, which maps strings to strings.
ENTRY = "regard"
PICKLED = (b"\x80", b"PK\x03\x04")  # a bare pickle, and the zip archive that torch.save writes


class Stored(NamedTuple):
    """The contents of a file: tensors by name, the class and release that wrote it, and metadata."""

    tensors: dict[str, Tensor]
    writer: str
    modules: dict[str, dict]


def save(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the parameters and buffers of `module` to `path`.

    ```python
    save(model, "model.safetensors")
    load(model, "model.safetensors")    # into a model that was built the same way
    ```

    The file is written beside `path`, flushed to the disk and then renamed, so that a full disk or a
    crash leaves an older file unchanged. Shared parameters are stored once. Needs `pip install
    regard[weights]`.
    """
    _check_module(module)
    safetensors = _safetensors()
    place = Path(path).resolve()  # a link keeps pointing to the file, which is replaced
    if place.is_dir():
        raise IsADirectoryError(f"path {str(path)!r} is a directory; give the name of a file")
    if place.exists() and not place.is_file():
        raise OSError(f"path {str(path)!r} is a device or a pipe, which a file would replace")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"the folder of path {str(path)!r} does not exist; make it first")
    tensors, same = _store_once(module.state_dict())
    entry = _entry(module, same)
    # A name of its own: the file's name plus a suffix could exceed the longest name allowed.
    beside = place.with_name(f".{uuid.uuid4().hex}.tmp")
    beside.touch()  # to read the permissions that a new file gets here
    mode = (place if place.exists() else beside).stat().st_mode & 0o777
    try:
        try:
            safetensors.torch.save_file(tensors, beside, {"format": "pt", ENTRY: entry})
        except safetensors.SafetensorError as error:
            raise OSError(f"could not write {str(path)!r}: {error}") from None
        except KeyError as error:  # its table of dtypes
            raise ValueError(f"safetensors has no dtype {error}: cast those tensors") from None
        _flush(beside)
        beside.chmod(mode)  # safetensors itself writes files for the owner alone
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    _flush(place.parent)


def load(
    module: nn.Module, path: str | os.PathLike[str], *, strict: bool = True
) -> tuple[list[str], list[str]]:
    """Load the weights in `path` into `module`; a file that does not fit changes nothing.

    Any safetensors file with matching names and shapes works; one that `save` wrote also names its
    scores, which are checked. Needs `pip install regard[weights]`.

    ```python
    model = EncoderBlock(64, 4, "additive")
    load(model, "block.safetensors")
    ```

    Args:
        module: built as the one that was saved.
        path: the file.
        strict: refuse a file that lacks a tensor of the module or has one it does not know.

    Returns:
        The names that were missing in the file, and those the module does not know: both empty
        if strict.
    """
    _check_module(module)
    stored = _read(path)
    state = OrderedDict(stored.tensors)
    state._metadata = stored.modules  # type: ignore[attr-defined] # where torch itself keeps it
    try:
        # A trial on tensors without numbers: when torch raises, it has copied what fits already.
        with _hollow(module), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*to a meta parameter.*", UserWarning)
            module.load_state_dict(state, strict=strict)
    except Exception as error:  # a module may trip over metadata in any way
        raise RuntimeError(
            f"{str(path)!r}{stored.writer} does not fit this {type(module).__name__}: {error}"
        ) from None
    missing, unexpected = module.load_state_dict(state, strict=strict)
    return missing, unexpected


@contextmanager
def _hollow(module: nn.Module) -> Iterator[None]:
    """A context in which the tensors of the module are on the meta device; restores them on exit."""
    # Swapped in the dicts that hold them, which only their modules write otherwise.
    kept: list[dict[str, Any]] = [
        tensors for part in module.modules() for tensors in (part._parameters, part._buffers)
    ]
    full = [(tensors, dict(tensors)) for tensors in kept]
    try:
        for tensors, own in full:
            for name, x in own.items():
                # A lazy parameter has no shape yet: the trial gives it the one in the file.
                if x is not None and not is_lazy(x):
                    empty = torch.empty_like(x, device="meta")
                    tensors[name] = (
                        nn.Parameter(empty, x.requires_grad)
                        if isinstance(x, nn.Parameter)
                        else empty
                    )
        yield
    finally:
        for tensors, own in full:
            tensors.update(own)


def _read(path: str | os.PathLike[str]) -> Stored:
    """The contents of the file; an error says what it is if it is not a safetensors file."""
    safetensors = _safetensors()
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"path {str(path)!r} is a directory, not a safetensors file")
    if not place.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    try:
        with safetensors.safe_open(place, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            entry = (file.metadata() or {}).get(ENTRY)
    except safetensors.SafetensorError as error:
        with place.open("rb") as opened:
            pickled = opened.read(4).startswith(PICKLED)
        kind = (
            "looks like a pickle, as torch.save writes it: it is never unpickled here, since that "
            "runs code; load it where you trust it and save it with regard.nn.save"
            if pickled
            else f"is not a complete safetensors file: it may be truncated or of another format ({error})"
        )
        raise ValueError(f"{str(path)!r} {kind}") from None
    if entry is None:
        return Stored(tensors, "", {})
    try:
        found = json.loads(entry)
        for name, first in found["same"].items():
            tensors[name] = tensors[first]
        writer = f", saved from {found['class']} by regard {found['version']},"
        if not writer.isprintable():
            raise ValueError("control characters")
        modules = {name: dict(x) for name, x in found["modules"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"the metadata {ENTRY!r} of {str(path)!r} is not what regard.nn.save writes; the "
            "file was damaged or made by something else"
        ) from None
    for known in modules.values():
        # torch reads `assign=` of load_state_dict from the metadata: a file must not set it.
        known.pop("assign_to_params_buffers", None)
    return Stored(tensors, writer, modules)


def _store_once(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, each on its own memory, and the names that repeat an earlier one."""
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first: dict[tuple, str] = {}
    seen: set[tuple] = set()
    for name, given in state.items():
        if not isinstance(given, Tensor):
            raise TypeError(
                f"state_dict entry {name!r} is {describe(given)}: safetensors holds tensors alone"
            )
        if given.is_meta or given.is_nested or given.layout != torch.strided:
            raise ValueError(
                f"state_dict entry {name!r} is on {given.device} with layout {given.layout}: only dense "
                "tensors with numbers in them can be written"
            )
        x = given.detach().resolve_conj().resolve_neg()  # the file has no place for these flags
        view = (x.device, x.data_ptr(), x.shape, x.stride(), x.dtype)
        if x.numel() and view in first:
            same[name] = first[view]
            continue
        first[view] = name
        # safetensors refuses tensors that share memory, so different views of one are cloned.
        memory = (x.device, x.untyped_storage().data_ptr())
        tensors[name] = (x.clone() if memory in seen else x).contiguous()
        seen.add(memory)
    return tensors, same


def _entry(module: nn.Module, same: dict[str, str]) -> str:
    import regard

    kind = type(module)
    known = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "version": regard.__version__,
        "modules": getattr(module.state_dict(), "_metadata", {}),
        "same": same,
    }
    try:
        return json.dumps(known)
    except TypeError as error:
        raise TypeError(
            f"the metadata of {kind.__name__}'s state_dict cannot be written as JSON: {error}"
        ) from None


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk; folders are skipped on Windows, which cannot open them."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {describe(module)}")


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError(
            "saving and loading weights needs safetensors: pip install regard[weights]"
        ) from None
    return safetensors
