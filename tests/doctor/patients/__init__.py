"""Models with one planted disease each, and healthy ones."""

from __future__ import annotations

from . import fresh, huggingface, recurrent, trained
from .gradients import (
    CutByData,
    CutLayer,
    CutOutside,
    DeadGradient,
    DeadHead,
    DetachedValues,
    DetachedWeights,
    FrozenZero,
    NoGradient,
    TiedSides,
)
from .heads import (
    CapturedLayer,
    CollapsedEntropy,
    Hijacked,
    NoResiduals,
    SaturatedTanh,
    TwinHeads,
)
from .logits import (
    ColdCosine,
    Diverging,
    Growing,
    Large,
    UnscaledEager,
    UnscaledScore,
    UnscaledWide,
)
from .masks import (
    BrokenNorm,
    BrokenWeights,
    ForgottenMask,
    InvertedCausal,
    InvertedLongPadding,
    InvertedPadding,
    MaskedRow,
    Overflow,
    Unregistered,
)
from .patient import Patient, call
from .positions import Swamped, SwampedEncoder, WashedOut, WashedOutLearned
from .recurrent import SaturatedDecoder

__all__ = ["HEALTHY", "PLANTED", "Patient", "call"]

PLANTED: tuple[Patient, ...] = tuple(
    make()
    for make in (
        UnscaledWide,
        UnscaledEager,
        UnscaledScore,
        Growing,
        Large,
        Diverging,
        ColdCosine,
        CollapsedEntropy,
        Hijacked,
        CapturedLayer,
        TwinHeads,
        SaturatedTanh,
        SaturatedDecoder,
        NoResiduals,
        WashedOut,
        WashedOutLearned,
        Swamped,
        SwampedEncoder,
        TiedSides,
        DeadGradient,
        DeadHead,
        NoGradient,
        CutOutside,
        CutByData,
        DetachedValues,
        DetachedWeights,
        CutLayer,
        FrozenZero,
        MaskedRow,
        InvertedCausal,
        InvertedLongPadding,
        InvertedPadding,
        ForgottenMask,
        Unregistered,
        BrokenNorm,
        BrokenWeights,
        Overflow,
    )
)
HEALTHY: tuple[Patient, ...] = tuple(
    make()
    for make in (
        fresh.Causal,
        fresh.WrittenOut,
        fresh.TorchEncoder,
        fresh.TorchDecoder,
        fresh.Rotary,
        fresh.Alibi,
        fresh.Additive,
        fresh.CosineScore,
        fresh.Graph,
        fresh.Positions,
        fresh.HotCosine,
        fresh.Latents,
        fresh.Repeated,
        fresh.RepeatedWithDropout,
        fresh.OneWord,
        fresh.ZeroValues,
        fresh.Pooling,
        fresh.NoOpSink,
        fresh.Frozen,
        fresh.FrozenBase,
        fresh.ZeroStart,
        fresh.LearnedPlaces,
        fresh.NoScale,
        recurrent.Translating,
        fresh.Single,
        huggingface.GPT2,
        huggingface.LeftPadded,
        huggingface.Llama,
        huggingface.Bert,
        huggingface.T5,
        huggingface.ViT,
        huggingface.Swin,
        huggingface.Gemma2,
        huggingface.GptOss,
        huggingface.Deberta,
        huggingface.Whisper,
        trained.Copying,
        trained.Induction,
        trained.Previous,
        trained.Broadcast,
        trained.LookUp,
        trained.CosineLookUp,
        trained.Encoder,
    )
)
