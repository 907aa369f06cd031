"""Generation with a cache gives what all tokens at once give, whatever the score and position."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.forms import InnerKey, PairwiseKey
from regard.nn.position import Alibi, LearnedPosition, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock
from regard.nn.transformer.cache import Cache
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.stacks import Decoder
from regard.stabilize import SoftCapped, Tempered

DIM, HEADS, WIDTH = 8, 4, 6
# Each with whether its heads can be turned: those with projections of their own show no heads.
SCORES = {
    "scaled_dot": (lambda: None, True),
    "dot": (lambda: "dot", True),
    "cosine": (lambda: regard.Cosine(HEADS), True),
    "gaussian": (lambda: regard.Gaussian(), True),
    "additive": (lambda: regard.Additive(WIDTH, HEADS), True),
    "gatv2": (lambda: regard.GATv2(WIDTH, HEADS, bias=True), True),
    "capped": (lambda: SoftCapped(regard.Additive(WIDTH, HEADS), 3.0), True),
    "tempered": (lambda: Tempered(regard.Gaussian(heads=None), 0.5, heads=HEADS), True),
    "projected": (lambda: regard.Projected(regard.Additive(WIDTH, HEADS), DIM, DIM), True),
    "bilinear": (lambda: regard.Bilinear(DIM, DIM, HEADS), False),
    "low_rank": (lambda: regard.LowRank(DIM, DIM, 3, HEADS), False),
}
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(WIDTH, interleaved=True, rotated=4),
    "alibi": lambda: Alibi(HEADS),
}
PAIRS = [
    (name, position)
    for name, (_, turns) in SCORES.items()
    for position in POSITIONS
    if turns or position != "rotary"
]
INPUTS = {
    "none": lambda: None,
    "sinusoidal": lambda: Sinusoidal(DIM),
    "learned": lambda: LearnedPosition(9, DIM),
}


def options(name: str) -> dict:
    own = name in ("projected", "bilinear", "low_rank")
    return {"value_dim": 3} if own else {"width": WIDTH, "value_dim": 3}


def decoder(name="scaled_dot", position="none", inputs="none", **more) -> Decoder:
    build, _ = SCORES[name]
    blocks = [
        DecoderBlock(
            DIM, HEADS, build(), position=POSITIONS[position](), **{**options(name), **more}
        )
        for _ in range(2)
    ]
    return Decoder(blocks, INPUTS[inputs]()).double()


def tokens(length: int = 7) -> torch.Tensor:
    return torch.randn(2, length, DIM, dtype=torch.float64)


def by_chunks(model, x, sizes, cache=None) -> torch.Tensor:
    outputs = []
    for chunk in x.split(sizes, 1):
        y, cache = model.step(chunk, cache)
        outputs.append(y)
    return torch.cat(outputs, 1)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize(("name", "position"), PAIRS)
def test_step_by_step_is_all_at_once(name, position, key_heads):
    model, x = decoder(name, position, key_heads=key_heads), tokens()
    whole = model(x)
    close(by_chunks(model, x, [1] * 7), whole)
    close(by_chunks(model, x, [3, 1, 2, 1]), whole)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "additive", "projected"])
def test_padding_on_the_left_changes_nothing(name, position, inputs):
    """A padded sequence gives what it gives alone, at once and step by step; NaN stays out."""
    model, x = decoder(name, position, inputs, sink=True), tokens()
    padded, start = x.clone(), torch.tensor([0, 3])
    padded[1, :3] = torch.nan
    alone = model(x[1:, 3:])
    whole = model(padded, left_padding=start)
    close(whole[1:, 3:], alone)
    close(whole[:1], model(x[:1]))
    for sizes in ([1] * 7, [4, 1, 2], [2, 3, 2]):
        stepped = by_chunks(model, padded, sizes, model.begin(left_padding=start))
        close(stepped[1:, 3:], alone)
        close(stepped[:1], model(x[:1]))


@pytest.mark.parametrize(("name", "position"), PAIRS)
def test_a_memory_is_lowered_once(name, position, monkeypatch):
    model, x, memory = decoder(name, position, memory_dim=DIM), tokens(), tokens(5)
    lengths = torch.tensor([5, 2])
    memory[1, 2:] = torch.nan
    whole = model(x, memory, memory_lengths=lengths)
    close(whole[1:], model(x[1:], memory[1:, :2]))
    cache = model.begin(memory, lengths)
    monkeypatch.setattr(CrossAttention, "keys", None)  # any further lowering would fail
    close(by_chunks(model, x, [2, 1, 4], cache), whole)


@pytest.mark.parametrize("name", ["scaled_dot", "gaussian", "additive"])
def test_beams_reorder_and_a_cache_never_changes(name):
    model, memory = decoder(name, "rotary", memory_dim=5), torch.randn(2, 4, 5).double()
    x, y = tokens(4), tokens(2)
    start, lengths = torch.tensor([1, 0]), torch.tensor([4, 3])
    _, cache = model.step(x, model.begin(memory, lengths, left_padding=start))
    index = torch.tensor([1, 1, 0])
    reordered = cache.reorder(index)
    assert cache.length == reordered.length == 4
    found, _ = model.step(y[:1].expand(3, -1, -1), reordered)
    again, _ = model.step(y[:1].expand(3, -1, -1), reordered)
    assert torch.equal(found, again)
    for row, i in enumerate(index.tolist()):
        whole = model(
            torch.cat([x[i : i + 1], y[:1]], 1),
            memory[i : i + 1],
            left_padding=start[i : i + 1],
            memory_lengths=lengths[i : i + 1],
        )
        close(found[row], whole[0, 4:])


@pytest.mark.parametrize("name", ["scaled_dot", "additive"])
def test_what_is_cached_is_the_lowered_key_of_the_key_heads_alone(name):
    model = decoder(name, key_heads=2)
    _, cache = model.step(tokens(3))
    _, cache = model.step(tokens(2), cache)
    own = cache.own[0]
    assert isinstance(own.key, PairwiseKey if name == "additive" else InnerKey)
    assert own.key[0].shape == (2, 2, 5, WIDTH)
    assert own.value.shape == (2, 2, 5, 3) and own.length == 5


def test_a_window_given_as_a_mask_works_with_a_cache():
    model, x = decoder(position="rotary"), tokens()
    window = regard.Mask.window(left=2)
    cache, outputs = None, []
    for chunk in x.split([3, 1, 3], 1):
        y, cache = model.step(chunk, cache, mask=window)
        outputs.append(y)
    close(torch.cat(outputs, 1), model(x, mask=window))
    assert (model(x, mask=window) - model(x)).abs().max() > 1e-3


def test_gradients_flow_through_a_cache():
    model, x = decoder("additive", "alibi"), tokens()
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    found = by_chunks(model, x, [3, 4])
    for got, want in zip(
        torch.autograd.grad(found.square().sum(), list(model.parameters())), wanted, strict=True
    ):
        close(got, want)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: SoftCapped(s, 50.0)])
def test_far_from_the_origin_a_cache_keeps_the_digits_of_gaussian(wrap):
    """Each key is lowered about the origin of those before: else fp32 squares cancel."""
    score = wrap(regard.Gaussian(heads=HEADS))
    model = Decoder([DecoderBlock(DIM, HEADS, score, width=WIDTH, norm="post")])
    layer = model.blocks[0].attention
    with torch.no_grad():  # projections that round nothing: they pick features
        for weight in (layer.score.query_weight, layer.score.key_weight):
            weight.copy_(torch.eye(DIM)[torch.arange(HEADS * WIDTH) % DIM])
    x = tokens().float() + 100
    single, whole, alone, stacked = Cache(), None, [], []
    for token in x.split(1, 1):
        _, seen, single = layer.attend(token, cache=single, want={"weights"})
        _, whole, (block,) = model.attend(token, cache=whole, want={"weights"})
        alone.append(seen.weights)
        stacked.append(block.own.weights)
    wanted = layer.double().attend(x.double(), want={"weights"}).attended.weights.float()
    for i in range(7):
        for found in (alone[i], stacked[i]):
            expected = wanted[:, :, i : i + 1, : i + 1]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_same_block_twice_keeps_two_caches():
    block = DecoderBlock(DIM, HEADS).double()
    model, x = Decoder([block, block]), tokens()
    close(by_chunks(model.double(), x, [2, 5]), model(x))


def test_right_padding_is_for_training_alone():
    model, x = decoder(position="rotary"), tokens()
    x[1, 4:] = torch.nan
    whole = model(x, lengths=[7, 4])
    close(whole[1:, :4], model(x[1:, :4]))
    whole[1, :4].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    layer = SelfAttention(DIM, HEADS, causal=True).double()
    _, cache = layer.step(tokens(), Cache(stop=torch.tensor([7, 4])))
    with pytest.raises(ValueError, match="pad the sequences on the left"):
        layer.step(tokens(1), cache)


def test_an_empty_chunk_changes_nothing():
    model, x = decoder("additive", "alibi"), tokens()
    _, cache = model.step(x[:, :3])
    nothing, cache = model.step(x[:, :0], cache)
    assert nothing.shape == (2, 0, DIM) and cache.length == 3
    close(model.step(x[:, 3:], cache)[0], model(x)[:, 3:])


def test_a_memory_without_tokens_adds_nothing():
    model, x = decoder(memory_dim=5), tokens()
    close(
        model(x, torch.zeros(2, 0, 5).double()),
        model(x, torch.ones(2, 3, 5).double(), memory_lengths=[0, 0]),
    )
    assert model(x, torch.zeros(2, 0, 5).double()).isfinite().all()


def test_one_memory_may_serve_all_sequences():
    layer, x, memory = CrossAttention(DIM, HEADS).double(), tokens(), tokens()
    close(layer(x, memory[:1]), layer(x, memory[:1].expand(2, -1, -1)))


def test_an_empty_batch_with_lengths():
    assert LAYER(tokens()[:0], lengths=[]).shape == (0, *tokens().shape[1:])


def test_lengths_by_vmap():
    x, lengths = torch.stack([tokens(), tokens()]), torch.tensor([[1, 7], [3, 0]])
    layer = SelfAttention(DIM, HEADS, causal=True, engine="reference").double()
    found = torch.func.vmap(lambda x, n: layer(x, lengths=n))(x, lengths)
    for one, given, n in zip(found, x, lengths, strict=True):
        close(one, layer(given, lengths=n))


LAYER = SelfAttention(DIM, HEADS, causal=True).double()
GIVEN = LAYER.step(torch.zeros(2, 3, DIM).double())[1]
MISTAKES = {
    "memory as a cache": (
        lambda: decoder(memory_dim=5).step(tokens(), torch.zeros(2, 3, 5)),
        TypeError,
        r"a memory goes into decoder.begin\(memory\)",
    ),
    "memory as the cache of a layer": (
        lambda: LAYER.step(tokens(), tokens()),
        TypeError,
        "a memory goes into CrossAttention",
    ),
    "cache as a memory": (
        lambda: decoder().attend(tokens(), decoder().begin()),
        ValueError,
        "a cache is cache=",
    ),
    "memory beside a cache": (
        lambda: (m := decoder(memory_dim=DIM)).attend(tokens(), tokens(), cache=m.begin(tokens())),
        ValueError,
        r"go into begin\(\)",
    ),
    "other width of Gaussian": (
        lambda: (
            SelfAttention(DIM, HEADS, regard.Gaussian(), width=6, causal=True)
            .double()
            .step(
                tokens(),
                SelfAttention(DIM, HEADS, regard.Gaussian(), causal=True)
                .double()
                .step(tokens())[1],
            )
        ),
        ValueError,
        "the origin belongs to keys of another layer",
    ),
    "not causal": (
        lambda: SelfAttention(DIM, HEADS).double().step(tokens(), GIVEN),
        ValueError,
        "causal=True",
    ),
    "batch": (lambda: LAYER.step(tokens()[:1], GIVEN), ValueError, "holds 2 sequences, but 1"),
    "batch with padding": (  # padding would broadcast to the batch of the cache
        lambda: LAYER.step(tokens()[:1], LAYER.step(tokens(), Cache(left_padding=[0, 1]))[1]),
        ValueError,
        "holds 2 sequences, but 1",
    ),
    "batch of a memory": (
        lambda: CrossAttention(DIM, HEADS).double()(tokens()[:1], tokens()),
        ValueError,
        "memory is for 2 sequences, but x has 1",
    ),
    "other width": (
        lambda: SelfAttention(DIM, HEADS, width=6, causal=True).double().step(tokens(), GIVEN),
        ValueError,
        "lower both with the same layer's score",
    ),
    "no cache": (lambda: LAYER.step(tokens(), None), TypeError, r"Cache\(\) is empty, got None"),
    "cache of a layer": (
        lambda: decoder().step(tokens(), GIVEN),
        TypeError,
        r"what step\(\) or begin\(\) gave",
    ),
    "cache without memory": (
        lambda: decoder(memory_dim=5).step(tokens(), decoder().begin()),
        ValueError,
        "holds 0 memories for 2 blocks that need memory",
    ),
    "lengths of no memory": (
        lambda: decoder()(tokens(), memory_lengths=[1, 2]),
        ValueError,
        "memory_lengths are given, but no memory",
    ),
    "other score": (
        lambda: (
            SelfAttention(DIM, HEADS, regard.Additive(4, HEADS), causal=True)
            .double()
            .step(tokens(), GIVEN)
        ),
        TypeError,
        "lower both with the same score",
    ),
    "late padding": (
        lambda: LAYER.attend(tokens(), cache=GIVEN, left_padding=[0, 1]),
        ValueError,
        "with the first tokens",
    ),
    "padding beyond": (
        lambda: LAYER(tokens(), left_padding=[0, 8]),
        ValueError,
        "left_padding must be from 0 to the length 7, got 0 to 8",
    ),
    "padding of another batch": (
        lambda: LAYER.step(tokens(), Cache(left_padding=torch.tensor([0]))),
        ValueError,
        r"left_padding must be one integer for each of the 2 sequences",
    ),
    "boolean lengths": (
        lambda: LAYER(tokens(), lengths=torch.tensor([True, False])),
        TypeError,
        "lengths must be integers",
    ),
    "blocks": (
        lambda: decoder().step(tokens(), Decoder([DecoderBlock(DIM, HEADS)]).begin()),
        ValueError,
        "the cache is of 1 blocks, but there are 2",
    ),
    "no memory": (
        lambda: decoder(memory_dim=5)(tokens()),
        ValueError,
        r"call decoder\(x, memory\), or decoder.step\(x, decoder.begin\(memory\)\)",
    ),
    "needless memory": (
        lambda: decoder()(tokens(), tokens()),
        ValueError,
        "built without memory_dim=",
    ),
    "empty memory": (
        lambda: CrossAttention(DIM, HEADS).double()(tokens(), Cache()),
        ValueError,
        "empty Cache",
    ),
    "lengths twice": (
        lambda: (layer := CrossAttention(DIM, HEADS).double())(
            tokens(), layer.prepare(tokens()), lengths=[1, 2]
        ),
        ValueError,
        "prepare",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_clear_error(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        call()
