"""Hosts that laws and thresholds were not made with; see `hosts`.

When these were first looked at, 265 of 269 faults were found at their sites. The other four were those of
padding in the Perceiver's latents; since they led to a change, that host counts as one that laws were made
with.

Shape legend: B samples, T tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .faults import FAULTS, OUTSIDE, attend, merged
from .handmade import DIM, HEADS, WORDS, turned


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * self.g


class Rows(nn.Module):
    """As x-transformers lays attention out: one projection to q, one to k and v, rotary, no bias."""

    def __init__(self, fault: str, causal: bool) -> None:
        super().__init__()
        self.fault, self.causal = fault, causal
        self.norm = Rms()
        self.to_q, self.to_kv = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, 2 * DIM, bias=False)
        self.to_out = nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.Dropout(0.1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm(x)
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
        if self.fault != "rotary-lost":
            q, k = turned(q), k if self.fault == "rotary-on-queries-only" else turned(k)
        out = attend(q, k, v, causal=self.causal, real=mask, fault=self.fault, how="einsum")
        return self.to_out(merged(out, self.fault))


class RowsDecoder(nn.Module):
    def __init__(self, faults: Mapping[int, str]) -> None:
        super().__init__()
        self.token_emb = nn.Embedding(WORDS, DIM)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    Rows(faults.get(i, ""), True),
                    nn.Sequential(Rms(), nn.Linear(DIM, DIM), nn.SiLU()),
                ]
            )
            for i in range(4)
        )
        self.to_logits = nn.Linear(DIM, WORDS)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        x = self.token_emb(x)
        for attention, mlp in self.layers:
            x = attention(x, mask) + x
            x = mlp(x) + x
        return self.to_logits(x), None


class Fused(nn.Module):
    """As timm lays attention out: qkv in one projection, split by reshape and permute."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(merged(attend(q, k, v, fault=self.fault), self.fault))


class Patches(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, 8, 8)
        self.cls_token, self.pos_embed = (
            nn.Parameter(torch.randn(1, 1, DIM)),
            nn.Parameter(torch.randn(1, 17, DIM)),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.attn = nn.ModuleList(Fused(faults.get(i, "")) for i in range(3))
        self.head = nn.Linear(DIM, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for norm, attention in zip(self.norms, self.attn, strict=True):
            x = x + attention(norm(x))
        return self.head(x[:, 0])


class Latents(nn.Module):
    """As Perceiver lays it out: learned latents attend to a long input with padding."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, DIM))
        self.embed = nn.Linear(DIM, DIM)
        self.cross = Cross(faults.get(0, ""))
        self.head = nn.Linear(DIM, 7)

    def forward(self, frames: Tensor, key_padding_mask: Tensor) -> dict[str, Tensor]:
        latents = self.latents.expand(len(frames), -1, -1)
        latents = latents + self.cross(latents, self.embed(frames), ~key_padding_mask)
        return {"logits": self.head(latents.mean(1)), "latents": latents}


class Cross(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.q, self.kv, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, latents: Tensor, x: Tensor, real: Tensor) -> Tensor:
        q, (k, v) = self.q(latents), self.kv(x).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
        return self.o(merged(attend(q, k, v, real=real, fault=self.fault), self.fault))


def hosts() -> tuple:
    """Hosts that were kept apart."""
    from .hosts import B, Host, ids_and_mask, of_transformers, real, tokens, two_streams

    length = 14
    inside = tuple(x for x in FAULTS if x not in OUTSIDE)
    left = {"mask": real(left=True).bool()}
    frames = {"frames": (B, length, DIM)}
    return (
        Host("x-transformers-like", RowsDecoder, lambda: {"x": tokens(B, length), **left}, 4, "layers.{}.0",
             ("causal", "padding", "rotary", "own-queries"),
             {"causal": True, "padding": left["mask"], "positions": "rotary"}, None, True),
        Host("timm-like", Patches, lambda: torch.randn(B, 3, 32, 32), 3, "attn.{}", ("own-queries",), {},
             (*(x for x in inside), "result-by-view"), True),
        Host("perceiver-like", Latents,
             lambda: {"frames": torch.randn(*frames["frames"]), "key_padding_mask": real() == 0}, 1, "cross",
             ("padding",), {}, tuple(x for x in inside if "view" not in x)),
        of_transformers("LlamaForCausalLM", lambda: ids_and_mask(left=True), "model.layers.{}.self_attn",
                        ("causal", "padding", "cache"), apart=True),
        of_transformers("OPTForCausalLM", lambda: ids_and_mask(left=True, labels=True),
                        "model.decoder.layers.{}.self_attn", ("causal", "padding", "cache"), apart=True),
        of_transformers("RobertaModel", ids_and_mask, "encoder.layer.{}.attention.self", ("padding",),
                        apart=True),
        of_transformers("BartForConditionalGeneration", two_streams, "model.decoder.layers.{}.self_attn",
                        ("causal",), 2, inside="decoder.*self_attn$", apart=True),
    )  # fmt: skip


def healthy() -> tuple:
    """Healthy models that were kept apart."""
    from .healthy import Healthy, hugging, trained
    from .hosts import B, ids_and_mask, tokens

    def chosen() -> tuple[nn.Module, Tensor]:
        model = nn.Sequential(nn.Embedding(WORDS, DIM), nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, HEADS, 64, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False))  # fmt: skip
        return model, tokens(B, 14)

    def family(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
        import transformers

        from ..test_huggingface import FAMILIES

        kind, options, _, _ = FAMILIES[name]
        model_class = getattr(transformers, kind)
        model = model_class(model_class.config_class(**options, attn_implementation="eager"))
        batch = {"input_ids": tokens(B, 9), "attention_mask": torch.ones(B, 9, dtype=torch.long)}
        batch["attention_mask"][1, 6:] = 0
        if name in ("vit", "swinv2"):
            batch = {"pixel_values": torch.randn(2, 3, 16, 16)}
        return model, batch | ({"labels": tokens(B, 7)} if name == "t5" else {})

    def llama() -> tuple[nn.Module, dict[str, Tensor]]:
        model, batch = hugging("LlamaForCausalLM")()
        return trained(model, batch), batch

    families = ("gpt2", "bert", "vit", "t5", "llama", "gemma2", "gptj", "deberta", "swinv2")
    return (
        *(Healthy(f"{x}, eager", lambda x=x: family(x), apart=True) for x in families),
        # Its experts led to changes: they crashed a pass, and their gates were taken for attention.
        Healthy("gpt_oss, eager", lambda: family("gpt_oss")),
        Healthy("GPT-NeoX", hugging("GPTNeoXForCausalLM"), apart=True),
        Healthy("a little trained Llama", llama, apart=True),
        Healthy("Llama padded left", hugging("LlamaForCausalLM", lambda: ids_and_mask(left=True)), apart=True),
        Healthy("torch encoder in a Sequential", chosen, apart=True),
        Healthy("OPT, one sample",
                hugging("OPTForCausalLM", lambda: {"input_ids": tokens(1, 9)}), apart=True),
    )  # fmt: skip
