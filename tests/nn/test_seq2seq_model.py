"""The recurrent encoder and decoder, and the loss of the two together."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.nn.seq2seq import (
    BahdanauAttention,
    EncoderDecoder,
    Location,
    LuongAttention,
    MonotonicAttention,
    RecurrentDecoder,
    RecurrentEncoder,
    coverage_loss,
)

PAD, BOS, EOS, WORDS = 0, 1, 2, 9
H, MEMORY = 6, 8
ATTENTIONS = {
    "bahdanau": lambda: BahdanauAttention(H, MEMORY, 5, heads=2),
    "location": lambda: BahdanauAttention(H, MEMORY, 5, location=Location(3, 2), coverage=True),
    "luong": lambda: LuongAttention(H, MEMORY, "general"),
    "monotonic": lambda: MonotonicAttention(regard.Bilinear(H, MEMORY), noise=0.0, hard=False),
}
ORDERS = {
    "before": {"attend": "before"},
    "after": {"attend": "after"},
    "feeding": {"attend": "after", "feed": True},
}


def build(name: str = "bahdanau", **options) -> EncoderDecoder:
    encoder = RecurrentEncoder(WORDS, 4, MEMORY // 2, kind=options.get("kind", "gru"))
    decoder = RecurrentDecoder(WORDS, 5, H, ATTENTIONS[name](), MEMORY, **options)
    return EncoderDecoder(encoder, decoder, bos=BOS, eos=EOS, pad=PAD).double()


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.randint(3, WORDS, (3, 6))
    target = torch.tensor([[3, 4, 5, EOS], [6, EOS, PAD, PAD], [7, 8, EOS, PAD]])
    return source, target, torch.tensor([6, 3, 1])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_encoder_does_not_read_padding(kind, layers):
    encoder = RecurrentEncoder(WORDS, 4, 3, kind=kind, layers=layers)
    source, _, lengths = example()
    found = encoder(source, lengths)
    for b, length in enumerate(lengths):
        alone = encoder(source[b : b + 1, :length])
        torch.testing.assert_close(found.output[b, :length], alone.output[0])
        torch.testing.assert_close(found.summary[b], alone.summary[0])
        assert (found.output[b, length:] == 0).all()
    # The summary joins the last state forward and the last state backward, at the first token.
    torch.testing.assert_close(found.summary[0, :3], found.output[0, -1, :3])
    torch.testing.assert_close(found.summary[0, 3:], found.output[0, 0, 3:])


def test_encoder_in_one_direction():
    encoder = RecurrentEncoder(WORDS, 4, 3, bidirectional=False)
    source, _, lengths = example()
    output, summary, _ = encoder(source, lengths)
    last = output[torch.arange(3), lengths - 1]
    torch.testing.assert_close(summary, last)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_encoder_of_nothing(kind):
    encoder = RecurrentEncoder(WORDS, 4, 3, kind=kind)
    source = torch.randint(3, WORDS, (3, 6))
    output, summary, _ = encoder(source, torch.tensor([0, 6, 2]))
    assert (output[0] == 0).all() and (summary[0] == 0).all() and (summary[1] != 0).all()
    none = torch.zeros(3, dtype=torch.long)
    assert encoder(source[:, :0], none).output.shape == (3, 0, 6)
    assert encoder(source[:0], none[:0]).summary.shape == (0, 6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_teacher_forcing_is_step_by_step_decoding(name, order):
    model = build(name, kind="lstm" if name == "luong" else "gru", layers=2, **ORDERS[order])
    source, target, lengths = example()
    whole = model(source, target, lengths)
    memory, state = model.encode(source, lengths)
    given = torch.cat([torch.full((3, 1), BOS), target], 1)
    for t in range(target.shape[1]):
        logits, weights, state = model.step(given[:, t], memory, state)
        torch.testing.assert_close(logits, whole.logits[:, t])
        torch.testing.assert_close(weights, whole.weights[:, :, t])
    torch.testing.assert_close(state, whole.state)


def test_bahdanau_order_by_hand():
    """First c = attention(s), then s = cell([word; c], s), then logits of tanh(W_c [c; s])."""
    model = build()
    decoder = model.decoder
    source, _, lengths = example()
    memory, state = model.encode(source, lengths)
    encoded = model.encoder(source, lengths)
    hidden = torch.tanh(decoder.bridge(encoded.summary))
    torch.testing.assert_close(state.hidden[:, 0], hidden)
    word = torch.tensor([3, 4, 5])
    context = decoder.attention(hidden, memory).context
    after = decoder.cells[0](torch.cat([decoder.embedding(word), context], -1), hidden)
    vector = torch.tanh(decoder.vector.linear(torch.cat([context, after], -1)))
    torch.testing.assert_close(model.step(word, memory, state).logits, decoder.output(vector))


def test_luong_order_by_hand():
    """First s = cell([word; fed], s), then c = attention(s), and tanh(W_c [c; s]) is fed next."""
    model = build("luong", attend="after", feed=True)
    decoder = model.decoder
    source, _, lengths = example()
    memory, state = model.encode(source, lengths)
    hidden, fed = state.hidden[:, 0], torch.zeros(3, H).double()
    for word in torch.tensor([[3, 4, 5], [6, 7, 8]]):
        hidden = decoder.cells[0](torch.cat([decoder.embedding(word), fed], -1), hidden)
        context = decoder.attention(hidden, memory).context
        fed = decoder.vector(context, hidden)
        logits, _, state = model.step(word, memory, state)
        torch.testing.assert_close(logits, decoder.output(fed))


def test_loss_is_the_mean_over_real_tokens():
    model, (source, target, lengths) = build("location"), example()
    logits, weights, _ = model(source, target, lengths)
    picked = -logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    expected = picked[target != PAD].mean()
    torch.testing.assert_close(model.loss(source, target, lengths), expected)
    covered = model.loss(source, target, lengths, coverage=0.5)
    steps = torch.tensor([4, 2, 3])
    torch.testing.assert_close(covered, expected + 0.5 * coverage_loss(weights, steps))
    assert model.loss(source, torch.full_like(target, PAD), lengths) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_of_many_tokens_in_half_precision(dtype):
    """Ten thousand tokens of 8 nats: their sum is beyond fp16, and too coarse in bf16."""
    one, source = model().to(dtype), torch.zeros(100, 1, dtype=torch.int64)
    with torch.no_grad():
        one.decoder.output.bias[EOS] = -8.0
        loss = one.loss(source, torch.full((100, 100), EOS))
    logits = one(source[:1], torch.full((1, 100), EOS)).logits.double()
    expected = -logits.log_softmax(-1)[..., EOS].mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=0)


def test_padding_of_source_and_target_does_not_matter():
    model, (source, target, lengths) = build(), example()
    parameters = list(model.parameters())
    loss = model.loss(source, target, lengths)
    expected = [loss, *torch.autograd.grad(loss, parameters)]
    wide = torch.cat([source, torch.full((3, 4), PAD)], 1)
    wide = wide.where(torch.arange(10) < lengths[:, None], 5)
    loss = model.loss(wide, torch.cat([target, torch.full((3, 2), PAD)], 1), lengths)
    torch.testing.assert_close([loss, *torch.autograd.grad(loss, parameters)], expected)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_parameter_learns(name):
    model, (source, target, lengths) = build(name), example()
    model.loss(source, target, lengths).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_a_source_of_length_zero_trains():
    model, (source, target, _) = build(), example()
    loss = model.loss(source, target, torch.tensor([0, 3, 0]))
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())
    assert model.loss(source[:, :0], target).isfinite()


def test_an_empty_batch_has_loss_zero():
    model, (source, target, lengths) = build(), example()
    assert model.loss(source[:0], target[:0], lengths[:0]) == 0


def test_dropout_between_all_layers_is_off_in_eval():
    model = build(layers=2, dropout=0.5)
    source, target, lengths = example()
    assert model.loss(source, target, lengths) != model.loss(source, target, lengths)
    model.eval()
    assert model.loss(source, target, lengths) == model.loss(source, target, lengths)


def decoder(**options) -> RecurrentDecoder:
    return RecurrentDecoder(WORDS, 5, H, ATTENTIONS["bahdanau"](), MEMORY, **options)


def model(**options) -> EncoderDecoder:
    given = {"bos": BOS, "eos": EOS, "pad": PAD} | options
    return EncoderDecoder(RecurrentEncoder(WORDS, 4, MEMORY // 2), decoder(), **given)


SOURCE, TARGET, _ = example()


def step_of(other: RecurrentDecoder, batch: int = 3):
    """A step with the state of a plain decoder."""
    memory, state = model().encode(SOURCE)
    return other.step(TARGET[:batch, 0], memory, state)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: model(pad=EOS), ValueError, "pad and eos are both 2"),
        (lambda: model(bos=WORDS), ValueError, "bos must be a token of the .* 0 to 8, got 9"),
        (
            lambda: EncoderDecoder(RecurrentEncoder(9, 4, 3), decoder(), bos=1, eos=2, pad=0),
            ValueError,
            "output is 6 wide, but the decoder was built with memory_dim=8",
        ),
        (lambda: decoder(kind="rnn"), ValueError, "kind must be 'gru' or 'lstm', got 'rnn'"),
        (lambda: decoder(attend="never"), ValueError, "attend must be 'before' or 'after'"),
        (lambda: decoder(feed=True), ValueError, "feed=True is for attend='after'"),
        (lambda: decoder(layers=0), ValueError, "layers must be an integer of 1"),
        (lambda: RecurrentDecoder(9, 5, 6, "dot", 8), TypeError, "attention must be a DecoderAtt"),
        (
            lambda: RecurrentEncoder(9, 4, 3, dropout=2),
            ValueError,
            "dropout must be a probability from 0",
        ),
        (lambda: model()(SOURCE.float(), TARGET), TypeError, "source must be an integer"),
        (lambda: model()(SOURCE[0], TARGET), ValueError, r"source must be \(batch, length\)"),
        (lambda: model()(SOURCE, TARGET[:2]), ValueError, "target has batch 2, but source"),
        (lambda: model()(SOURCE, TARGET[:, :0]), ValueError, "one step at least"),
        (lambda: model()(SOURCE, TARGET, [7, 1, 1]), ValueError, "length 6, got 1 to 7"),
        (lambda: step_of(decoder(kind="lstm")), ValueError, "of another decoder or batch"),
        (lambda: step_of(decoder(layers=2)), ValueError, r"need \(\(3, 2, 6\), False, False\)"),
        (
            lambda: step_of(decoder(attend="after", feed=True)),
            ValueError,
            r"need \(\(3, 1, 6\), False, True\)",
        ),
        (lambda: step_of(decoder(), batch=1), ValueError, r"need \(\(1, 1, 6\), False, False\)"),
    ],
)
def test_one_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()
