"""Positions against their formulas, written out, and against transformers."""

from __future__ import annotations

import math

import pytest
import torch

import regard
from regard.nn.position import Alibi, LearnedPosition, Rotary, Sinusoidal

F64 = torch.float64


def wave(position: int, feature: int, dim: int, base: float = 10000.0) -> float:
    angle = position * base ** (-2 * (feature // 2) / dim)
    return math.cos(angle) if feature % 2 else math.sin(angle)


@pytest.mark.parametrize("dim", [1, 6, 7])
@pytest.mark.parametrize("amplitude", [1.0, 0.25])
def test_sinusoidal_formula(dim, amplitude):
    x = torch.randn(2, 5, dim, dtype=F64)
    wanted = [[amplitude * wave(p, i, dim) for i in range(dim)] for p in range(3, 8)]
    found = Sinusoidal(dim, amplitude)(x, offset=3)
    torch.testing.assert_close(found, x + torch.tensor(wanted, dtype=F64))


def test_sinusoidal_base_and_positions_of_each_token():
    module, x = Sinusoidal(4, base=100.0), torch.zeros(2, 3, 4, dtype=F64)
    positions = torch.tensor([[0, 1, 2], [0, 0, 9]])
    wanted = [[[wave(p, i, 4, 100.0) for i in range(4)] for p in row] for row in positions.tolist()]
    torch.testing.assert_close(module(x, positions=positions), torch.tensor(wanted, dtype=F64))


def test_a_learned_amplitude_starts_as_given_and_learns():
    module, x = Sinusoidal(4, 0.5, learned=True), torch.zeros(1, 3, 4)
    torch.testing.assert_close(module(x), Sinusoidal(4, 0.5)(x))
    module(x).square().sum().backward()
    assert module.amplitude.grad.item() == pytest.approx(2 * 0.5 * 3 * 2)  # sin^2 + cos^2 = 1
    assert list(Sinusoidal(4).state_dict()) == []
    assert "learned" in repr(module) and "0.5" in repr(Sinusoidal(4, 0.5))


def test_learned_positions():
    module, x = LearnedPosition(6, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(module(x, offset=2), x + module.weight[2:5])
    ids = torch.tensor([[5, 0, 1], [0, 0, 2]])
    torch.testing.assert_close(module(x, positions=ids), x + module.weight[ids])
    module(x).sum().backward()
    assert (module.weight.grad[:3] != 0).all() and (module.weight.grad[3:] == 0).all()
    torch.manual_seed(0)
    assert LearnedPosition(500, 64).weight.std().item() == pytest.approx(0.02, rel=0.05)


def turned(x: torch.Tensor, position: int, rotary: Rotary) -> torch.Tensor:
    """One vector, pair by pair, with a 2 x 2 rotation matrix."""
    y, half = x.clone(), rotary.rotated // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + half)
        angle = position * rotary.base ** (-2 * i / rotary.rotated)
        y[a] = math.cos(angle) * x[a] - math.sin(angle) * x[b]
        y[b] = math.sin(angle) * x[a] + math.cos(angle) * x[b]
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rotated", "base"), [(8, 10000.0), (4, 500.0), (2, 10000.0)])
def test_rotary_formula(interleaved, rotated, base):
    rotary = Rotary(8, base, interleaved=interleaved, rotated=rotated)
    x = torch.randn(2, 3, 4, 8, dtype=F64)
    positions = torch.tensor([[0, 1, 2, 3], [7, 100, 3, 3]])
    found = rotary(x, positions=positions)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                wanted = turned(x[b, h, i], int(positions[b, i]), rotary)
                torch.testing.assert_close(found[b, h, i], wanted)
    torch.testing.assert_close(rotary(x, offset=5), rotary(x, positions=torch.arange(5, 9)))


def test_positions_by_vmap():
    """Their numbers cannot be read there."""
    module, x = LearnedPosition(6, 4), torch.randn(2, 3, 4)
    ids = torch.tensor([[5, 0, 1], [0, 0, 2]])
    found = torch.func.vmap(lambda x, ids: module(x, positions=ids))(x, ids)
    torch.testing.assert_close(found, module(x, positions=ids))


RELATIVE = {
    "dot": regard.Dot,
    "scaled_dot": regard.ScaledDot,
    "cosine": regard.Cosine,
    "gaussian": regard.Gaussian,
}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", RELATIVE)
def test_inner_product_scores_see_the_difference_of_positions_alone(name, interleaved):
    rotary, score = Rotary(8, interleaved=interleaved), RELATIVE[name]().double()
    q, k = torch.randn(2, 1, 5, 8, dtype=F64)
    near = regard.score(rotary(q), rotary(k), score)
    far = regard.score(rotary(q, offset=100_000), rotary(k, offset=100_000), score)
    torch.testing.assert_close(far, near, rtol=1e-9, atol=1e-9)
    moved = regard.score(rotary(q), rotary(k, offset=1), score)
    assert (moved - near).abs().max() > 0.1


def test_pairwise_scores_are_not_relative_with_rotary_as_documented():
    rotary, score = Rotary(8), regard.Additive(8).double()
    q, k = torch.randn(2, 1, 5, 8, dtype=F64)
    near = regard.score(rotary(q), rotary(k), score)
    far = regard.score(rotary(q, offset=9), rotary(k, offset=9), score)
    assert (far - near).abs().max() > 0.01
    assert "not only on the difference" in Rotary.__doc__


def test_rotary_equals_llama():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=64)
    base = config.rope_parameters["rope_theta"]
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    positions = torch.tensor([[0, 0, 0, 1, 2, 3], [11, 12, 13, 14, 15, 16]])
    cos, sin = modeling.LlamaRotaryEmbedding(config)(q, positions)
    wanted = modeling.apply_rotary_pos_emb(q, k, cos, sin)
    rotary = Rotary(8, base)
    for x, y in zip((q, k), wanted, strict=True):
        torch.testing.assert_close(rotary(x, positions=positions), y)


def test_interleaved_partial_rotary_equals_gptj():
    modeling = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = torch.randn(2, 6, 4, 8)  # batch, length, heads, width
    sin, cos = modeling.create_sinusoidal_positions(6, 4).unsqueeze(0).chunk(2, -1)
    wanted = torch.cat([modeling.apply_rotary_pos_emb(x[..., :4], sin, cos), x[..., 4:]], -1)
    found = Rotary(8, interleaved=True, rotated=4)(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(found, wanted)


def test_casting_a_module_does_not_spoil_its_angles():
    """Tables kept as buffers would be rounded by model.bfloat16(): off by radians at 1000."""
    x = torch.randn(1, 1, 4, 8)
    for module in (Rotary(8), Sinusoidal(8)):
        wanted = module(x, offset=1000)
        torch.testing.assert_close(module.bfloat16()(x, offset=1000), wanted)
        half = module(x.bfloat16(), offset=1000).float()
        torch.testing.assert_close(half, wanted, rtol=0.03, atol=0.03)
    assert torch.equal(Alibi(6).bfloat16()(3, 4), Alibi(6)(3, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_dtypes_are_kept(dtype):
    x = torch.randn(2, 4, 3, 8, dtype=dtype)
    for module in (Rotary(8), Sinusoidal(8), LearnedPosition(3, 8)):
        assert module(x).dtype == dtype


def slopes_of_the_paper(heads: int) -> list[float]:
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
    below = 2 ** int(math.log2(heads))
    return slopes_of_the_paper(below) + slopes_of_the_paper(2 * below)[::2][: heads - below]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 33])
def test_alibi_slopes(heads):
    wanted = torch.tensor(slopes_of_the_paper(heads))
    torch.testing.assert_close(Alibi(heads).slopes(), wanted)
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(Alibi(heads).slopes(), theirs[:, 0, 1])


@pytest.mark.parametrize("offset", [None, 0, 2])
def test_alibi_formula(offset):
    bias, slopes = Alibi(3)(2, 5, offset=offset), slopes_of_the_paper(3)
    assert bias.shape == (3, 2, 5)
    first = 3 if offset is None else offset
    for h in range(3):
        for i in range(2):
            for j in range(5):
                assert bias[h, i, j].item() == pytest.approx(-slopes[h] * abs(i + first - j))


def test_causal_alibi_hides_later_keys_as_a_causal_mask_does():
    q, k, v = (torch.randn(2, 3, n, 4, dtype=F64) for n in (4, 6, 6))
    hidden = Alibi(3, causal=True)(4, 6)
    assert torch.equal(hidden == -torch.inf, torch.ones(3, 4, 6).triu(3).bool())
    masked = regard.attention(q, k, v, bias=Alibi(3)(4, 6)[None], mask=regard.Mask.causal())
    torch.testing.assert_close(regard.attention(q, k, v, bias=hidden[None]), masked)


def test_alibi_is_bloom_up_to_a_constant_for_each_query():
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 5, dtype=torch.long), 3, torch.float32)
    ours = Alibi(3, causal=True)(5, 5)
    shift = (theirs - ours).masked_fill(ours == -torch.inf, torch.nan)
    spread = shift.nan_to_num(nan=-torch.inf).amax(-1) - shift.nan_to_num(nan=torch.inf).amin(-1)
    assert spread.abs().max() < 1e-6


X = torch.zeros(2, 3, 8)
MISTAKES = {
    "odd rotary": (lambda: Rotary(7), ValueError, "rotated must be an even number"),
    "rotated beyond": (lambda: Rotary(8, rotated=10), ValueError, "at most dim 8, got 10"),
    "base": (lambda: Rotary(8, base=-1.0), ValueError, "base must be a positive number"),
    "width": (lambda: Rotary(6)(X), ValueError, r"Rotary was built for \(..., length, 6\)"),
    "offset": (lambda: Rotary(8)(X, offset=-1), ValueError, "offset must be an integer of 0"),
    "half an offset": (lambda: Sinusoidal(8)(X, offset=1.5), ValueError, "offset must be an int"),
    "length": (
        lambda: Sinusoidal(8)(X, positions=torch.arange(4)),
        ValueError,
        r"positions must be \(3,\) or \(2, 3\)",
    ),
    "positions of more sequences": (
        lambda: Sinusoidal(8)(X[:1], positions=torch.zeros(2, 3).long()),
        ValueError,
        r"positions must be \(3,\) or \(1, 3\)",
    ),
    "positions of sequences without heads": (
        lambda: Rotary(8)(X, positions=torch.zeros(2, 3).long()),
        ValueError,
        r"positions must be \(3,\) for x of shape \(2, 3, 8\), got shape \(2, 3\)",
    ),
    "positions with heads": (
        lambda: Rotary(8)(X[:, None], positions=torch.zeros(2, 1, 3).long()),
        ValueError,
        r"positions must be \(3,\) or \(2, 3\)",
    ),
    "positions elsewhere": (
        lambda: Rotary(8)(X, positions=torch.arange(3, device="meta")),
        ValueError,
        "positions are on meta but x is on cpu",
    ),
    "whole numbers": (lambda: Sinusoidal(8)(X.long()), ValueError, "floating point, got a tensor"),
    "alibi of fewer": (lambda: Alibi(2)(-1, 3), ValueError, "queries must be an integer of 0"),
    "alibi offset": (lambda: Alibi(2)(2, 3, 0.5), ValueError, "offset must be an integer or None"),
    "floats": (lambda: Sinusoidal(8)(X, positions=X[0, :, 0]), TypeError, "must be integers"),
    "both": (
        lambda: Sinusoidal(8)(X, offset=1, positions=torch.arange(3)),
        TypeError,
        "offset stay 0",
    ),
    "too long": (lambda: LearnedPosition(4, 8)(X, offset=2), ValueError, "0 to 3, got position 4"),
    "id beyond": (
        lambda: LearnedPosition(4, 8)(X, positions=torch.tensor([0, 1, 4])),
        ValueError,
        "got position 4; build it longer",
    ),
    "id below": (
        lambda: LearnedPosition(4, 8)(X, positions=torch.tensor([0, -1, 3])),
        ValueError,
        "got position -1",
    ),
    "heads": (lambda: Alibi(0), ValueError, "heads must be an integer of 1 or more"),
    "amplitude": (lambda: Sinusoidal(8, 0.0), ValueError, "amplitude must be a positive number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_clear_error(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        call()


def test_empty_sequences():
    empty = torch.zeros(2, 0, 8)
    for module in (Sinusoidal(8), LearnedPosition(4, 8), Rotary(8)):
        assert module(empty).shape == (2, 0, 8)
    assert Alibi(2)(0, 3).shape == (2, 0, 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_positions_of_any_integer_dtype(dtype):
    x, positions = torch.randn(2, 3, 8), torch.tensor([2, 0, 1])
    for module in (Sinusoidal(8), LearnedPosition(4, 8), Rotary(8)):
        found = module(x, positions=positions.to(dtype))
        assert torch.equal(found, module(x, positions=positions))


def test_learned_positions_by_vmap():
    module, x, positions = LearnedPosition(4, 8), torch.randn(2, 3, 8), torch.randint(4, (2, 3))
    found = torch.func.vmap(lambda x, p: module(x, positions=p))(x, positions)
    assert torch.equal(found, module(x, positions=positions))


def test_positions_compile_with_any_offset():
    waves, rotary, alibi = Sinusoidal(8), Rotary(8), Alibi(1)

    def call(x, offset):
        return rotary(waves(x, offset), offset) + alibi(3, 3 + offset)[..., :1]

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for offset in (2, 5, 9):
        x = torch.randn(2, 3, 8)
        torch.testing.assert_close(compiled(x, offset), call(x, offset))
