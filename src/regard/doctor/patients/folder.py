"""Opens a patient from a Hugging Face folder on disk: config.json and its weights.

Weights are read from safetensors, or from pytorch_model.bin with `weights_only`. Code in a folder
is never run, nothing is unpickled, and nothing is downloaded.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.doctor.patients.data import NOT_UNPICKLED, Tokenizer, is_pickle
from regard.doctor.patients.patient import Unusable, one_line, with_kind
from regard.doctor.patients.sizes import check_memory, check_sizes

INSTALL = "pip install 'regard[hf]'"
SAFE, PICKLED = "*.safetensors", "pytorch_model*.bin"
LONGEST = 256  # tokens of one line of text


def open_folder(folder: Path) -> tuple[nn.Module, list[str]]:
    """The model, and remarks about its weights."""
    config = read_config(folder)
    safe = sorted(folder.glob(SAFE))
    if not safe and not sorted(folder.glob(PICKLED)):
        raise Unusable(f"{folder}: there are no weights: neither {SAFE} nor {PICKLED}")
    check_shards(folder)
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise Unusable(f"{folder}: a Hugging Face folder needs transformers: {INSTALL}") from None
    with quiet():
        try:
            return load(folder, config, safe=bool(safe))
        except Unusable:
            raise
        except Exception as error:  # transformers raises many types
            if is_pickle(error):
                raise Unusable(
                    f"{folder}: pytorch_model.bin holds something other than tensors. "
                    f"{NOT_UNPICKLED}; use safetensors"
                ) from None
            if "auto_map" in config:
                raise Unusable(
                    f"{folder}: its config names code of its own (auto_map). That code is not run; "
                    "write a function that builds the model, and name it as package.module:function"
                ) from None
            raise Unusable(f"{folder} cannot be loaded: {with_kind(error)}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json, which says what the model is."""
    path = folder / "config.json"
    if not path.is_file():
        raise Unusable(
            f"{folder}: there is no config.json in it, which says what the model is; give the "
            "folder that save_pretrained wrote"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(config, dict):
        raise Unusable(f"{path} is not a config: it must hold a JSON object")
    return config


def check_shards(folder: Path) -> None:
    """Raise `Unusable` if an index of weights names files outside the folder."""
    for path in sorted(folder.glob("*.index.json")):
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            named = set(index["weight_map"].values())
            strange = [name for name in named if Path(name).name != name]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Unusable(f"{path} is not an index of weights: {with_kind(error)}") from None
        if strange:
            raise Unusable(f"{path} names {strange[0]!r}, which is not a file in the folder")


def load(folder: Path, config: dict[str, Any], *, safe: bool) -> tuple[nn.Module, list[str]]:
    """Build the model and read its weights."""
    import transformers
    from transformers import AutoConfig, AutoModel, PreTrainedModel

    from regard.integrations.transformers import load_pretrained
    from regard.integrations.transformers.attach import DESCRIPTIONS

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    found = AutoConfig.from_pretrained(folder, **local)
    check_sizes(folder, found, sorted(folder.glob(SAFE if safe else PICKLED)))
    if DESCRIPTIONS in config:
        return load_pretrained(folder, local_files_only=True).eval(), []
    # A config may name kernels to download; with None the model uses its default attention.
    found._attn_implementation = None
    named = found.architectures[0] if found.architectures else None
    known = getattr(transformers, named, None) if isinstance(named, str) else None
    is_model = isinstance(known, type) and issubclass(known, PreTrainedModel)
    reader: Any = known if is_model else AutoModel
    if "quantization_config" not in config:  # packed weights need less memory than the count
        build = reader._from_config if is_model else AutoModel.from_config
        check_memory(folder, partial(build, found))
    model, info = reader.from_pretrained(
        folder,
        config=found,
        use_safetensors=safe,
        weights_only=True,
        output_loading_info=True,
        **local,
    )
    said = [] if is_model else [f"the class {named} is not in transformers: read as AutoModel"]
    missing = sorted(info["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        said.append(f"{len(missing)} weights are in no file and are random: {shown}")
    return model.eval(), said


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers within a block; `open_folder` reports what matters."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def open_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, None without one."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    try:
        with quiet():
            reader: Any = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # transformers raises many types
        raise Unusable(f"the tokenizer in {folder} cannot be loaded: {one_line(error)}") from None
    if reader.pad_token is None:
        reader.pad_token = reader.eos_token

    def tokenize(lines: list[str]) -> Mapping[str, Tensor]:
        return reader(lines, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")

    return tokenize
