"""Vitals of rows beside plain formulas on the reference engine's weights, in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals import INDEX, Level, measure, parts, pick_rows

from .vitals_tools import CALLS, Call, as_logits, make, randn, vital


def repeated(value: Tensor, heads: int) -> Tensor:
    return value.repeat_interleave(heads // value.shape[1], 1)


def mean(x: Tensor, keep: Tensor) -> Tensor:
    """Over sequences and rows of those to keep, for each head."""
    return torch.stack([x[:, h][keep[:, h]].mean() for h in range(x.shape[1])])


def expected_rows(call: Call, rows: Tensor) -> dict[str, Tensor]:
    """What single rows tell."""
    found, visible = call.attended, call.visible[:, :, rows]
    count, sees = visible.sum(-1), visible.any(-1)
    several = count + (call.seen.sink is not None) > 1
    normalised = found.entropy[:, :, rows] / (count + (call.seen.sink is not None)).log()
    return {
        "masked_rows": 1 - sees.double().mean((0, 2)),
        "visible_share": visible.double().mean((0, 2, 3)),
        "max_weight": mean(found.max_weight[:, :, rows], sees),
        "jacobian": mean(found.jacobian[:, :, rows], sees),
        "entropy": mean(normalised, several & sees),
        "logit_max": found.max_logit[:, :, rows].amax((0, 2)),
    }


def expected_places(call: Call, rows: Tensor) -> dict[str, Tensor]:
    """Weights at places, one query at a time."""
    batch, heads, queries, keys = call.visible.shape
    ahead = 0 if call.seen.causal else max(keys - queries, 0)
    found: dict[str, list] = {}
    for name, distance in (("own", 0), ("previous", 1), ("next", -1), ("first", None)):
        for h in range(heads):
            kept = []
            for b in range(batch):
                for i in rows.tolist():
                    j = 0 if distance is None else i + ahead - distance
                    if 0 <= j < keys and call.visible[b, h, i, j]:
                        kept.append(call.attended.weights[b, h, i, j])
            found.setdefault(f"{name}_share", []).append(
                torch.stack(kept).mean() if kept else torch.tensor(math.nan)
            )
    return {name: torch.stack(x).double() for name, x in found.items()}


def expected_sinks(call: Call, rows: Tensor) -> dict[str, Tensor]:
    """The sink of each sequence and head, and what it does to the output."""
    batch, heads = call.visible.shape[:2]
    value = repeated(call.value, heads)
    names = ("sink_weight", "sink_value", "sink_output", "output_alike", "output_rank")
    found = {name: torch.zeros(batch, heads, dtype=torch.float64) for name in names}
    for b in range(batch):
        for h in range(heads):
            sees = call.visible[b, h, rows].any(-1)
            weights = call.attended.weights[b, h, rows][sees]
            output = weights @ value[b, h]
            best = weights.mean(0).argmax()
            norms = value[b, h].norm(dim=-1)
            others = torch.cat([norms[:best], norms[best + 1 :]]).square().mean().sqrt()
            part = weights[:, best, None] * value[b, h, best]
            own, rest = part.norm(), (output - part).norm()
            varied = output - output.mean(0)
            energy = torch.linalg.svdvals(varied).square()
            found["sink_weight"][b, h] = weights.mean(0).max()
            found["sink_value"][b, h] = norms[best] / others
            found["sink_output"][b, h] = own / (own + rest)
            found["output_alike"][b, h] = (
                output.mean(0).square().sum() / output.square().sum(-1).mean()
            )
            found["output_rank"][b, h] = energy.sum() ** 2 / energy.square().sum()
    return {name: x.mean(0) for name, x in found.items()}


def expected_likeness(call: Call, rows: Tensor) -> Tensor:
    """The best correlation with another head, by torch's own function for it."""
    batch, heads = call.visible.shape[:2]
    best = torch.full((heads,), math.nan, dtype=torch.float64)
    for h in range(heads):
        for other in range(heads):
            kept = []
            for b in range(batch):
                for i in rows.tolist():
                    one, two = call.visible[b, h, i], call.visible[b, other, i]
                    if other != h and one.sum() == two.sum() > 1 and (one == two).all():
                        pair = call.attended.weights[b, [h, other], i][:, one]
                        kept.append(torch.corrcoef(pair)[0, 1])
            if kept:
                best[h] = torch.stack([best[h].nan_to_num(nan=-2), torch.stack(kept).mean()]).max()
    return best


def agree(row: Tensor, expected: dict[str, Tensor], tolerance: float) -> None:
    for name, x in expected.items():
        torch.testing.assert_close(
            vital(row, name),
            x.double(),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m, name=name: f"{name}: {m}",
        )


def levels(call: Call):
    """All queries, and some of them."""
    queries = call.visible.shape[2]
    yield torch.arange(queries), measure(call.seen, Level.EXACT)
    rows = pick_rows(queries, 5, 3, "cpu")
    yield rows, measure(call.seen, Level.SAMPLED, rows)


@pytest.mark.parametrize("name", CALLS)
def test_rows_are_exact(name):
    """Half precision too: what is measured is what those numbers give in exact arithmetic."""
    call = CALLS[name]()
    for rows, row in levels(call):
        agree(row, expected_rows(call, rows), 2e-6)
        agree(row, expected_places(call, rows), 2e-6)
        agree(row, expected_sinks(call, rows), 2e-5)


@pytest.mark.parametrize("name", ["plain", "causal", "grouped", "padded keys", "sink", "two keys"])
def test_likeness_of_heads(name):
    call = CALLS[name]()
    for rows, row in levels(call):
        agree(row, {"head_similarity": expected_likeness(call, rows)}, 1e-4)


@pytest.mark.parametrize(
    "name", ["plain", "causal", "queries that see nothing", "additive", "sink"]
)
def test_logits_alone_tell_the_same(name):
    """Hidden pairs hold the lowest number of fp32 there, as models write it."""
    call = as_logits(CALLS[name]())
    for rows, row in levels(call):
        agree(row, expected_rows(call, rows), 2e-6)
        agree(row, expected_places(call, rows), 2e-6)
        agree(row, expected_sinks(call, rows), 2e-5)
        agree(row, expected_moments(call, rows), 2e-6)


def expected_moments(call: Call, rows: Tensor) -> dict[str, Tensor]:
    logits = call.attended.weights.log() + call.attended.lse.unsqueeze(-1)
    found: dict[str, list] = {"logit_mean": [], "logit_var": []}
    for h in range(logits.shape[1]):
        seen = [
            logits[b, h, i][call.visible[b, h, i]]
            for b in range(logits.shape[0])
            for i in rows.tolist()
            if call.visible[b, h, i].any()
        ]
        found["logit_mean"].append(torch.stack([x.mean() for x in seen]).mean())
        found["logit_var"].append(torch.stack([x.var(correction=0) for x in seen]).mean())
    return {name: torch.stack(x) for name, x in found.items()}


@pytest.mark.parametrize("name", ["additive", "additive, grouped", "gatv2"])
def test_moments_of_pairwise_logits(name):
    call = CALLS[name]()
    for rows, row in levels(call):
        agree(row, expected_moments(call, rows), 2e-6)


def test_weight_on_a_learned_sink():
    call = CALLS["sink"]()
    assert call.seen.sink is not None
    expected = 1 - call.attended.weights.sum(-1).mean((0, 2))
    agree(measure(call.seen, Level.EXACT), {"idle_weight": expected}, 2e-6)
    assert vital(measure(CALLS["plain"]().seen, Level.EXACT), "idle_weight").isnan().all()


def test_blocks_of_rows_are_joined():
    """Exact reads in blocks; here of one query each, and the same comes out."""
    call = make(causal=True, shape=(2, 4, 16, 16))
    whole = measure(call.seen, Level.EXACT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.doctor.vitals.exact.BLOCK", 1)
        torch.testing.assert_close(
            measure(call.seen, Level.EXACT), whole, equal_nan=True, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", CALLS)
def test_parts_of_the_heads_are_joined(name):
    """On a CPU heads are read a few at a time; here as few as their keys allow."""
    seen = CALLS[name]().seen
    whole = measure(seen, Level.SAMPLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.doctor.vitals.parts.CACHED", 1)
        torch.testing.assert_close(
            measure(seen, Level.SAMPLED), whole, equal_nan=True, rtol=1e-5, atol=1e-6
        )


def test_many_rows_are_compared_on_some():
    """Two heads alike but for noise: a correlation of 64 rows, told by every eighth."""
    query, key = randn(1, 1, 64, 16), randn(1, 1, 500, 16, seed=1).expand(1, 2, -1, -1)
    query = torch.cat([query, query + 0.5 * randn(1, 1, 64, 16, seed=2)], 1)
    seen = Seen(query, key, scale=0.25)
    exact = vital(measure(seen, Level.EXACT), "head_similarity")
    sampled = vital(measure(seen, Level.SAMPLED), "head_similarity")
    assert (exact > 0.5).all() and (exact < 0.95).all()
    assert ((sampled - exact).abs() > 0).all() and ((sampled - exact).abs() < 0.1).all()


def test_the_same_head_twice_is_found():
    query, key = randn(2, 4, 40, 8), randn(2, 4, 40, 8, seed=1)
    query[:, 3], key[:, 3] = query[:, 1], key[:, 1]
    seen = make().seen._replace(query=query, key=key, value=None, scale=0.3)
    alike = vital(measure(seen, Level.SAMPLED), "head_similarity")
    assert (alike[[1, 3]] > 0.9999).all() and (alike[[0, 2]] < 0.2).all()


def test_heads_that_are_uniform_are_not_called_alike():
    """A fresh model: logits near 0 in all heads."""
    seen = make().seen._replace(scale=1e-5)
    assert vital(measure(seen, Level.SAMPLED), "head_similarity").isnan().all()


def test_a_large_batch_is_sampled_in_turns(monkeypatch) -> None:
    """All entries get their turn; what one turn measures is what those entries alone would give."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(5, 2, 12, 4, generator=draw) for _ in range(3))
    visible = torch.rand(5, 1, 12, 12, generator=draw) < 0.8
    rows = pick_rows(12, 6, 0, "cpu")
    monkeypatch.setattr(parts, "MOST_LOGITS", 2 * 6 * 2 * 12)
    starts = []
    for turn in range(3):
        found = measure(Seen(query, key, value, visible=visible), "sampled", rows, turn)
        alone = []
        for start in range(4):
            part = [x[start : start + 2] for x in (query, key, value)]
            alone.append(measure(Seen(*part, visible=visible[start : start + 2]), "sampled", rows))
        sampled = [INDEX["entropy"], INDEX["visible_share"], INDEX["place_share"]]
        same = [torch.equal(found[:, sampled], x[:, sampled]) for x in alone]
        starts.append(same.index(True))
        whole = measure(Seen(query, key), "cheap")
        assert torch.equal(found[:, INDEX["key_norm"]], whole[:, INDEX["key_norm"]])
    assert starts == [0, 2, 3]
