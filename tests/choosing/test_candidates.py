"""The candidates: what they learn, that the textbook's formulas are theirs, and who refuses."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.choosing.cost.candidates import CostCandidate, candidates
from regard.choosing.cost.shape import parse_shape
from regard.choosing.cost.workload import Workload, make_inputs, make_score
from regard.choosing.rules import IN_SHORT
from regard.measuring import textbook

SHAPES = [
    "d_q=6,d_k=4,len_q=5,len_k=7,heads=4,key_heads=2,width=3,hidden=5,rank=2",
    "d_q=6,len_q=3,len_k=7,heads=2,batch=2,causal=1",
]
CPU = torch.device("cpu")


def all_of(text: str) -> list[CostCandidate]:
    return candidates(parse_shape(text))


@pytest.mark.parametrize("text", SHAPES)
def test_parameters_are_as_many_as_the_formula_says(text: str) -> None:
    for candidate in all_of(text):
        built = sum(p.numel() for p in candidate.make().parameters())
        assert built == candidate.parameters, candidate.key


def test_parameters_at_the_shape_of_the_demo() -> None:
    counts = {c.key: c.parameters for c in all_of("d_q=256,d_k=128,len=1024,heads=8")}
    assert counts["scaled_dot"] == 0
    assert counts["projected_scaled_dot"] == 8 * 64 * (256 + 128)
    assert counts["bilinear"] == 8 * 256 * 128
    assert counts["low_rank"] == 8 * 16 * (256 + 128)
    assert counts["additive"] == 8 * 16 * (256 + 128) + 8 * 16


@pytest.mark.parametrize("text", SHAPES)
def test_the_textbook_formula_is_the_library_s(text: str) -> None:
    """In fp64 both agree to rounding: the truth that errors are measured against is the score."""
    shape = parse_shape(text)
    inputs = make_inputs(shape, CPU, seed=1)
    query, key, value = (x.detach().double() for x in (inputs.query, inputs.key, inputs.value))
    for candidate in candidates(shape):
        score = make_score(candidate, CPU, seed=2).double()
        for parameter in score.parameters():  # factors that start at 1 would hide a mistake
            torch.nn.init.normal_(parameter, std=0.5)
        if shape.d_q != shape.d_k and candidate.key in ("dot", "scaled_dot", "cosine", "gaussian"):
            continue
        mine = regard.attention(query, key, value, score, mask=inputs.mask, engine="reference")
        plain = textbook.attention(score, query, key, value, inputs.keep)
        torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-11, msg=candidate.key)


def test_every_candidate_has_a_short_rule_of_thumb() -> None:
    keys = {c.key.removeprefix("projected_") for text in SHAPES for c in all_of(text)}
    assert keys == set(IN_SHORT)
    assert all(20 < len(rule) < 160 and rule.endswith(".") for rule in IN_SHORT.values())


def test_unlike_widths_put_every_plain_score_behind_projections() -> None:
    unlike = {c.key for c in all_of("d_q=6,d_k=4,len=3")}
    alike = {c.key for c in all_of("d_q=6,len=3")}
    plain = {"dot", "scaled_dot", "cosine", "gaussian"}
    assert {f"projected_{key}" for key in plain} <= unlike
    assert plain <= alike
    assert {key for key in alike if key.startswith("projected")} == {"projected_scaled_dot"}


def test_plain_scores_refuse_unlike_widths_in_the_library_s_words() -> None:
    shape = parse_shape("d_q=6,d_k=4,len=3,heads=2")
    inputs = make_inputs(shape, CPU, seed=0)
    for candidate in candidates(shape)[:4]:
        with pytest.raises(
            ValueError, match="needs query dim == key dim, got query dim 6"
        ) as caught:
            Workload(candidate, inputs, seed=0).plan()
        assert repr(candidate.key) in str(caught.value)


def test_the_seed_alone_decides_inputs_and_weights() -> None:
    shape = parse_shape("d_q=6,d_k=4,len=3,heads=2")
    additive = next(c for c in candidates(shape) if c.key == "additive")

    def draw(seed: int) -> list[torch.Tensor]:
        torch.rand(3)  # the global generator moves on and must not matter
        work = Workload(additive, make_inputs(shape, CPU, seed), seed)
        return [x.detach() for x in work.leaves]

    first, again, other = draw(0), draw(0), draw(1)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(first, other, strict=True))


def test_building_a_score_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    make_score(all_of(SHAPES[0])[-1], CPU, seed=3)
    assert torch.equal(torch.rand(2), expected)
