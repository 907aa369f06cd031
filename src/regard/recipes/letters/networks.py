"""The network of letters to sounds: a recurrent encoder and decoder, and the attention between them.

It is the recurrent translator with two vocabularies: letters and sounds share no symbol.
"""

from __future__ import annotations

from regard import Score
from regard.nn.seq2seq import (
    DecoderAttention,
    Location,
    MonotonicAttention,
    RecurrentDecoder,
    RecurrentEncoder,
)
from regard.recipes.translate.networks import (
    RecurrentTranslator,
    Sizes,
    SummaryEncoder,
    recurrent_score,
)
from regard.recipes.translate.subwords import BOS, EOS, PAD
from regard.scores import Additive, Projected

# How the decoder attends. "none" is the control: it reads the encoder's last states and nothing else.
ATTENTIONS = ("softmax", "location", "monotonic", "luong", "none")
# Five letters to each side of the last one are enough to see where to go on in a word.
LOCATION = Location(kernel=11, channels=16)


def letters_network(
    attention: str, score: Score | str | None, letters: int, sizes: Sizes
) -> RecurrentTranslator:
    """A network with fresh weights.

    Args:
        attention: one of `ATTENTIONS`.
        score: how decoder states and letters compare; None is bilinear for "luong", else additive.
        letters: how many letters there are, special marks included.
        sizes: of all parts; `vocabulary` is the number of sounds.
    """
    kind = SummaryEncoder if attention == "none" else RecurrentEncoder
    encoder = kind(
        letters,
        sizes.embedding,
        sizes.encoder_width // 2,
        layers=sizes.layers,
        dropout=sizes.dropout,
    )
    decoder = RecurrentDecoder(
        sizes.vocabulary,
        sizes.embedding,
        sizes.width,
        decoder_attention(attention, score, sizes),
        sizes.encoder_width,
        attend="after" if attention == "luong" else "before",
        feed=attention == "luong",
        dropout=sizes.dropout,
    )
    return RecurrentTranslator(encoder, decoder, bos=BOS, eos=EOS, pad=PAD)


def decoder_attention(attention: str, score: Score | str | None, sizes: Sizes) -> DecoderAttention:
    """The attention of the decoder's states over the encoder's outputs."""
    if attention == "none":
        # Of a single key the weight is 1 whatever the score, so the smallest one will do.
        return DecoderAttention(Projected(Additive(1, 1), sizes.width, sizes.encoder_width))
    made = recurrent_score(score, sizes, "bilinear" if attention == "luong" else "additive")
    if attention == "monotonic":
        return MonotonicAttention(made)
    return DecoderAttention(made, location=LOCATION if attention == "location" else None)
