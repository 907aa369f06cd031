"""`check`: what it declares and from what, what it leaves behind, and what it says."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.doctor import LAWS, Severity, check
from regard.doctor.laws import LawVerdict
from regard.doctor.laws.picture import images
from regard.doctor.laws.result import merged

from ..reporting import finding
from .handmade import DIM, WORDS, Small, Whole
from .hosts import B, T, real, tokens

WHO, PAD = "who-may-see-whom", "padding-is-not-read"


def decoder(fault: str = "", **more: Any) -> Small:
    return Small({1: fault} if fault else {}, **{"causal": True, **more})


# Nothing is left behind.


class Remembering(nn.Module):
    """It keeps a cache, a counter, running statistics, and last weights; and may be interrupted."""

    def __init__(
        self, stop_at: int | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        super().__init__()
        self.body, self.norm = Small({}, causal=True), nn.BatchNorm1d(WORDS)
        self.cache: list[Tensor] = []
        self.table: dict[str, int] = {"calls": 0}
        self.stop_at, self.error = stop_at, error
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.append(x)
        self.table["calls"] += 1
        self.last = x
        self.seen += 1
        if self.stop_at is not None and len(calls) >= self.stop_at:
            raise self.error
        calls.append(1)
        random.random()
        np.random.rand()  # noqa: NPY002 - the global state is what is tested
        return self.norm(self.body(x).transpose(1, 2)).transpose(1, 2)


calls: list[int] = []


def state(model: nn.Module) -> dict[str, Any]:
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training)
        for m in model.modules()
    ]
    return {
        "weights": {k: x.clone() for k, x in model.state_dict().items()},
        "versions": [x._version for x in model.parameters()],
        "gradients": [None if x.grad is None else x.grad.clone() for x in model.parameters()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),  # noqa: NPY002
        "hooks": hooks,
        "attributes": (list(model.cache), dict(model.table), hasattr(model, "last")),
        "modes": len(torch.overrides._get_current_function_mode_stack()),
        "watchers": (len(regard.observed.WATCHERS), torch.is_grad_enabled()),
    }


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("stop_at", [None, 0, 2, 6])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_everything_is_as_before(stop_at: int | None, error: type[BaseException]) -> None:
    calls.clear()
    model, x = Remembering(None, error).train(), tokens(B, T)
    model.body.blocks[0].eval()
    model(x).sum().backward()
    calls.clear()
    model.stop_at = stop_at
    before = state(model)
    if stop_at is not None and (error is KeyboardInterrupt or stop_at == 0):
        with pytest.raises(error):
            check(model, x, causal=True)
    else:  # an error on changed inputs is a law that was not tested
        check(model, x, causal=True)
    after = state(model)
    for name in before:
        assert alike(before[name], after[name]), name


# What is declared, and from what.


class Told(nn.Module):
    """A decoder that takes labels, and may compute a loss as transformers do."""

    def __init__(self, fault: str, shifts: bool | None) -> None:
        super().__init__()
        self.body, self.shifts = decoder(fault), shifts

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(input_ids)
        if self.shifts is None:
            return {"logits": logits}
        a, b = (logits[:, :-1], labels[:, 1:]) if self.shifts else (logits, labels)
        loss = nn.functional.cross_entropy(a.flatten(0, 1), b.flatten())
        return {"loss": loss, "logits": logits}


def test_the_label_law_needs_no_declaration() -> None:
    x = tokens(B, T)
    shifted = torch.cat([x[:, 1:], torch.full((B, 1), -100)], 1)
    for labels, shifts in ((shifted, None), (x, True)):
        found = check(Told("shifted-mask", shifts), {"input_ids": x, "labels": labels})
        assert found.ruling(WHO).verdict is LawVerdict.BROKEN
        assert found.findings[0].site == "body.blocks.1.attention"
        assert check(Told("", shifts), {"input_ids": x, "labels": labels}).ok
    assert check(decoder("shifted-mask"), x, labels=shifted).broken


def test_labels_that_are_the_inputs_are_not_shifted_without_a_loss_that_shifts() -> None:
    x = tokens(B, T)
    for shifts in (None, False):
        found = check(Told("shifted-mask", shifts), {"input_ids": x, "labels": x.clone()})
        assert not found.broken


def test_the_prefix_of_a_prefix_lm_may_see_itself() -> None:
    x = tokens(B, T)
    labels = torch.cat([x[:, 1:], torch.full((B, 1), -100)], 1)
    labels[:, :5] = -100
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    mask[:, :5] = True

    class Prefix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, DIM)
            self.layer = nn.TransformerEncoderLayer(DIM, 4, 64, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.embed(x), src_mask=~mask)

    assert check(Prefix(), x, labels=labels).ok
    assert check(Prefix(), x, causal=mask).ok
    assert check(Prefix(), x, causal=True).broken


def test_what_only_the_layers_suggest_is_a_note() -> None:
    model = Small(dict.fromkeys(range(3), "shifted-mask"), causal=True, layers=1)
    found = check(model, tokens(B, T))
    assert found.ok and found.ruling(WHO).verdict is LawVerdict.NOTE
    assert found.findings[0].severity is Severity.NOTE
    assert "causal=True" in found.findings[0].explanation


def test_a_mask_of_regard_declares_too() -> None:
    window = regard.Mask.window(left=3) & regard.Mask.causal()
    assert check(decoder(), tokens(B, T), causal=window).broken
    assert check(decoder(), tokens(B, T), causal=regard.Mask.causal()).ok


@pytest.mark.parametrize("name", ["attention_mask", "key_padding_mask", "lengths"])
def test_padding_by_the_name_of_its_argument(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Small({}, causal=False)

        def forward(self, x: Tensor, **more: Tensor) -> Tensor:
            mask = more[name]
            if name == "lengths":
                mask = torch.arange(x.shape[1]) < mask[:, None]
            return self.body(x, ~mask if name == "key_padding_mask" else mask)

    mask = real().bool()
    given = {"attention_mask": mask, "key_padding_mask": ~mask, "lengths": mask.sum(1)}[name]
    found = check(Named(), {"x": tokens(B, T), name: given})
    assert found.ruling(PAD).verdict is LawVerdict.HELD and name in found.sources["padding"]


def test_outputs_may_be_dataclasses() -> None:
    @dataclasses.dataclass
    class Output:
        logits: Tensor
        more: tuple

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = decoder("no-causal-mask")

        def forward(self, x: Tensor) -> Output:
            out = self.body(x)
            return Output(out, (out * 2, None))

    assert [x.law for x in check(Wrapped(), tokens(B, T), causal=True).broken] == [WHO]


def test_the_first_call_of_a_model_without_modules_is_asked_for_its_own_tokens() -> None:
    assert not check(Whole({}), tokens(B, T), laws=["own-token"]).broken
    found = check(Whole({0: "heads-by-view"}), tokens(B, T), laws=["own-token"])
    assert found.broken and found.findings[0].site == "Whole"


def test_wrapped_models_have_the_names_of_what_they_wrap() -> None:
    x = tokens(B, T)
    labels = torch.cat([x[:, 1:], torch.full((B, 1), -100)], 1)
    for wrapped in (
        torch.compile(Told("shifted-mask", None)),
        nn.DataParallel(Told("shifted-mask", None)),
    ):
        found = check(wrapped, (x, labels))
        assert found.model == "Told" and found.findings[0].site == "body.blocks.1.attention"


def test_frozen_zero_is_no_start() -> None:
    model = decoder()
    output = model.blocks[1].attention.o
    nn.init.zeros_(output.weight).requires_grad_(False)
    found = check(model, tokens(B, T), causal=True)
    assert [x.law for x in found.broken] == ["gradients-arrive"]
    assert found.findings[0].site == "blocks.1.attention"


def test_arguments_that_are_wrong_are_refused() -> None:
    x = tokens(B, T)
    for options, said in (
        ({"causal": "yes"}, "causal must be"),
        ({"causal": torch.ones(3, 3, dtype=torch.bool)}, "must be boolean"),
        ({"padding": "nope"}, "the batch has x"),
        ({"laws": ["nope"]}, "unknown laws"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            check(decoder(), x, **options)
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        check(torch.relu, x)


# What it says.


def test_a_clean_bill_says_what_was_not_tested() -> None:
    found = check(decoder(positions="none"), tokens(B, T))
    assert found.ok and "none is broken" in found.headline
    for law in (WHO, PAD, "order-is-seen"):
        assert law in found.headline.partition("Not tested")[2]
    assert "not declared: pass causal=" in found.summary()
    assert all(law.name in found.summary() for law in LAWS)


def test_a_finding_says_where_by_how_much_and_the_line() -> None:
    found = check(decoder("shifted-mask"), tokens(B, T), causal=True)
    text = found.summary()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("blocks.1.attention", "faults.py:", "allowed", "tril()", "argument causal="):
        assert part in text
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["ok"] is False and data["laws"][0]["verdict"] == "broken"
    assert data["passes"] == {"forward": found.forward, "backward": found.backward}
    assert "since" not in str(found.findings[0])


def test_the_map_shows_what_leaks(tmp_path) -> None:
    found = check(decoder("shifted-mask", layers=2), tokens(B, T), causal=True)
    assert found.map is not None and found.map.may is not None
    leaks = found.map.sees.nan_to_num(0.0) * ~found.map.may
    # Two layers: the second shows a token ahead.
    assert (leaks.diagonal(1) > 0).any() and leaks.triu(3).sum() == 0
    assert set(images(found.map, ("svg", "png"))) == {"svg", "png"}
    for suffix in ("svg", "png", "json", "html"):
        assert found.report(tmp_path / f"check.{suffix}").stat().st_size > 1000


def test_long_maps_are_drawn_in_blocks() -> None:
    from regard.doctor.laws.picture import blocks

    x = torch.full((100, 100), torch.nan)
    x[99, 98] = 2.0
    small = blocks(x)
    assert small.shape == (34, 34) and small[33, 32] == 2.0 and small[0, 0].isnan()


def test_findings_of_vitals_are_not_told_twice() -> None:
    laws = check(decoder("no-causal-mask"), tokens(B, T), causal=True).findings
    twice = finding("blocks.1.attention", Severity.WARNING, disease="missing-mask")
    other = finding("blocks.0.attention", Severity.WARNING, disease="missing-mask")
    assert [x.site for x in merged([twice, other], laws)] == [
        "blocks.1.attention",
        "blocks.0.attention",
    ]
    assert twice not in merged([twice, other], laws)
