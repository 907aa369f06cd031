"""The peers: other implementations to compare with. A new peer is one class here, added to `PEERS`.

a (B, H, Q, N), b (B, H, L, N), value (B, H, L, E), v (H, N).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.bench.candidate import Candidate, Held, Prepared
from regard.bench.settings import DOT_DIM, Setting
from regard.bench.tensors import Tensors, additive_score
from regard.measuring import textbook
from regard.scores import ScaledDot


def textbook_summed(a: Tensor, b: Tensor, value: Tensor, v: Tensor) -> Tensor:
    """Additive attention as textbooks write it: builds the [Q, L, N] tensor, then sums v times it over N.

    `measuring.textbook.additive` multiplies by v as a matrix instead. This formulation is kept for two
    reasons. Inductor fuses the sum with the tanh and never stores the tensor, which makes the compiled
    textbook as fast as it can be. And the error gate of every committed result was set by its error in
    the setting's dtype.
    """
    pairs = torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))
    return torch.softmax((pairs * v[:, None, None]).sum(-1), -1) @ value


def dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot product attention, written out in plain PyTorch."""
    return textbook.attention(ScaledDot(), query, key, value)


class Eager(Candidate):
    """The textbook formula in eager PyTorch."""

    name, family, tensors, heavy = "textbook eager", "textbook", 4, True
    what = "the textbook's formula in eager PyTorch, v * tanh(a + b) summed"

    def prepare(self, tensors: Tensors) -> Prepared:
        """The formula on the inputs' own v."""
        v = tensors.v
        return Prepared(lambda a, b, value: textbook_summed(a, b, value, v), [v])


class EagerLinear(Candidate):
    """The textbook with v as a linear layer with one output, as most code writes it."""

    name, family, tensors, heavy = "textbook linear", "textbook", 3, True
    what = "the textbook's formula in eager PyTorch, v as a linear layer"

    def prepare(self, tensors: Tensors) -> Prepared:
        """The formula on a score that holds a copy of v."""
        score = additive_score(tensors)
        return Prepared(lambda a, b, value: textbook.attention(score, a, b, value), [score.v])


class CompiledTextbook(Candidate):
    """The textbook under torch.compile, in the formulation that Inductor fuses."""

    name, family, tensors, heavy = "textbook compiled", "textbook", 2, True
    what = "the textbook's formula under torch.compile, for these very sizes"

    def available(self, tensors: Tensors) -> str | None:
        """The reason torch.compile cannot run here; None if it can."""
        return no_compiler(tensors)

    def prepare(self, tensors: Tensors) -> Prepared:
        """The compiled function; it compiles at its first call."""
        v, compiled = tensors.v, torch.compile(textbook_summed, fullgraph=True, dynamic=False)
        return Prepared(lambda a, b, value: compiled(a, b, value, v), [v])


class Flex(Candidate):
    """FlexAttention with a `score_mod` that unrolls the sum over hidden units."""

    name, family, heavy = "FlexAttention", "peer", True
    what = "torch's FlexAttention, a score_mod that adds v[n] tanh(a[i, n] + b[j, n]) for each n"
    # Every hidden unit is unrolled into code of the kernel, and the backward pass unrolls more.
    most_hidden, most_hidden_backward = 32, 16

    def available(self, tensors: Tensors) -> str | None:
        """The reason it is not measured here: no GPU, many hidden units or a single query."""
        s = tensors.setting
        if tensors.device.type != "cuda":
            return "it is fast on a GPU alone"
        if s.hidden > self.most_hidden:
            return f"its kernel unrolls every hidden unit: measured up to {self.most_hidden}"
        if s.loop or s.len_q == 1:
            return "its kernel is for many queries at once"
        return no_compiler(tensors)

    def no_backward(self, setting: Setting) -> str | None:
        """A reason beyond 16 hidden units; None up to there."""
        most = self.most_hidden_backward
        return None if setting.hidden <= most else f"backward measured up to hidden {most}"

    def prepare(self, tensors: Tensors) -> Prepared:
        """The compiled attention; it compiles at its first call."""
        from torch.nn.attention.flex_attention import flex_attention

        v, s = tensors.v, tensors.setting
        # FlexAttention always computes q k, which `score_mod` ignores: give it zeros of the smallest
        # width it accepts. They cannot be a and b, because Inductor does not allow a tensor to be both
        # an input and captured by `score_mod`.
        query = v.new_zeros(s.batch, s.heads, s.len_q, 16)
        key = v.new_zeros(s.batch, s.heads, s.len_k, 16)

        def attend(a: Tensor, b: Tensor, value: Tensor, v: Tensor) -> Tensor:
            def score_mod(score: Tensor, i_b: Tensor, i_h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                total = None
                for n in range(s.hidden):
                    left, right = (
                        x.to(score.dtype) for x in (a[i_b, i_h, i, n], b[i_b, i_h, j, n])
                    )
                    term = v[i_h, n] * torch.tanh(left + right)
                    total = term if total is None else total + term
                return total  # type: ignore[return-value] # not None: there is a hidden unit

            return flex_attention(query, key, value, score_mod=score_mod)  # type: ignore[return-value]

        compiled = torch.compile(attend, fullgraph=True, dynamic=False)
        return Prepared(lambda a, b, value: compiled(a, b, value, v), [v])


class Keras(Candidate):
    """Keras AdditiveAttention on torch. It has no heads, so heads are folded into its batch."""

    name, family, tensors, heavy = "Keras", "peer", 4, True
    what = "keras.layers.AdditiveAttention on torch, heads folded into the batch"

    def available(self, tensors: Tensors) -> str | None:
        """The reason it cannot run: keras is not installed, or runs on another backend."""
        if importlib.util.find_spec("keras") is None:
            return "keras is not installed"
        os.environ.setdefault("KERAS_BACKEND", "torch")  # read when keras is imported
        try:
            backend = importlib.import_module("keras").backend.backend()
        except ImportError as error:
            return f"keras cannot be imported: {error}"
        return None if backend == "torch" else f"keras runs on {backend} here, not on torch"

    def prepare(self, tensors: Tensors) -> Prepared:
        """A Keras layer whose scale is v."""
        keras: Any = importlib.import_module("keras")
        s = tensors.setting
        place = "gpu:0" if tensors.device.type == "cuda" else "cpu:0"
        with keras.device(place):
            layer = keras.layers.AdditiveAttention(dtype=s.dtype)
            layer.build([(None, None, s.hidden)] * 3)
        scale = layer.scale.value
        with torch.no_grad():
            scale.copy_(tensors.v[0])

        def step(a: Tensor, b: Tensor, value: Tensor) -> Tensor:
            with keras.device(place):  # keras moves its inputs to its current device
                folded = layer([a.flatten(0, 1), value.flatten(0, 1), b.flatten(0, 1)])
            return folded.unflatten(0, a.shape[:2])

        return Prepared(step, [scale])


class SdpaDot(Candidate):
    """PyTorch's scaled dot product attention through one backend: the yardstick."""

    family = "dot"
    backend: ClassVar[SDPBackend]
    label: ClassVar[str]

    def available(self, tensors: Tensors) -> str | None:
        """The reason SDPA lacks this backend, found by a small call on one head.

        SDPA's own message says only that no kernel is available.
        """
        query, key, value = (
            x.detach()[:1, :1, :128] for x in (tensors.dot_query, tensors.dot_key, tensors.value)
        )
        try:
            with warnings.catch_warnings(), self.context():
                warnings.simplefilter("ignore")  # SDPA warns at length why each backend refuses
                F.scaled_dot_product_attention(query, key, value)
        except RuntimeError:
            dims = f"dims {DOT_DIM} and {value.shape[-1]}"
            return f"SDPA has no {self.label} kernel on {tensors.device.type} for {dims}"
        return None

    def context(self) -> AbstractContextManager[object]:
        """A context that allows only this backend."""
        return sdpa_kernel(self.backend)

    def prepare(self, tensors: Tensors) -> Prepared:
        """SDPA itself, without further parameters."""
        return Prepared(F.scaled_dot_product_attention, [])


class DotMath(SdpaDot):
    """SDPA's math backend, which builds the [Q, L] matrix."""

    tensors, heavy = 4, True

    def held(self, setting: Setting) -> Held:
        """[Q, L] tensors in at least fp32: SDPA's math backend converts half precision to fp32."""
        return Held(self.tensors, "[Q, L]", setting.pairs, max(setting.torch_dtype.itemsize, 4))


def dot_through(backend: SDPBackend, label: str, kind: type[SdpaDot] = SdpaDot) -> SdpaDot:
    """The dot candidate of an SDPA backend."""
    body = {
        "name": f"dot {label}",
        "backend": backend,
        "label": label,
        "what": f"plain scaled dot product attention, d={DOT_DIM}, SDPA's {label} backend",
    }
    return type(f"Dot{label.title()}", (kind,), body)()


def no_compiler(tensors: Tensors) -> str | None:
    """The reason torch.compile does not work here; None if it does."""
    if tensors.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "torch.compile needs triton for a GPU, which is not installed"
    return None


DOTS: tuple[Candidate, ...] = (
    dot_through(SDPBackend.CUDNN_ATTENTION, "cuDNN"),
    dot_through(SDPBackend.FLASH_ATTENTION, "flash"),
    dot_through(SDPBackend.EFFICIENT_ATTENTION, "efficient"),
    dot_through(SDPBackend.MATH, "math", DotMath),
)
PEERS: tuple[Candidate, ...] = (Eager(), EagerLinear(), CompiledTextbook(), Flex(), Keras(), *DOTS)
