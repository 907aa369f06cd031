"""Sums by tensor cores straight from registers: the PTX itself, and when it is trusted.

The kernels around it are run by the other tests here, in the interpreter, which sums plainly; on a GPU
everything is run by tests/gpu.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .ptx import LANES, Warp
from .tools import check, deterministic, draw, inputs, outcome, score_of

pytest.importorskip("triton", minversion="3.6")

from regard.engines.tiled import Arguments
from regard.engines.triton import calls, lanes

lane = np.arange(LANES)
group = lane // 4
KEYS, QUERIES, NOTES = 10_000, 20_000, 30_000  # addresses


def operands(t0, t1, v0, v1, unit=None):
    """The operands of the asm, register by register: t (queries, keys)."""

    def halves(low, high):
        return (np.where(low, 0x3F80, 0) + np.where(high, 0x3F800000, 0)).astype(np.uint32)

    own = lane % 4 == lane // 8
    even, odd = own & (group % 2 == 0), own & (group % 2 == 1)
    query = group + lane % 4 * 8
    full = np.full(LANES, 1, np.float32)
    given = {
        "even": halves(even, even),
        "odd": halves(odd, odd),
        "to_key": KEYS + lane,
        "to_next_key": KEYS + 100 + lane,
        "to_query": QUERIES + query,
        "to_next_query": QUERIES + 100 + query,
        "v0": full * np.float32(v0),
        "v1": full * np.float32(v1),
    }
    given |= {f"row{i}": halves(group == i, group == i + 1) for i in (0, 2, 4, 6)}
    names = lanes.OPERANDS
    if unit is not None:
        given |= {"unit": unit[query], "to_broken": NOTES + query}
        names = (*names, *lanes.FIXED_OPERANDS)
    found = [np.zeros(LANES, np.uint32)] * lanes.OUTPUTS
    for name in names:
        if name in ("first", "second"):
            found += list(t0 if name == "first" else t1)
        else:
            found += [given[name]] * lanes.SIDE
    return found


def terms(seed):
    """Two units' terms that bf16 holds, whose sums fp32 and TF32 hold too."""
    draw = np.random.default_rng(seed)
    return [draw.integers(-8, 9, (32, 32)).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_sums_both_ways_are_exact_where_numbers_are_small(seed):
    """Integers: every key and every query of both units gets its own sum, and nothing else."""
    t0, t1 = terms(seed)
    warp = Warp(operands(t0, t1, 0.5, -2.0))
    warp.run(lanes.assembly(fixed=False))
    for unit, (t, v) in enumerate(((t0, 0.5), (t1, -2.0))):
        for i in range(32):
            assert warp.memory[KEYS + 100 * unit + i] == v * t[:, i].sum()
            assert warp.memory[QUERIES + 100 * unit + i] == v * t[i].sum()
    assert len(warp.memory) == 4 * 32


def test_fixed_sums_count_units_and_note_what_is_not_a_number():
    """Integers in memory, of each query's own unit; an infinite sum is noted, not added."""
    t0, t1 = terms(7)
    unit = 2.0 ** np.arange(32)
    warp = Warp(operands(t0, t1, 1.0, 1.0, unit))
    warp.run(lanes.assembly(fixed=True))
    for i in range(32):
        assert warp.memory[QUERIES + i] == int(t0[i].sum() * unit[i])
        assert warp.memory[QUERIES + 100 + i] == int(t1[i].sum() * unit[i])
        assert warp.memory[KEYS + i] == t0[:, i].sum()
    assert not any(at >= NOTES for at in warp.memory)
    t0[:] = 1.0
    warp = Warp(operands(t0, t1, 3e38, 1.0, unit))
    warp.run(lanes.assembly(fixed=True))
    assert all(warp.memory[NOTES + i] == 1 for i in range(32))
    assert QUERIES not in warp.memory and QUERIES + 100 in warp.memory


def test_terms_are_rounded_to_bf16_and_sums_cut_to_tf32():
    """What the module says of its errors: 2^-9 of a term, 2^-10 of a sum over four keys."""
    draw = np.random.default_rng(1)
    t0, t1 = (draw.normal(size=(32, 32)).astype(np.float32) for _ in range(2))
    warp = Warp(operands(t0, t1, 1.0, 1.0))
    warp.run(lanes.assembly(fixed=False))
    for i in range(32):
        over_queries = abs(warp.memory[KEYS + i] - t0[:, i].sum())
        assert 0 < over_queries <= 2**-9 * np.abs(t0[:, i]).sum()
        over_keys = abs(warp.memory[QUERIES + i] - t0[i].sum())
        assert over_keys <= (2**-9 + 2**-10) * np.abs(t0[i]).sum()


def test_constraints_name_every_operand():
    """As many registers as the text uses, of the right kinds."""
    for fixed in (False, True):
        letters = lanes.constraints(fixed).split(",")
        count = len(lanes.OPERANDS) + fixed * len(lanes.FIXED_OPERANDS)
        assert len(letters) == lanes.OUTPUTS + lanes.SIDE * count
        assert f"${len(letters)}" not in lanes.assembly(fixed)


IR = """
#blocked = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [1, 1], order = [1, 0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [1, 1], order = [1, 0]}>
    %1 = tt.elementwise_inline_asm "rcp.approx" %0 : tensor<32x32xf32, #blocked1> -> tensor<32x32xf32, #blocked1>
    %2 = tt.elementwise_inline_asm "mma.sync" %1 : tensor<32x32xf32, LAYOUT> -> tensor<32x32xi8, LAYOUT> loc(#loc1)
"""


class Compiled:
    """What is read of a compiled kernel."""

    def __init__(self, text: str) -> None:
        self.hash, self.asm = text, {"ttgir": text}


@pytest.fixture
def verdicts(monkeypatch):
    """No kernel seen yet."""
    monkeypatch.setattr(lanes, "LAYOUT_VERDICTS", {})


def test_another_arrangement_is_refused(verdicts):
    """One lane, one key: what the compiler says decides, and one refusal ends it for all."""
    assert lanes.trusted(None) and not lanes.refused()
    assert lanes.trusted(Compiled(IR.replace("LAYOUT", "#blocked"))) and not lanes.refused()
    assert not lanes.trusted(Compiled(IR.replace("LAYOUT", "#blocked1")))
    assert not lanes.trusted(Compiled(IR.replace("LAYOUT", "#linear")))
    assert not lanes.trusted(Compiled(IR.replace("mma.sync", "other")))
    assert lanes.refused()


@pytest.mark.parametrize("dims", [4, 200])
def test_a_refused_kernel_is_run_again_in_the_other_way(verdicts, monkeypatch, dims):
    """The same gradients, from memory that the wrong sums did not touch."""
    tensors = inputs(40, 35, hidden=3, value_dim=dims, dtype=torch.bfloat16)
    score, grad = score_of(draw(2, 3, dtype=torch.bfloat16)), torch.randn(1, 2, 40, dims)
    expected = outcome(tensors, score, "triton", grad)
    assert not lanes.refused()
    monkeypatch.setattr(
        lanes, "trusted", lambda kernel: lanes.LAYOUT_VERDICTS.setdefault("x", False)
    )
    found = outcome(tensors, score, "triton", grad)
    assert lanes.refused()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-3)


def raw_scores(v, queries):
    """A call for raw scores in bf16, as the operators give it to the kernels: v (H, hidden)."""
    heads, hidden = v.shape
    query, key, value = (x.detach().unsqueeze(2) for x in inputs(queries, 35, dtype=torch.bfloat16))
    nothing = dict.fromkeys(Arguments._fields)
    given = {"q": query[..., :hidden], "k": key[..., :hidden], "value": value}
    given["v"] = v.view(1, heads, 1, 1, hidden)
    numbers = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    sizes = [1, heads, 1, queries, 35]
    return Arguments(
        **{**nothing, **given, "numbers": numbers, "sizes": sizes, "activation": "tanh"}
    )


def test_a_broken_v_breaks_its_own_head_alone():
    """In raw scores, whose gradient comes in sound: rows of padding are of no other head."""
    v = draw(2, 3, dtype=torch.bfloat16).detach()
    v[0, 1] = torch.nan
    args = raw_scores(v, 20)
    with deterministic():
        of_q, of_k = calls.scores_backward(args, torch.ones(args.sizes))[:2]
    assert of_q[:, 0, ..., 1].isnan().all() and of_k[:, 0, ..., 1].isnan().all()
    assert of_q[:, 1].isfinite().all() and of_k[:, 1].isfinite().all()


def test_no_hidden_unit_has_no_gradient():
    """There is nothing to read, not even ahead."""
    args = raw_scores(torch.ones(2, 0, dtype=torch.bfloat16), 20)
    assert not calls.scores(args).any()
    found = calls.scores_backward(args, torch.ones(args.sizes))
    assert [x.numel() for x in found[:2]] == [0, 0]


@pytest.mark.parametrize("hidden", [1, 4])
@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_of_padded_memory(hidden, fixed):
    """Lengths that are no whole tiles, an odd number of units: against the truth, in bf16."""
    torch.manual_seed(0)
    tensors = inputs(37, 70, hidden=hidden, dtype=torch.bfloat16)
    with deterministic(fixed):
        check(tensors, score_of(draw(2, hidden, dtype=torch.bfloat16)))
