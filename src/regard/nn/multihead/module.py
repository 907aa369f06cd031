"""`torch.nn.MultiheadAttention` with any score.

Shape legend: N batch, H query heads, K key heads (K divides H), L query length, S key length, E
embed_dim, W width of a projected query or key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.arguments import check_given_sizes, check_probability, check_sizes
from regard.attention import attend, attention
from regard.mask import Mask
from regard.nn.fit import check_score_fits
from regard.nn.multihead.checks import check_inputs, check_saved_score, feature_widths
from regard.nn.multihead.errors import WrongValue
from regard.nn.multihead.layout import LENGTH_FIRST, NO_BATCH, from_heads, to_heads
from regard.nn.multihead.masks import real_keys, translate
from regard.nn.multihead.nested import cut_padding, pad_nested
from regard.nn.multihead.weighing import drop_weights, weigh
from regard.scores import Score, make_score


class Projections(NamedTuple):
    """A tensor each for query, key and value: weights, or what they project to."""

    query: Tensor
    key: Tensor
    value: Tensor


def _stay_off_the_fast_path(module: nn.Module, inputs: tuple) -> None:
    """A forward pre-hook that does nothing.

    In evaluation `torch.nn.TransformerEncoderLayer` hands the weights of its attention to a fused
    kernel that computes the scaled dot product, and our forward would never run. With a hook on any
    module inside, it does not take that path.
    """


class MultiheadAttention(nn.Module):
    """A drop-in for `torch.nn.MultiheadAttention`, with any score.

    Queries and keys are projected to `num_heads` heads, compared by `score`, and the weighted
    values are projected to `embed_dim`. The score gets the projected queries (N, H, L, W) and keys
    (N, K, S, W). For an additive score these projections are its W_q and W_k:
    `score=Additive(hidden, num_heads)` makes them num_heads * hidden wide.

    ```python
    layer = MultiheadAttention(64, 4, batch_first=True, score="additive")
    x = torch.randn(2, 10, 64)
    output, weights = layer(x, x, x)  # (2, 10, 64) and (2, 10, 10)
    ```

    Args:
        embed_dim: width of the output, and of the inputs unless qdim, kdim or vdim say otherwise.
        num_heads: query heads, a divisor of `embed_dim`.
        dropout: probability of dropping a weight in training.
        bias: learn a bias in every projection.
        add_bias_kv: learn an extra key and value, seen by every query.
        add_zero_attn: add a key and a value of zeros, seen by every query.
        kdim: width of the key inputs; default embed_dim.
        vdim: width of the value inputs; default embed_dim.
        batch_first: inputs and output are (batch, length, dim), not (length, batch, dim).
        device: device of the parameters; a `Score` object is moved there, as by `.to`.
        dtype: dtype of the parameters; a `Score` object is cast to it, as by `.to`.
        score: a name, None for scaled dot, or a `Score` for `num_heads` heads, which is kept and
            not copied: modules given one object share it. Not a `Projected` one, because this
            module projects.
        qdim: width of the query inputs; default embed_dim.
        key_heads: heads of keys and values, a divisor of `num_heads`.
        width: W, if the score has no width of its own; default embed_dim // num_heads.
        engine: the name of an engine, as in `regard.attention`; None picks one.

    With scaled dot and without `qdim`, `key_heads` and `width`, the parameters, their names and
    their initial values from a given seed are those of torch, and a state_dict loads both ways.
    Other scores have their parameters under `score.`. `in_proj_weight` stacks W_q, W_k and W_v; as
    in torch, there are three parameters if the inputs differ in width.

    Initialisation: scaled dot as in torch, Xavier uniform. For other scores W_q and W_k are normal
    with variance 1 / dim, which projects unit-variance inputs to unit variance, where scores have
    variance 1; W_v is Xavier uniform. Biases are 0.
    """

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        score: Score | str | None = None,
        qdim: int | None = None,
        key_heads: int | None = None,
        width: int | None = None,
        engine: str | None = None,
    ) -> None:
        super().__init__()
        check_given_sizes(embed_dim=embed_dim, num_heads=num_heads)
        check_sizes(kdim=kdim, vdim=vdim, qdim=qdim, key_heads=key_heads, width=width)
        check_probability(dropout=dropout)
        if embed_dim % num_heads:
            raise WrongValue(f"num_heads={num_heads} does not divide embed_dim={embed_dim}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.key_heads = num_heads if key_heads is None else key_heads
        if num_heads % self.key_heads:
            raise ValueError(f"key_heads={key_heads} does not divide num_heads={num_heads}")
        self.qdim = embed_dim if qdim is None else qdim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self.engine = engine
        self.score = make_score(score, width or self.head_dim, num_heads, self.key_heads)
        # Only if given: a `Score` object of another dtype is otherwise left as the caller built it.
        if device is not None or dtype is not None:
            self.score.to(device=device, dtype=dtype)
        query_width, key_width = feature_widths(self.score, width, self.head_dim)
        check_score_fits(self.score, (num_heads, query_width), (self.key_heads, key_width))
        self.projected = (
            num_heads * query_width,
            self.key_heads * key_width,
            self.key_heads * self.head_dim,
        )
        self._make_parameters(bias, add_bias_kv, {"device": device, "dtype": dtype})
        self.reset_parameters()
        self.register_forward_pre_hook(_stay_off_the_fast_path)

    def _make_parameters(self, bias: bool, add_bias_kv: bool, where: dict) -> None:
        """Register the parameters under torch's names, in torch's order.

        The order decides which random numbers each gets, so a seed gives the same ones as torch.
        """
        dims = (self.qdim, self.kdim, self.vdim)
        # torch's encoder layers read this attribute before they call their attention.
        self._qkv_same_embed_dim = dims == (self.embed_dim,) * 3
        packed = self._qkv_same_embed_dim
        rows = sum(self.projected)

        def register(name: str, wanted: bool, *shape: int) -> None:
            parameter = nn.Parameter(torch.empty(*shape, **where)) if wanted else None
            self.register_parameter(name, parameter)

        register("in_proj_weight", packed, rows, self.embed_dim)
        for letter, height, dim in zip("qkv", self.projected, dims, strict=True):
            register(f"{letter}_proj_weight", not packed, height, dim)
        register("in_proj_bias", bias, rows)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias, **where)
        register("bias_k", add_bias_kv, 1, 1, self.projected[1])
        register("bias_v", add_bias_kv, 1, 1, self.projected[2])

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the projections again; the score's own parameters stay."""
        if self.score.name == "scaled_dot" and self.in_proj_weight is not None:
            # As one matrix, as in torch: its bound depends on the stacked height, not on each part's.
            nn.init.xavier_uniform_(self.in_proj_weight)
            self.draw({"bias_k", "bias_v"})
        else:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k", "bias_v")
            self.draw(set(names))
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def _reset_parameters(self) -> None:
        """`reset_parameters` under the name that torch's module has, which code written for it calls."""
        self.reset_parameters()

    @torch.no_grad()
    def draw(self, names: Collection[str]) -> None:
        """Draw some parameters again; W_q, W_k and W_v have their own names where they are stacked too."""
        query, key, value = self.projection_weights()
        dot = self.score.name == "scaled_dot"
        for name, weight, dim in (
            ("q_proj_weight", query, self.qdim),
            ("k_proj_weight", key, self.kdim),
        ):
            if name in names:
                nn.init.xavier_uniform_(weight) if dot else nn.init.normal_(weight, std=dim**-0.5)
        if "v_proj_weight" in names:
            nn.init.xavier_uniform_(value)
        for name, added in (("bias_k", self.bias_k), ("bias_v", self.bias_v)):
            if added is not None and name in names:
                nn.init.xavier_normal_(added)

    def projection_weights(self) -> Projections:
        """W_q (H * W, qdim), W_k (K * W, kdim) and W_v, views of the parameters."""
        if self.in_proj_weight is not None:
            return Projections(*self.in_proj_weight.split(self.projected))
        assert self.q_proj_weight is not None
        assert self.k_proj_weight is not None
        assert self.v_proj_weight is not None
        return Projections(self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with the arguments and results of `torch.nn.MultiheadAttention`.

        Args:
            query: (L, N, qdim), (N, L, qdim) with `batch_first`, or (L, qdim).
            key: (S, N, kdim), (N, S, kdim) with `batch_first`, or (S, kdim).
            value: as `key`, of width vdim.
            key_padding_mask: (N, S), or (S,) without a batch. True = *ignore* the key, the opposite
                of `regard.attention`; floats are added to the logits.
            need_weights: also return the weights, which have to be built for that; False runs a
                fused engine and gives the same output.
            attn_mask: (L, S) or (N * num_heads, L, S), with the same two meanings.
            average_attn_weights: average the weights over the heads.
            is_causal: a promise that `attn_mask` is the causal mask, which must be given too. As in
                torch, the promise is used only without `need_weights` and `key_padding_mask`.

        Returns:
            The output, shaped like the query and embed_dim wide, and the weights (N, L, S) or (N,
            num_heads, L, S), without N if there is no batch, or None. In training the weights
            are those after dropout, as in torch. A query that sees no key gets weights of 0, and
            its output is the bias of the last projection.
        """
        if is_causal and attn_mask is None:
            raise WrongValue(
                "is_causal=True only says that attn_mask is the causal mask: give attn_mask too, "
                "for example torch.nn.Transformer.generate_square_subsequent_mask(length)"
            )
        nested = any(getattr(x, "is_nested", False) for x in (query, key, value))
        given = query
        if nested:
            masked = key_padding_mask is not None or attn_mask is not None
            query, key, value, key_padding_mask = pad_nested(query, key, value, masked)
        sizes = check_inputs(self, query, key, value, nested or self.batch_first)
        added = int(self.bias_k is not None) + int(self.add_zero_attn)
        mask, bias = translate(key_padding_mask, attn_mask, sizes, added)
        # Engines skip tiles of a causal mask, which a dense one does not allow. Not with added keys:
        # they come after the others, and a causal mask would hide them.
        if is_causal and key_padding_mask is None and not need_weights and added == 0:
            mask, bias = Mask.causal("top_left"), None
        if key_padding_mask is not None:
            key, value = _without_padding(query, key, value, key_padding_mask, sizes.layout)
        averages = need_weights and average_attn_weights
        output, weights = self._attend(
            query, key, value, mask, bias, need_weights, averages, sizes.layout
        )
        if weights is not None:
            weights = weights.squeeze(0) if sizes.layout == NO_BATCH else weights
            weights = weights.to(query.dtype)
        return cut_padding(output, given) if nested else output, weights

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Tensor | None,
        need_weights: bool,
        averages: bool,
        layout: str,
    ) -> tuple[Tensor, Tensor | None]:
        """The output in the layout of the query, and the weights (N, H, L, S), or (N, L, S) if it averages."""
        projected = self._project(query, key, value)
        q = to_heads(projected.query, self.num_heads, layout)
        k = self._add_keys(to_heads(projected.key, self.key_heads, layout), self.bias_k)
        v = self._add_keys(to_heads(projected.value, self.key_heads, layout), self.bias_v)
        rate, weights = self.dropout if self.training else 0.0, None
        score, engine = self.score, self.engine
        together = None
        if averages and not rate and engine is None:
            together = weigh(q, k, v, score, mask, bias)
        if together is not None:
            found, weights = together
        elif not need_weights:
            found = attention(q, k, v, score, mask=mask, bias=bias, dropout=rate, engine=engine)
        else:
            want = ("weights",)
            attended = attend(q, k, v, score, want=want, mask=mask, bias=bias, engine=engine)
            found, weights = attended.output, attended.weights
            assert weights is not None
            # The engine ran without dropout, for weights that it can return; drop some of them here.
            if rate:
                found, weights = drop_weights(weights, v, rate)
            weights = weights.mean(-3) if averages else weights
        return self.out_proj(from_heads(found, layout)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Projections:
        """Project query, key and value, in as few matrix products as the inputs allow."""
        # By identity, as in torch: self-attention takes one product, a shared key and value two.
        weight, bias, rows = self.in_proj_weight, self.in_proj_bias, self.projected
        if weight is not None and key is value:
            if query is key:
                return Projections(*linear(query, weight, bias).split(rows, -1))
            weights = weight.split([rows[0], rows[1] + rows[2]])
            biases = (None, None) if bias is None else bias.split([rows[0], rows[1] + rows[2]])
            pair = linear(key, weights[1], biases[1]).split(rows[1:], -1)
            return Projections(linear(query, weights[0], biases[0]), *pair)
        q, k, v = self.projection_weights()
        biases = (None, None, None) if bias is None else bias.split(rows)
        return Projections(
            linear(query, q, biases[0]), linear(key, k, biases[1]), linear(value, v, biases[2])
        )

    def _add_keys(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """The projected keys or values, followed by the learned one and the zero one."""
        parts, shape = [x], (*x.shape[:2], 1, x.shape[3])
        if learned is not None:
            parts.append(learned.view(1, x.shape[1], 1, x.shape[3]).expand(shape))
        if self.add_zero_attn:
            parts.append(x.new_zeros(shape))
        return torch.cat(parts, -2) if len(parts) > 1 else x

    def merge_masks(self, *_: object) -> None:
        """Raises: torch's encoder layer calls this when it takes its fast path.

        That cannot happen while the hook is in place; see `_stay_off_the_fast_path`.
        """
        raise RuntimeError(
            f"torch's fast path would compute the scaled dot product in place of score "
            f"{self.score.name!r}. A forward pre-hook of this module prevents that, and has been "
            "removed: keep it, or call torch.backends.mha.set_fastpath_enabled(False)"
        )

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Save, and write the name of the score to the metadata."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["score"] = self.score.name

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        """Load, or refuse the parameters of another score with one sentence."""
        refused = check_saved_score(self.score, state_dict, prefix, local_metadata)
        if refused is not None:
            error_msgs.append(refused)
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        """The sizes that the parts do not show."""
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}"
        text += f", batch_first={self.batch_first}" if self.batch_first else ""
        text += f", key_heads={self.key_heads}" if self.key_heads != self.num_heads else ""
        return text + (f", engine={self.engine!r}" if self.engine is not None else "")


def _without_padding(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor, layout: str
) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros at padding.

    What padding holds, NaN included, then stays out of the gradients of the projections. In
    self-attention the tensor is the query too, and stays as it is.
    """
    real = real_keys(key_padding_mask)
    real = (real.T if layout == LENGTH_FIRST else real).unsqueeze(-1)
    kept = key if key is query else torch.where(real, key, 0)
    if value is key or value is query:
        return kept, kept if value is key else value
    return kept, torch.where(real, value, 0)
