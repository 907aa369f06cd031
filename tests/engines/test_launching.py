"""Bound launches beside ordinary ones, with stand-ins for Triton's kernels: no GPU is needed."""

from __future__ import annotations

import gc
import types
import weakref
from typing import NamedTuple

import pytest
import torch

from regard.engines import launching
from regard.engines.launching import (
    Launch,
    Pieces,
    Pointer,
    SecondUseCache,
    Steps,
    filling,
    sizes_between,
    slotted,
)
from regard.engines.sine_features import launch as sine_launch
from regard.engines.sine_features.operators import SineInputs
from regard.engines.triton import behind

triton = pytest.importorskip("triton", minversion="3.6")

STREAM = 7
FLOAT, HALF = torch.float32, torch.float16


class Launcher:
    """What Triton compiles for a signature; `launch` is the function in C."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self, calls: list) -> None:
        self.calls = calls

    def launch(self, *given):
        self.calls.append(given)


class Kernel:
    """A kernel as Triton has it, which notes how it was launched."""

    def __init__(self) -> None:
        self.pre_run_hooks: list = []
        self.ordinary: list = []
        self.direct: list = []
        self.launcher = Launcher(self.direct)

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.ordinary.append((grid, arguments, options))
            return types.SimpleNamespace(
                run=self.launcher, function=len(self.ordinary), packed_metadata=(4, 1, 0)
            )

        return run


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    return Kernel()


def launch_of(kernel):
    return Launch(kernel, 12, (FLOAT, HALF), sizes_between(2, 5, 6), ("E", 16), num_warps=2)


def test_the_first_launch_goes_through_triton_and_the_second_to_the_compiled_kernel(kernel):
    launch = launch_of(kernel)
    launch(STREAM, (0x100, 0x200), 0.5)
    ((grid, arguments, options),) = kernel.ordinary
    assert grid == (12,) and options == {"num_warps": 2}
    first, second, *rest = arguments
    assert isinstance(first, Pointer) and (first.data_ptr(), first.dtype) == (0x100, FLOAT)
    assert (second.data_ptr(), second.dtype) == (0x200, HALF) and rest == [5, 6, 0.5, "E", 16]
    launch(STREAM + 1, (0x300, 0x400), 0.25)
    assert len(kernel.ordinary) == 1
    nothing = (False, False, None, None, (4, 1, 0), None, None, None)
    given = (0x300, 0x400, 5, 6, 0.25, "E", 16)
    assert kernel.direct == [(12, 1, 1, STREAM + 1, 1, *nothing, *given)]


def test_each_alignment_is_compiled_and_bound_by_itself(kernel):
    launch = launch_of(kernel)
    for _ in range(2):
        for pointers in ((0x100, 0x200), (0x102, 0x200), (0x100, 0x208), (0x104, 0x208)):
            launch(STREAM, pointers, 1.0)
    assert len(kernel.ordinary) == len(kernel.direct) == 4
    assert [call[4] for call in kernel.direct] == [1, 2, 3, 4]  # each its own compiled function
    launch(STREAM, (0x10A, 0x110), 1.0)  # as the second
    assert kernel.direct[-1][4] == 2


def test_without_a_stream_launches_are_ordinary(kernel):
    launch = launch_of(kernel)
    launch(STREAM, (0x100, 0x200), 1.0)
    launch(None, (0x100, 0x200), 1.0)
    x = torch.zeros(3)
    launch(None, (x, x), 1.0)
    assert len(kernel.ordinary) == 3 and kernel.direct == []
    assert kernel.ordinary[-1][1][0] is x  # the interpreter takes tensors


def test_hooks_of_a_kernel_are_run(kernel):
    launch = launch_of(kernel)
    launch(STREAM, (0x100, 0x200), 1.0)
    kernel.pre_run_hooks.append(print)
    launch(STREAM, (0x100, 0x200), 1.0)
    assert len(kernel.ordinary) == 2 and kernel.direct == []


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_launch_hooks_leave_no_stream(monkeypatch, hook):
    device = torch.device("cuda", 3)
    monkeypatch.setattr(launching, "interpreted", lambda: False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False
    )
    assert launching.current_stream(device) == 103
    assert launching.current_stream(torch.device("cpu")) is None
    runtime = triton.knobs.runtime
    chain = type(runtime.launch_enter_hook)()
    monkeypatch.setattr(runtime, hook, chain)
    assert launching.current_stream(device) == 103
    chain.add(print)
    assert launching.current_stream(device) is None
    monkeypatch.setattr(runtime, hook, None)
    assert launching.current_stream(device) == 103
    monkeypatch.setattr(runtime, hook, print)
    assert launching.current_stream(device) is None


def test_the_interpreter_is_given_tensors_of_a_gpu_too(monkeypatch):
    monkeypatch.setattr(launching, "interpreted", lambda: True)
    device = torch.device("cuda", 0)
    assert not launching.has_addresses(device) and launching.current_stream(device) is None


@pytest.mark.parametrize("change", ["version", "launcher", "future", "scratch"])
def test_what_is_not_known_of_triton_is_launched_by_triton(kernel, monkeypatch, change):
    if change == "version":
        monkeypatch.setattr(triton, "__version__", "3.9.1")
    elif change == "launcher":
        kernel.launcher = types.SimpleNamespace(launch=print)
    elif change == "future":
        kernel.launcher = None
    else:
        kernel.launcher.global_scratch_size = 128
    launch = launch_of(kernel)
    for _ in range(3):
        launch(STREAM, (0x100, 0x200), 1.0)
    assert len(kernel.ordinary) == 3 and kernel.direct == []


def test_pieces_of_memory():
    layout = Pieces((1, torch.int32), (5, FLOAT), (2, torch.int32))
    assert layout.words == 16 and layout.starts == [0, 4, 12]
    memory = layout.new(torch.device("cpu"))
    flag, numbers, rest = layout.cut(memory)
    numbers.fill_(1.0)
    assert flag.shape == (1,) and rest.shape == (2,) and numbers.dtype == FLOAT
    assert (memory.view(FLOAT)[4:9] == 1).all()
    packed = Pieces((1, torch.int32), (5, FLOAT), (2, torch.int32), gaps=False)
    assert packed.words == 8 and packed.starts == [0, 1, 6]


def test_pieces_on_a_gpu_are_addresses(monkeypatch):
    monkeypatch.setattr(launching, "has_addresses", lambda device: True)
    layout = Pieces((1, torch.int32), (5, FLOAT), (2, torch.int32))
    memory = layout.new(torch.device("cpu"))
    base = memory.data_ptr()
    assert layout.cut(memory) == [base, base + 16, base + 48]
    assert launching.addresses(memory, memory[4:]) == [base, base + 16]


def test_filling_a_named_tuple():
    rows = behind.FallbackSignature(*range(len(behind.FallbackSignature._fields)))
    filled = filling(rows, "b", "device")("x", "y")
    assert filled == rows._replace(b="x", device="y") and type(filled) is behind.FallbackSignature


def described(*sizes, dtype=FLOAT):
    return torch.empty(sizes, dtype=dtype, device="meta")


def test_places_in_the_stead_of_tensors():
    x, y, z = (described(n) for n in (1, 2, 3))
    group = Pair(y, 5)
    tensors, arguments = slotted((x, group, None, y, 7, Pair(1, 2), z))
    assert sorted(t.numel() for t in tensors) == [1, 2, 3]
    by_tensor = {id(t): f"at {t.numel()}" for t in tensors}
    found = arguments(*(by_tensor[id(t)] for t in tensors))
    assert found == ["at 1", Pair("at 2", 5), None, "at 2", 7, Pair(1, 2), "at 3"]
    assert type(found[1]) is Pair
    assert arguments("p", "q", "r") != found  # nothing of a call stays


class Pair(NamedTuple):
    """A group of arguments."""

    first: object
    second: object


def test_steps_share_memory(kernel, monkeypatch):
    """Given places, pieces of one memory, and pieces of one that is cleared."""
    monkeypatch.setattr(launching, "has_addresses", lambda device: True)
    monkeypatch.setattr(launching, "current_stream", lambda device: STREAM)
    given, piece, half, zero = described(3), described(5), described(3, dtype=HALF), described(2)
    steps = Steps([given], [piece, half], [zero])
    assert steps.layout.starts == [0, 8] and steps.layout.words == 12 and steps.cleared.words == 4
    steps.add(kernel, 2, (given, 1, Pair(half, piece)), ("E",), num_warps=1)
    steps.add(kernel, 3, (zero, piece), ())
    real = torch.zeros(4)[:3]
    first = steps.run(real)
    assert [x is not None for x in first] == [True, True]  # compiled just now
    assert steps.run(real) == [None, None]
    one, two = kernel.direct
    address, size, (of_half, of_piece), constant = one[-4:]
    assert (address, size, constant) == (real.data_ptr(), 1, "E") and one[:3] == (2, 1, 1)
    assert of_half - of_piece == 32
    assert two[-1] == of_piece and two[:3] == (3, 1, 1)


def inputs(queries=20, dtype=FLOAT, wide=0, rank=4):
    a, b = (torch.randn(1, 2, queries, 4 + wide).to(dtype)[..., :4] for _ in range(2))
    v, value = torch.randn(2, 4).to(dtype), torch.randn(1, 2, queries, 8).to(dtype)
    numbers = torch.tensor([1.0, 0.5], dtype=torch.float64)
    return SineInputs(a, b, v, value, numbers, False, "uniform", rank)


def test_calls_share_launches_only_where_shapes_strides_and_dtypes_agree():
    kind, features = sine_launch.feature_signature, sine_launch.features_of
    first = features(kind(inputs()))
    assert features(kind(inputs())) is first
    others = [inputs(21), inputs(dtype=HALF), inputs(wide=1), inputs(rank=5)]
    assert all(features(kind(x)) is not first for x in others)
    elsewhere = kind(inputs())._replace(device=torch.device("cuda", 1))
    assert elsewhere != kind(inputs())
    numbers = inputs()._replace(numbers=torch.tensor([0.1, 2.0], dtype=torch.float64))
    assert features(kind(numbers)) is first


def test_what_is_kept_is_bounded():
    for cache in (sine_launch.features_of, behind.standby):
        assert cache.cache_info().maxsize == 256


@pytest.mark.interpreted
def test_nothing_keeps_the_tensors_of_a_call_alive():
    x = inputs()
    features, call = (
        sine_launch.features_of(sine_launch.feature_signature(x)),
        sine_launch.feature_call(x),
    )
    memory, notes = features.measure(call)
    output = torch.empty_like(x.value)
    behind.Behind().attend(notes.holds, x.a, x.b, notes.weight, x.value, x.hiding, output)
    seen = [weakref.ref(y) for y in (x.a, x.b, x.v, x.value, memory, output)]
    del x, call, memory, notes, output
    gc.collect()
    assert all(ref() is None for ref in seen)


def test_something_is_made_at_second_sight_and_kept():
    made = []
    find = SecondUseCache(lambda *key: made.append(key) or len(made), most=2)
    assert find("a", 1) is None and made == []
    assert find("a", 1) == find("a", 1) == 1 and made == [("a", 1)]
    assert find("b", 1) is None and find("c", 1) is None  # "a" is forgotten
    assert find("a", 1) is None
    find.clear()
    assert find("c", 1) is None and len(made) == 1
