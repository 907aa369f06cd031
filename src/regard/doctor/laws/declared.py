"""`Declared`: what a model is meant to do, and from what that is known.

A fault in all layers would become the rule if layers were counted: only arguments, configs, attributes
and labels declare anything.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.describe import describe
from regard.doctor.findings.evidence import position_tables
from regard.doctor.laws.streams import LABELS, Stream
from regard.doctor.probing.inputs import names_of
from regard.doctor.signature import text_config
from regard.mask import Mask

if TYPE_CHECKING:
    from regard.doctor.laws.bench import LawBench

# Padding masks by the names of their arguments: True or 1 is a real token, or padding.
REAL = ("attention_mask", "input_mask", "encoder_attention_mask", "valid_mask")
HIDDEN = ("key_padding_mask", "padding_mask", "pad_mask", "src_key_padding_mask", "padding")
OF_TARGET = ("decoder_attention_mask", "tgt_key_padding_mask", "target_mask")
LENGTHS = ("lengths", "length", "seq_lens", "seq_len", "src_lengths", "input_lengths")
ROTARY = ("rope_parameters", "rope_theta", "rotary_pct", "rotary_dim", "rope_scaling")
RELATIVE = (
    "relative_attention_num_buckets",
    "relative_attention",
    "alibi",
    "max_relative_positions",
)
CAUSAL_NAMES = ("CausalLM", "LMHeadModel")  # of classes of transformers
IGNORED = -100  # labels that are not scored


@dataclass
class Declared:
    """What is declared.

    Attributes:
        visible: (T, T) or (B, T, T), True where the output of a token may depend on another, through all
            layers; None if nothing is declared.
        causal: whether that is the causal rule; None if not declared.
        direct: the same for one layer: without what is seen through other tokens.
        real: for each padded stream by its name, (B, T), True where a token is real.
        positions: kind of positions, "" for none on purpose, None if not known.
        scored: (B, T), True where the output is scored on the next token.
        sources: for each of "causal", "padding", "positions", "labels", from what it is known.
    """

    visible: Tensor | None = None
    causal: bool | None = None
    direct: Tensor | None = None
    real: dict[str, Tensor] = field(default_factory=dict)
    positions: str | None = None
    scored: Tensor | None = None
    sources: dict[str, str] = field(default_factory=dict)


def declare(
    bench: LawBench,
    causal: bool | Tensor | Mask | None,
    padding: Tensor | str | bool | None,
    positions: str | bool | None,
    labels: Tensor | None,
    segments: Tensor | None,
) -> Declared:
    """All declarations of a check."""
    found = Declared()
    bench.declared = found
    declare_padding(bench, found, padding)
    declare_causal(bench, found, causal)
    if segments is not None:
        same = segments.unsqueeze(-1) == segments.unsqueeze(-2)
        found.visible = same if found.visible is None else found.visible & same
        found.direct = same if found.direct is None else found.direct & same
        told = found.sources.get("causal")
        found.sources["causal"] = "argument segments=" + (f", {told}" if told else "")
    declare_positions(bench, found, positions)
    declare_labels(bench, found, labels)
    return found


def declare_causal(bench: LawBench, found: Declared, given: bool | Tensor | Mask | None) -> None:
    """Who may see whom: the argument, else `is_causal` of modules that attend to their own tokens."""
    target = bench.target
    if given is not None and not isinstance(given, bool | Tensor | Mask):
        raise TypeError(f"causal must be True, False, a mask or None, got {describe(given)}")
    if given is None:
        given, found.sources["causal"] = causal_by_model(bench)
        if given is None:
            return
    else:
        found.sources["causal"] = "argument causal="
    found.causal = given if isinstance(given, bool) else None
    if target is None or given is False:
        return
    length = target.length
    if isinstance(given, Mask):
        given = given.visible(length, length, torch.device("cpu"))
        given = given.squeeze(-3) if given.ndim > 2 else given
    if isinstance(given, Tensor):
        if given.dtype != torch.bool or given.shape[-2:] != (length, length):
            raise ValueError(
                f"causal: a mask must be boolean, True = may see, and end in ({length}, {length}); "
                f"got {describe(given)}"
            )
        found.direct, found.visible = given.cpu(), through_layers(given.cpu())
    elif given:
        found.direct = found.visible = torch.ones(length, length, dtype=torch.bool).tril()


def causal_by_model(bench: LawBench) -> tuple[bool | None, str]:
    """What the model says of itself, and by what."""
    given = causal_by_modules(bench)
    if given is not None:
        return given, f"is_causal={given} of the modules that attend"
    if any(name in bench.root for name in CAUSAL_NAMES):
        return True, f"the name of the class, {bench.root}"
    return None, "not declared: pass causal=True or False"


def through_layers(direct: Tensor) -> Tensor:
    """Who may see whom through any number of layers, with a residual connection."""
    reach = direct | torch.eye(direct.shape[-1], dtype=torch.bool)
    for _ in range(direct.shape[-1].bit_length()):
        reach = (reach.float() @ reach.float()) > 0
    return reach


def causal_by_modules(bench: LawBench) -> bool | None:
    """What `is_causal` says of the modules that attend to their own tokens; None if they differ."""
    target, said = bench.target, set()
    if target is None:
        return None
    kinds = {s.length for s in bench.streams}
    both = getattr(getattr(bench.inner, "config", None), "is_encoder_decoder", False)
    for site, facts in bench.facts.items():
        module = bench.modules.get(bench.calls[site].path)
        causal = getattr(module, "is_causal", None)
        # With an encoder, the sites that matter are those of the decoder.
        elsewhere = (both or len(kinds) > 1) and not any("decoder" in x for x in site.split("."))
        crosses = getattr(module, "is_cross_attention", False) or "cross" in site.lower() or (
            "EncDecAttention" in site or "encoder_attn" in site
        )  # fmt: skip
        if (
            isinstance(causal, bool)
            and facts.shape[0] == facts.shape[1]
            and not (elsewhere or crosses)
        ):
            said.add(causal)
    return said.pop() if len(said) == 1 else None


def declare_padding(bench: LawBench, found: Declared, given: Tensor | str | bool | None) -> None:
    """Which tokens are real: the argument, else arguments of the model, else its padding id."""
    named = names_of(bench.inner, bench.batch)
    if given is False:
        found.sources["padding"] = "argument padding=False"
        return
    if given is not None and not isinstance(given, Tensor | str | bool):
        raise TypeError(f"padding must be a mask, a name or False, got {describe(given)}")
    if isinstance(given, str):
        if given not in named:
            raise ValueError(f"padding={given!r}: the batch has {', '.join(named) or 'no names'}")
        keep_real(bench, found, named[given], f"argument {given} of the batch", given)
    elif isinstance(given, Tensor):
        keep_real(bench, found, given, "argument padding=", "padding")
    else:
        for name, x in named.items():
            if name.lower() in (*REAL, *HIDDEN, *OF_TARGET, *LENGTHS):
                keep_real(bench, found, x, f"argument {name} of the batch", name)
        if not found.real:
            padding_by_id(bench, found)
    hides = {name: real for name, real in found.real.items() if not real.all()}
    if found.real and not hides:
        found.sources["padding"] += ", which hides nothing in this batch"
    found.real = hides
    found.sources.setdefault("padding", "neither argument, batch nor config names any")


def keep_real(bench: LawBench, found: Declared, mask: Tensor, source: str, name: str) -> None:
    """Keep the mask of a padding argument as True = real, for the stream it belongs to."""
    said = name.lower()
    # As in the library, True is a real token, but for names that torch gives to what is hidden.
    hidden = said != "padding" or source != "argument padding="
    hidden = hidden and (said in HIDDEN or "key_padding" in said)
    last = said in OF_TARGET or "decoder" in said or "tgt" in said
    streams = [s for s in bench.streams if s.length]
    for stream in streams[::-1] if last else streams:
        if said in LENGTHS and mask.ndim == 1 and int(mask.max()) <= stream.length:
            real = torch.arange(stream.length) < mask.cpu().long()[:, None]
        elif mask.shape == (bench.sizes.batch, stream.length):
            real = (
                mask.cpu() > -1 if mask.is_floating_point() and mask.min() < 0 else mask.cpu() != 0
            )
            real = ~real if hidden else real
        else:
            continue
        found.real[stream.name] = real
        found.sources["padding"] = source
        return


def padding_by_id(bench: LawBench, found: Declared) -> None:
    """Runs of the config's padding id at an end of some sequences."""
    config = text_config(bench.inner)
    pad = getattr(config, "pad_token_id", None)
    others = (getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None))
    # Where padding is also a mark of begin or end, a run of it says nothing.
    if type(pad) is not int or pad in others:
        return
    for stream in bench.streams:
        if stream.ids is None or stream.shifted or "decoder" in stream.name:
            continue
        is_pad = (stream.ids == pad).cpu()
        ends = is_pad.int().cumprod(1) | is_pad.int().flip(1).cumprod(1).flip(1)
        counts = ends.sum(1)
        if counts.max() > 0 and counts.min() < counts.max() and counts.max() < stream.length:
            found.real[stream.name] = ends == 0
            found.sources["padding"] = f"pad_token_id {pad} of the config"


def declare_positions(bench: LawBench, found: Declared, given: str | bool | None) -> None:
    """The kind of positions: the argument, else the config, else tables by their names."""
    if given is not None:
        kind = "declared" if given is True else given or ""
        found.positions, found.sources["positions"] = kind, "argument positions="
        return
    config = text_config(bench.inner)
    for names, kind in ((RELATIVE, "relative"), (ROTARY, "rotary")):
        told = [name for name in names if getattr(config, name, None)]
        if told:
            found.positions, found.sources["positions"] = kind, f"{told[0]} of the config"
            return
    tables = [name for name, _ in position_tables(bench.inner)]
    if tables:
        found.positions, found.sources["positions"] = "table", f"the table {tables[0]}"
        return
    found.sources["positions"] = "not declared: pass positions=True or False"


def declare_labels(bench: LawBench, found: Declared, given: Tensor | None) -> None:
    """The label law: where labels are the inputs shifted by one, an output is scored on the next token."""
    named = {k.lower(): x for k, x in names_of(bench.inner, bench.batch).items()}
    labels = given if given is not None else next((named[x] for x in LABELS if x in named), None)
    target = bench.target
    if labels is None or target is None or target.ids is None:
        found.sources["labels"] = "no labels in the batch" if labels is None else "no token ids"
        return
    ids = target.ids.cpu()
    labels = labels.cpu()
    if target.shifted:
        found.scored = only_next(labels != IGNORED)
        found.sources["labels"] = f"the decoder reads {target.name} shifted by one"
        return
    if labels.shape not in (ids.shape, (ids.shape[0], ids.shape[1] - 1)) or ids.shape[1] < 3:
        found.sources["labels"] = "the labels are no tokens of the same sequence"
        return
    shifted = labels[:, : ids.shape[1] - 1]
    counted = shifted != IGNORED
    if counted.any() and bool((shifted == ids[:, 1:])[counted].all()):
        found.scored = only_next(torch.nn.functional.pad(counted, (0, 1)))
        found.sources["labels"] = "the labels are the inputs shifted by one"
    elif labels.shape == ids.shape and shifts_inside(bench, labels, target):
        counted = torch.nn.functional.pad(labels[:, 1:] != IGNORED, (0, 1))
        found.scored = only_next(counted)
        found.sources["labels"] = "the model's loss scores each output on the next token"
    else:
        found.sources["labels"] = "the labels are not the inputs shifted by one"


def only_next(scored: Tensor) -> Tensor:
    """The last token has no next one."""
    scored = scored.clone()
    scored[:, -1] = False
    return scored


def shifts_inside(bench: LawBench, labels: Tensor, target: Stream) -> bool:
    """Whether the model's own loss is that of each output and the label after it."""
    assert target.ids is not None
    counted = labels != IGNORED
    if not counted.any() or not bool((labels == target.ids.cpu())[counted].all()):
        return False
    loss = bench.output.get("loss") if isinstance(bench.output, Mapping) else None
    logits = bench.rows.get("logits")
    if loss is None or logits is None:
        return False
    return abs(float(loss) - next_loss(logits, labels)) < 1e-3 * max(abs(float(loss)), 1e-3)


def next_loss(logits: Tensor, labels: Tensor) -> float:
    """The cross-entropy of each output on the label after it."""
    flat = logits[:, :-1].float().flatten(0, 1).cpu()
    return float(
        torch.nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), ignore_index=IGNORED)
    )
