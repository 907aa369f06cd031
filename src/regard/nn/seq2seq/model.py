"""`EncoderDecoder`: a recurrent encoder and decoder, and the loss to train them.

Shape legend: B batch, L source length, T target length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.arguments import Counts
from regard.nn.seq2seq.checks import check_token_ids
from regard.nn.seq2seq.location import coverage_loss
from regard.nn.seq2seq.memory import Decoded, DecoderState, Encoded, Memory, Source
from regard.nn.seq2seq.recurrent import RecurrentDecoder, RecurrentEncoder
from regard.precision import widened


class EncoderDecoder(nn.Module):
    """A recurrent encoder and a recurrent decoder with attention.

    Args:
        encoder: a `RecurrentEncoder`, or any module of (tokens, lengths) that returns `Encoded` and
            has its width as `output_dim`.
        decoder: a `RecurrentDecoder`.
        bos: the token that starts every target; not part of the targets given.
        eos: the token that ends them.
        pad: the token that pads targets; the loss ignores it.
    """

    def __init__(
        self,
        encoder: RecurrentEncoder,
        decoder: RecurrentDecoder,
        *,
        bos: int,
        eos: int,
        pad: int,
    ) -> None:
        super().__init__()
        for name, token in (("bos", bos), ("eos", eos), ("pad", pad)):
            if not isinstance(token, int) or not 0 <= token < decoder.vocabulary:
                raise ValueError(
                    f"{name} must be a token of the decoder's vocabulary, from 0 to "
                    f"{decoder.vocabulary - 1}, got {token!r}"
                )
        if pad == eos:
            raise ValueError(
                f"pad and eos are both {pad}: the loss ignores pad, so the end of a target would not "
                "be learned; give them two different tokens"
            )
        for needs, width in (
            ("memory_dim", decoder.memory_dim),
            ("summary_dim", decoder.summary_dim),
        ):
            if encoder.output_dim != width:
                raise ValueError(
                    f"the encoder's output is {encoder.output_dim} wide, but the decoder was built "
                    f"with {needs}={width}"
                )
        self.encoder, self.decoder = encoder, decoder
        self.bos, self.eos, self.pad = bos, eos, pad

    def encode(self, source: Tensor, lengths: Counts | None = None) -> Source:
        """Encode tokens (B, L), the first `lengths` (B,) of each real, and prepare the memory."""
        encoded: Encoded = self.encoder(source, lengths)
        memory = self.decoder.attention.prepare(encoded.output, lengths=encoded.lengths)
        return Source(memory, self.decoder.initial_state(encoded.summary, memory))

    def step(self, token: Tensor, memory: Memory, state: DecoderState) -> Decoded:
        """One decoder step with the last token (B,), as searches need."""
        return self.decoder.step(token, memory, state)

    def forward(self, source: Tensor, target: Tensor, lengths: Counts | None = None) -> Decoded:
        """Teacher forcing: predict each token of the target (B, T) from those before it.

        Args:
            source: (B, L) tokens.
            target: (B, T) tokens, ending in `eos` and filled up with `pad`; `bos` is put in front
                here.
            lengths: (B,), how many tokens of each source are real; None for all.
        """
        check_token_ids(source, "source")
        check_token_ids(target, "target")
        if target.shape[0] != source.shape[0]:
            raise ValueError(
                f"target has batch {target.shape[0]}, but source has batch {source.shape[0]}"
            )
        memory, state = self.encode(source, lengths)
        first = torch.full_like(target[:, :1], self.bos)
        return self.decoder(torch.cat([first, target[:, :-1]], 1), memory, state)

    def loss(
        self,
        source: Tensor,
        target: Tensor,
        lengths: Counts | None = None,
        *,
        label_smoothing: float = 0.0,
        coverage: float = 0.0,
    ) -> Tensor:
        """Mean cross entropy of the target's tokens in nats, without padding; 0 if all is padding.

        If `coverage` is not 0, that multiple of the coverage loss of the weights is added.
        """
        logits, weights, _ = self(source, target, lengths)
        logits = widened(logits)  # a sum of fp16 soon exceeds its range, 65504
        real = target != self.pad
        total = F.cross_entropy(
            logits.flatten(0, 1),
            target.flatten().long(),
            ignore_index=self.pad,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
        loss = total / real.sum().clamp(min=1)
        if coverage != 0:
            loss = loss + coverage * coverage_loss(weights, real.sum(1))
        return loss
