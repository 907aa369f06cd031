"""Compiles the kernels of calls for a GPU that need not be there, and says what they take of it.

    python tests/engines/triton/compiling.py 90 "one query" "tanh in bf16"

The first argument is a compute capability, the others names of `CALLS`, or none for all of them. Every
kernel that a call launches is compiled and none is run, so that the calls are made with tensors on the CPU
and their results mean nothing. One line of JSON for each kernel. Not for a process in which Triton interprets.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import regard
from regard import Mask
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
BATCH, HEADS, KEY_HEADS = 2, 4, 2


class Call(NamedTuple):
    """A call of engine `triton`, forward and backward. `fixed` asks for sums in a fixed order."""

    score: type[regard.Score] | None
    dtype: torch.dtype
    options: Callable[[], dict[str, Any]] = dict
    want: tuple[str, ...] = ()
    fixed: bool = False
    queries: int = 100
    keys: int = 130
    hidden: int = 64
    value_dim: int = 64
    heads: int = HEADS
    key_heads: int = KEY_HEADS
    keys_as: Callable[[torch.Tensor], torch.Tensor] = torch.clone  # how they lie in memory

    def make(self) -> None:
        """Make it."""
        shapes = (
            (self.heads, self.queries, self.hidden),
            (self.key_heads, self.keys, self.hidden),
            (self.key_heads, self.keys, self.value_dim),
        )
        tensors = [torch.randn(BATCH, *s).to(self.dtype).requires_grad_() for s in shapes]
        tensors[1] = self.keys_as(tensors[1].detach()).requires_grad_()
        score = None if self.score is None else self.score(self.hidden, self.heads).to(self.dtype)
        torch.use_deterministic_algorithms(self.fixed)
        # A second call of a kind has launches of its own, which for few queries take other dtypes.
        for _ in range(2 if self.queries < FEWEST_QUERIES_FOR_TILES else 1):
            self.run(tensors, score)
        torch.use_deterministic_algorithms(False)

    def run(self, tensors: list[torch.Tensor], score: regard.Score | None) -> None:
        """Forward and backward."""
        result = regard.attend(*tensors, score, want=self.want, engine="triton", **self.options())
        ends = [x.float().sum() for x in result if x is not None and x.requires_grad]
        torch.autograd.backward(sum(ends))


class Series(NamedTuple):
    """The own kernels of engine `sine`, around cuDNN, forward and backward."""

    dtype: torch.dtype
    hidden: int
    value_dim: int
    rank: int
    batch: int = BATCH
    queries: int = 200
    keys: int = 200

    def make(self) -> None:
        """Launch them in the order of a call."""
        from regard.engines.sine_features.launch import Features, feature_call, feature_signature
        from regard.engines.sine_features.operators import SineInputs

        a, b, value = (
            torch.randn(self.batch, heads, length, n).to(self.dtype)
            for heads, length, n in (
                (HEADS, self.queries, self.hidden),
                (KEY_HEADS, self.keys, self.hidden),
                (KEY_HEADS, self.keys, self.value_dim),
            )
        )
        v, numbers = torch.randn(HEADS, self.hidden).to(self.dtype), torch.ones(2).double()
        given = SineInputs(a, b, v, value, numbers, False, "uniform", self.rank)
        features, call = Features(feature_signature(given)), feature_call(given)
        notes = features.measure(call)[1]
        found = (features.query(call, notes), *features.key(call, notes))
        output = features.finish(call, features.new(features.attended), notes)
        scratch = features.output_gradient(call, torch.randn_like(output), notes)[1]
        features.input_gradients(call, notes, scratch, found)


class WideFeatures(NamedTuple):
    """The wide kernels of engine `sine`, forward and backward, with the tiles of the GPU."""

    width: int = 512
    columns: int = 64
    hides: tuple[str, ...] = ()
    causal: bool = False
    dropout: float = 0.0

    def make(self) -> None:
        """Launch them."""
        from triton.runtime import driver

        from regard.engines.hiding import Hiding
        from regard.engines.wide import Wide, passes
        from regard.engines.wide.sizes import tile_for

        generation, lengths = driver.active.get_current_target().arch // 10, 256
        passes.tile_of = lambda s, slopes=False: tile_for(
            generation, False, s.columns, slopes, s.dropout > 0
        )
        passes.attend_launch.cache_clear()
        passes.slopes_launch.cache_clear()
        shape = (HEADS, lengths)
        masks = {
            name: torch.zeros((), dtype=torch.int64)
            if name == "seed"
            else torch.zeros(shape, dtype=torch.int32 if name in ("start", "stop") else torch.int64)
            for name in self.hides
        }
        hiding = Hiding(self.causal, dropout=self.dropout, **masks)
        q, v = (torch.zeros(*shape, n, dtype=FP16) for n in (self.width, self.columns))
        out, lse = torch.zeros_like(v), torch.zeros(shape)
        Wide().forward(q, q, v, hiding, 0, out, lse)
        Wide().backward(v, q, q, v, hiding, 0, out, lse)


def causal() -> dict[str, Any]:
    return {"mask": Mask.causal()}


def lengths() -> dict[str, Any]:
    return {"mask": Mask.lengths(keys=[130, 40], queries=[20, 100])}


def dropout() -> dict[str, Any]:
    return {**lengths(), "dropout": 0.2}


def everything() -> dict[str, Any]:
    return {
        "mask": torch.rand(100, 130) < 0.7,
        "bias": torch.randn(100, 130, requires_grad=True),
        "temperature": torch.rand(BATCH, HEADS, 100, 1) + 0.5,
        "softcap": 3.0,
    }


def few() -> dict[str, Any]:
    bias = torch.randn(5, 130, requires_grad=True)
    return {"mask": Mask.lengths(keys=[130, 0]), "bias": bias, "softcap": 2.0}


def window() -> dict[str, Any]:
    return {"mask": Mask.window(left=300) & Mask.causal()}


def units_outermost(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def part_of_wider(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 4))[..., : x.shape[-1]]


def in_fp32(name: str, score: type[regard.Score] | None) -> dict[str, Call]:
    """Every size of values, with pairs that are hidden and without."""
    found = {f"{name} in fp32, dv {n}": Call(score, FP32, value_dim=n) for n in (16, 64, 128, 256)}
    for n in (64, 256):
        found[f"{name} in fp32, dv {n}, causal"] = Call(score, FP32, causal, value_dim=n)
    return found


ADDITIVE, GATV2 = regard.Additive, regard.GATv2
CALLS: dict[str, Call | Series] = {
    "one query": Call(ADDITIVE, BF16, queries=1),
    "one query, keys in parts": Call(ADDITIVE, BF16, queries=1, keys=5000),
    "one query, one head": Call(ADDITIVE, BF16, queries=1, heads=1, key_heads=1),
    "one query, one head, wide": Call(
        ADDITIVE, BF16, queries=1, keys=30, hidden=1000, value_dim=1000, heads=1, key_heads=1
    ),
    "one query, units outermost": Call(
        ADDITIVE, BF16, queries=1, hidden=301, heads=1, key_heads=1, keys_as=units_outermost
    ),
    "few queries, a part of wider keys": Call(
        GATV2,
        BF16,
        queries=3,
        hidden=15,
        value_dim=100,
        heads=1,
        key_heads=1,
        keys_as=part_of_wider,
    ),
    "one query, wide": Call(ADDITIVE, BF16, queries=1, keys=30, hidden=1000, value_dim=1000),
    "one query in fp32, 300 units": Call(
        GATV2, FP32, queries=1, keys=200, hidden=300, value_dim=16
    ),
    "one query, dims in chunks": Call(ADDITIVE, BF16, queries=1, keys=1500, value_dim=512),
    "few queries": Call(ADDITIVE, BF16, queries=3, keys=5000),
    "few queries, window": Call(ADDITIVE, BF16, window, queries=3, keys=5000),
    "few queries in fp32, bias": Call(GATV2, FP32, few, ("lse",), queries=5),
    "15 queries in fp32": Call(ADDITIVE, FP32, queries=15, keys=200, hidden=1000),
    "tanh in bf16": Call(ADDITIVE, BF16),
    "tanh in bf16, 16 units": Call(ADDITIVE, BF16, hidden=16),
    "tanh in bf16, causal": Call(ADDITIVE, BF16, causal),
    "tanh in bf16, fixed order": Call(ADDITIVE, BF16, fixed=True),
    "tanh in bf16, dv 256": Call(ADDITIVE, BF16, value_dim=256),
    "tanh in bf16, dv 1024": Call(ADDITIVE, BF16, value_dim=1024),
    "tanh in fp16, dropout, fixed order": Call(ADDITIVE, FP16, dropout, fixed=True),
    "LeakyReLU in bf16, causal": Call(GATV2, BF16, causal),
    "LeakyReLU in fp32, all options": Call(GATV2, FP32, everything),
    "LeakyReLU in fp32, fixed order": Call(GATV2, FP32, causal, fixed=True),
    "hard look-up in fp32": Call(ADDITIVE, FP32, lambda: {"temperature": 0.0}),
    "dot in fp16, statistics": Call(None, FP16, lambda: {"softcap": 3.0}, STATISTICS),
    "dot in bf16, causal": Call(None, BF16, causal),
    **in_fp32("tanh", ADDITIVE),
    **in_fp32("LeakyReLU", GATV2),
    **in_fp32("dot", None),
    "dot in fp32, 16 features": Call(None, FP32, causal, hidden=16, value_dim=256),
    "series in bf16": Series(BF16, hidden=16, value_dim=64, rank=4),
    "series in fp16, beta in columns": Series(FP16, hidden=17, value_dim=33, rank=6),
    "wide features": WideFeatures(),
    "wide features, causal": WideFeatures(causal=True),
    "wide features, lengths": WideFeatures(1152, hides=("stop",)),
    "wide features, segments": WideFeatures(256, hides=("query_segment", "key_segment")),
    "wide features, dropout": WideFeatures(256, hides=("seed",), dropout=0.1),
    "wide features, dv 256": WideFeatures(columns=256),
}


class Absent:
    """A GPU of a compute capability, as Triton asks for one that is current."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only(capability: int) -> list[tuple[str, Any]]:
    """From here on launches compile and do nothing else; a list that kernels are added to."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from regard.engines.triton.engine import Triton

    driver.set_active(Absent(capability))
    launch, kernels = JITFunction.run, []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        if all(kernel is not known for _, known in kernels):
            kernels.append((self.__name__, kernel))
        return kernel

    JITFunction.run = run
    Triton.refusals = lambda self, problem: []  # type: ignore[method-assign] # tensors on the CPU
    # Keys are looked up by what a kernel would have written.
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # type: ignore[method-assign]
    return kernels


def taken(kernel: Any) -> dict[str, int]:
    """Registers and bytes of stack of a thread, and bytes of shared memory of a program."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    registers, stack = (int(x) for x in found.groups())
    return {"registers": registers, "stack": stack, "shared": kernel.metadata.shared}


def summing_lanes(kernel: Any) -> list[str]:
    """For each sum or maximum the dims it is over, and how lanes share them: its order follows from these."""
    code = kernel.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    found = []
    for axis, over in re.findall(
        r'"tt\.reduce".*?axis = (\d+).*?\}\) : \((.*?)\) ->', code, re.DOTALL
    ):
        for dims, layout in re.findall(r"tensor<([\dx]+)x\w+, (#.*?)>(?:,|$)", over):
            # A layout by its name, or a slice of one.
            spelled = re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), layout)
            found.append(f"{axis} of {dims}: {spelled}")
    return found


def main() -> None:
    """Compile what the command line asks for."""
    capability, names = int(sys.argv[1]), sys.argv[2:]
    kernels = compile_only(capability)
    from regard.engines.triton import lanes

    for name in names or CALLS:
        kernels.clear()
        CALLS[name].make()
        for kernel, compiled in kernels:
            said = {"call": name, "kernel": kernel, "summed_by": summing_lanes(compiled)}
            print(json.dumps({**said, **taken(compiled)}), flush=True)
    print(json.dumps({"lanes": not lanes.refused()}))


if __name__ == "__main__":
    main()
