"""`Subwords`: the joint subword vocabulary of both languages, by the package tokenizers.

Words are cut into frequent pieces (byte-pair encoding, Sennrich et al. 2016). Digits stand alone, and pieces do not
cross punctuation. A character that no training sentence has becomes `<unk>`, which the translation leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
END = "■"  # the end mark in pictures: no letter, no sound and no piece
SPACE = "▁"  # how the package writes the space before a word


class Subwords:
    """Text to numbers and back.

    Args:
        tokenizer: of the package tokenizers; see `learn`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # Text is text, "<eos>" too: it would end a sentence. The package does not keep this in its JSON.
        self.tokenizer.encode_special_tokens = True

    @classmethod
    def learn(cls, sentences: Iterable[str], vocabulary: int, lowercase: bool) -> Subwords:
        """Learn at most `vocabulary` pieces from sentences of both languages."""
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
        steps = [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
        tokenizer.normalizer = normalizers.Sequence(
            [*steps, normalizers.Lowercase()] if lowercase else steps
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(),
                pre_tokenizers.Punctuation(),
                pre_tokenizers.Digits(individual_digits=True),
            ]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
        )
        tokenizer.train_from_iterator(sentences, trainer)
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> Subwords:
        """What `to_json` wrote.

        Raises:
            ValueError: the text is something else.
        """
        try:
            return cls(Tokenizer.from_str(text))
        except Exception as error:  # the package raises no narrower class
            raise ValueError(f"no vocabulary of subwords: {error}") from None

    def to_json(self) -> str:
        """All of it as JSON, of the package's own format."""
        return self.tokenizer.to_str()

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The numbers of each sentence's pieces; none for a sentence without any character."""
        return [one.ids for one in self.tokenizer.encode_batch(list(sentences))]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of numbers, without special pieces."""
        return [one.strip() for one in self.tokenizer.decode_batch([list(row) for row in numbers])]

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """The pieces themselves, for pictures: words begin with a space mark."""
        return [self.tokenizer.id_to_token(one) or SPECIAL[UNK] for one in numbers]
