"""Masks that hide too much, too little, or the wrong half; numbers that break."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .logits import Words
from .models import DIM, HEADS, LENGTH, WORDS, Attention, Model, at, attentions
from .patient import Patient, tokens, vectors


class MaskedRow(Patient):
    """One sequence of the batch is all padding; torch's own module answers with NaN.

    Its softmax over a row of -inf is 0 / 0 where weights are asked for.
    """

    disease, sites = "masked-rows", ("0.attention",)

    def build(self) -> nn.Module:
        return Padded(Weighing(), Weighing())

    def batch(self, step: int) -> tuple:
        padding = torch.zeros(4, LENGTH, dtype=torch.bool)
        padding[2] = True
        return vectors(step, 4, LENGTH, DIM), padding


class Weighing(nn.Module):
    """torch's own attention, asked for its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return x + self.attention(x, x, x, key_padding_mask=padding)[0]


class Padded(nn.Sequential):
    """Layers that share the padding."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:  # type: ignore[override]
        for layer in self:
            x = layer(x, padding)
        return x


class InvertedCausal(Words):
    """torch's two polarities confused: nn.MultiheadAttention hides where True, SDPA attends there."""

    disease, sites = "inverted-mask", (at(0),)

    def build(self) -> nn.Module:
        return Model(Backwards(), *attentions(2, causal=True))


class Backwards(Attention):
    """Given the mask of nn.MultiheadAttention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hide = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hide)


class InvertedPadding(Patient):
    """The same confusion with padding: sequences see their padding, and full ones see nothing."""

    disease, sites = "inverted-mask", ("0", "1")

    def build(self) -> nn.Module:
        return Padded(Inverted(), Inverted())

    def batch(self, step: int) -> tuple:
        lengths = torch.tensor([LENGTH, 27, 30, 24])
        padding = torch.arange(LENGTH) >= lengths[:, None]
        return vectors(step, 4, LENGTH, DIM), padding


class InvertedLongPadding(InvertedPadding):
    """The same where most of the batch is padding, so that much is visible."""

    def batch(self, step: int) -> tuple:
        lengths = torch.tensor([LENGTH, LENGTH // 2, LENGTH // 3, LENGTH // 4])
        padding = torch.arange(LENGTH) >= lengths[:, None]
        return vectors(step, 4, LENGTH, DIM), padding


class Inverted(Attention):
    """Takes True for "is padding" and gives it on as "attend"."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.sides(x)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=padding[:, None, None])
        return x + self.o(out.nan_to_num().transpose(1, 2).flatten(2))


class ForgottenMask(Words):
    """One layer of a causal model was written without its mask: it reads the answers."""

    disease, sites = "missing-mask", (at(2),)

    def build(self) -> nn.Module:
        return Model(*attentions(2, causal=True), Attention(), *attentions(1, causal=True))


class Unregistered(Patient):
    """A Hugging Face model with an attention function registered, and no mask function with it.

    transformers then hands over no mask at all: a Llama that sees the future.
    """

    disease, needs = "missing-mask", "transformers"
    sites = tuple(f"model.layers.{i}.self_attn" for i in range(2))

    def build(self) -> nn.Module:
        from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

        AttentionInterface.register("regard_test_without_mask", plain_attention)
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="regard_test_without_mask",
        )
        return LlamaForCausalLM(config)

    def batch(self, step: int) -> dict:
        ids = tokens(step, WORDS, (4, LENGTH))
        return {"input_ids": ids, "labels": ids}


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention whose author expects to be given a mask."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
    return out.transpose(1, 2).contiguous(), None


class BrokenNorm(Words):
    """A norm divides by a standard deviation of 0, in the second of three layers."""

    disease, sites = "broken-numbers", (at(1),)

    def build(self) -> nn.Module:
        model = Model(*attentions(3))
        model.blocks[1].before = Unsafe()
        return model


class Unsafe(nn.Module):
    """A norm without epsilon, and one word whose features are all alike."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, :5], torch.ones_like(x[:, 5:6]), x[:, 6:]], 1)
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class BrokenWeights(Words):
    """One weight of a projection is NaN, as after a step with an infinite loss."""

    disease, sites = "broken-numbers", (at(1),)

    def build(self) -> nn.Module:
        model = Model(*attentions(3))
        with torch.no_grad():
            model.blocks[1].before.weight[3] = torch.nan
        return model


class Overflow(Words):
    """Half precision ends at 65504: keys of one head beyond it are infinite."""

    disease, sites, heads = "broken-numbers", (at(1),), (2,)

    def build(self) -> nn.Module:
        return Model(Attention(), Halved())


class Halved(Attention):
    """Keys through half precision."""

    def sides(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().sides(x)
        k = torch.cat([k[:, :2], k[:, 2:3] * 1e5, k[:, 3:]], 1)
        return q, k.half().float(), v
