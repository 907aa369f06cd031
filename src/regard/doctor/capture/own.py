"""Turns calls of `regard.attention` and `attend`, with any score on any engine, into a `Seen`.

Shape legend: `*` leading dims, B all of them as one, H query heads, K key heads, Q queries, L keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.capture.shapes import alike, mask_alike
from regard.doctor.seen import Seen
from regard.forms import Inner, Pairwise
from regard.mask import Mask
from regard.problem import Problem

# Temperature 0 selects the best key. A row of temperature 0 among others is measured at this one.
COLDEST = 1e-6


def seen_of(problem: Problem, whole: bool) -> Seen | None:
    """What the doctor sees of a lowered call; None for a hard look-up, which has no softmax.

    `whole` is False at levels that do not read which pairs are hidden: no dense mask is built then.
    """
    p = problem
    if p.hard:
        return None
    lead = p.lead or (1,)  # a call without leading dims is a batch of one
    causal, rest = hidden_by(p.mask, p.queries, p.keys)
    pairs = None
    if whole and rest is not None:
        pairs = mask_alike(lead, rest.visible(p.queries, p.keys, p.device))
    found = Seen(
        value=alike(lead, p.value.detach()),
        bias=None if p.bias is None else mask_alike(lead, p.bias.detach()),
        visible=pairs,
        causal=causal,
        softcap=p.softcap,
        sink=None if p.sink is None else p.sink.detach()[:, None],
    )
    if isinstance(p.form, Pairwise):
        return with_pairwise(found, p.form, p.temperature, lead)
    return with_inner(found, p.form, p.temperature, lead)


def hidden_by(mask: Mask | None, queries: int, keys: int) -> tuple[bool, Mask | None]:
    """Whether the mask is causal from the top left and nothing else; the mask if it is another."""
    if mask is None:
        return False, None
    # The vitals count a causal mask by index, so it needs no dense tensor.
    plain = mask.key_lengths is None and mask.query_lengths is None
    if plain and len(mask.bands) == 1 and len(mask.allowed) == len(mask.packed) == 0:
        band = mask.bands[0]
        if band.is_causal and (queries == keys or band.alignment == "top_left"):
            return True, None
    return False, mask


def with_inner(seen: Seen, form: Inner, temperature: float | Tensor, lead: tuple) -> Seen:
    """The call with the logits `(scale <phi, psi> + alpha + beta) / temperature`."""
    query, key, scale, beta = form.phi.detach(), form.psi.detach(), form.scale, form.beta
    shift, bias = form.alpha, seen.bias
    each_query = isinstance(temperature, Tensor)
    # As a bias, beta would come after the soft cap, and would need a row for each temperature.
    if beta is not None and (each_query or seen.softcap is not None):
        query, key = with_column(query, key, beta.detach(), scale)
        beta = None
    if isinstance(temperature, Tensor):
        heat = temperature.detach().clamp(min=COLDEST)
        query = query / heat.unsqueeze(-1).to(query.dtype)
    else:
        heat, scale = temperature, scale / temperature
    if beta is not None:
        beta = beta.detach().repeat_interleave(query.shape[-3] // beta.shape[-2], -2)
        row = mask_alike(lead, beta.unsqueeze(-2) / heat)
        bias = row if bias is None else bias + row
    if shift is not None:
        shift = alike(lead, (shift.detach() / heat).unsqueeze(-1)).squeeze(-1)
    return seen._replace(
        query=alike(lead, query), key=alike(lead, key), scale=scale, bias=bias, shift=shift
    )


def with_column(query: Tensor, key: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Query and key with one more column, which adds beta: `scale <query, key> + beta`."""
    heads = max(key.shape[-3], beta.shape[-2])
    key = key.repeat_interleave(heads // key.shape[-3], -3)
    column = (beta / scale).unsqueeze(-1).to(key.dtype)
    lead = torch.broadcast_shapes(key.shape[:-1], column.shape[:-1])
    wide = torch.cat([key.expand(*lead, -1), column.expand(*lead, 1)], -1)
    return torch.cat([query, torch.ones_like(query[..., :1])], -1), wide


def with_pairwise(seen: Seen, form: Pairwise, temperature: float | Tensor, lead: tuple) -> Seen:
    """The call with the logits `sum v f(a + b)`, where v is divided by the temperature."""
    v = form.v.detach()
    if isinstance(temperature, Tensor):
        v = v / temperature.detach().clamp(min=COLDEST).unsqueeze(-1).to(v.dtype)
    elif temperature != 1.0:
        v = v / temperature
    a, b = alike(lead, form.a.detach()), alike(lead, form.b.detach())
    # v is (H, 1, E), unless a temperature for each query has given it leading dims.
    v = alike(lead, v) if v.ndim > 3 else v
    return seen._replace(pairwise=form.over(a, b, v))
