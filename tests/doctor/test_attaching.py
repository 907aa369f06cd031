"""Attached, detached, nested, copied, in other threads: nothing of a watch is left behind."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import regard
from regard.doctor.watch import attach, watch
from regard.observed import WATCHERS

from .watching import (
    DIM,
    HEADS,
    Attention,
    Eager,
    Kept,
    Stack,
    assert_same_bits,
    column,
    pass_through,
    tokens,
)


def test_nested_and_repeated():
    model, x = Stack(Attention(), Eager()), tokens()
    before = pass_through(model, x)
    with watch(model, vitals=Kept().vitals) as outer:
        with watch(model, vitals=Kept().vitals) as inner:
            assert_same_bits(pass_through(model, x), before)
        pass_through(model, x)
        with watch(model.layers[0], vitals=Kept().vitals) as part:
            pass_through(model, x)
    assert (outer.steps, inner.steps, part.steps) == (3, 1, 1)
    assert outer.sites == inner.sites == ["layers.0", "layers.1"] and part.sites == ["Attention"]
    assert column(outer, "layers.1", "query_grad").isfinite().all()
    with outer:
        pass_through(model, x)
    assert outer.steps == 4 and outer.history("layers.0").steps == [1, 2, 3, 4]
    clean(model)


def test_attach_and_detach_in_any_order():
    model, x = Attention(), tokens()
    first = attach(model, "cheap", vitals=Kept().vitals)
    second = attach(model, vitals=Kept().vitals)
    model(x)
    first.detach()
    first.detach()
    model(x)
    with pytest.raises(RuntimeError, match="watching already"):
        second.attach()
    second.detach()
    assert (first.steps, second.steps) == (1, 2)
    clean(model)


def test_detached_under_the_mode_of_another_library():
    class Other(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model = Attention()
    d = attach(model, vitals=Kept().vitals)
    with Other() as other:
        d.detach()
        assert _get_current_function_mode_stack() == [other]
    clean(model)


def test_detached_in_the_middle_of_a_forward_pass():
    model = Stack(Attention(), Attention(), Attention())
    model.layers[1].register_forward_pre_hook(lambda *_: d.detach())
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens())
    assert d.sites == ["layers.0"]
    model.layers[1]._forward_pre_hooks.clear()
    clean(model)


def test_an_error_in_the_model():
    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    model, x = Stack(Attention(), Fails(), Attention()), tokens()
    with pytest.raises(KeyError, match="mine"), watch(model, vitals=Kept().vitals) as d:
        model(x)
    clean(model)
    with d:
        with pytest.raises(KeyError):
            model(x)
        assert d.capture.stack == []
        scaled_dot_product_attention(x, x, x)
        model.layers[1].forward = lambda x: x
        model(x)
    assert d.sites == ["layers.0", "layers.2"] and d.steps == 3


def test_a_pass_that_ctrl_c_ended_is_no_part_of_the_next():
    """Torch tells hooks of no error but `Exception`."""

    class Stopped(Attention):
        stop = True

        def forward(self, x):
            if self.stop:
                raise KeyboardInterrupt
            return super().forward(x)

    model, x = Stack(Eager(), Stopped()), tokens()
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                model(x)
        model.layers[1].stop = False
        model(x)
        model(x)
        assert d.capture.stack == []
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 4
    clean(model)


def test_a_model_that_calls_itself_is_one_step():
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Attention()

        def forward(self, x, times=3):
            return self(self.a(x), times - 1) if times else x

    model = Again()
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens())
    assert d.sites == ["a", "a#2", "a#3"] and d.steps == 1


def test_copies_and_pickles_are_not_watched():
    model, x = Stack(Attention(), Eager()), tokens()
    names, before = list(model.state_dict()), model(x)
    with watch(model, vitals=Kept().vitals) as d:
        assert list(model.state_dict()) == names
        twin = copy.deepcopy(model)
        data = pickle.dumps(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        others = [twin, pickle.loads(data), torch.load(file, weights_only=False)]  # noqa: S301
        for other in others:
            assert torch.equal(other(x), before)
        assert d.steps == 0
        model(x)
    assert d.steps == 1
    assert b"regard" not in data and b"nullcontext" in data


def test_a_copy_of_a_doctor_has_the_numbers_and_does_not_watch():
    model, x = Stack(Attention(), Eager()), tokens()
    d = attach(model, "cheap")
    model.doctor = d  # as trainers do, which then copy the model for averaged weights
    model(x)
    twin = copy.deepcopy(model)
    assert not twin.doctor.attached and twin.doctor.model is twin and twin.doctor.steps == 1
    twin.doctor.detach()
    model(x)
    assert d.steps == 2 and twin.doctor.steps == 1
    kept = pickle.loads(pickle.dumps(d))  # noqa: S301
    assert kept.sites == d.sites and kept.steps == 2 and not kept.attached
    with twin.doctor:
        twin(x)
    assert twin.doctor.steps == 2
    d.detach()
    clean(model)


def test_a_doctor_without_references_stops():
    model = Stack(Attention())
    d = attach(model, vitals=Kept().vitals)
    d = attach(model, vitals=Kept().vitals)  # a cell of a notebook, run again
    assert len(_get_current_function_mode_stack()) == len(WATCHERS) == 1
    model(tokens())
    assert d.steps == 1
    del d
    gc.collect()
    clean(model)


def test_the_error_of_a_wrong_call_is_torchs():
    class Wrong(nn.Module):
        def forward(self, x):
            return scaled_dot_product_attention(x, x, x)

    with watch(Wrong()) as d, pytest.raises(RuntimeError, match="at least 2 dim"):
        d.model(torch.ones(4))


def test_another_thread_is_not_seen():
    model, x = Stack(Attention(), regard.nn.SelfAttention(DIM, HEADS)), tokens()
    with watch(model, vitals=Kept().vitals) as d:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        assert d.steps == 0 and d.sites == []
        model(x)
    assert d.steps == 1 and len(d.sites) == 2


def clean(model: nn.Module) -> None:
    """Nothing of a watch is left."""
    assert WATCHERS == [] and _get_current_function_mode_stack() == []
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert not module._forward_hooks_always_called
