"""Lowers the pairwise form of tanh to the inner form, one hidden unit at a time, with error bounds.

Shape legend: `*` leading dims, H query heads, K key heads, Q query length, L key length, E hidden
width, R rank of the series; the features are 2 * E * R wide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.forms import Inner, Pairwise
from regard.sine.activation import row_of
from regard.sine.series import Series


def unit_reach(form: Pairwise) -> Tensor:
    """A bound on |a + b| of each hidden unit, (*, K, E): max |a| + max |b| over the sequence.

    Query heads that share a key head share its features, and therefore the reach. Where leading dims
    are broadcast, one reach serves all of them.
    """
    a, b = form.a.detach(), form.b.detach()
    of_a, of_b = a.abs().amax(-2), b.abs().amax(-2)
    heads, key_heads = a.shape[-3], b.shape[-3]
    if heads != key_heads:
        of_a = of_a.unflatten(-2, (key_heads, heads // key_heads)).amax(-2)
    if a.shape[:-3] != b.shape[:-3]:
        # One side is broadcast over leading dims of the other.
        of_a, of_b = (x.flatten(0, -3).amax(0) if x.ndim > 2 else x for x in (of_a, of_b))
    return of_a.float() + of_b.float()


def row_for(series: Series, reach: Tensor) -> Tensor:
    """The index of the table row for each hidden unit: the first row whose reach is long enough."""
    # Clamped for units beyond the longest reach, whose result the caller discards.
    return torch.searchsorted(series.reach, reach.to(series.reach)).clamp(
        max=series.reach.shape[0] - 1
    )


def lending_rows(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """`row_for` in a table of `load_lending`: the unit with the least |v| takes a row of the second half.

    Query heads that share a key head share that unit too: the largest |v| among them is compared.
    """
    row = row_for(series, reach)
    size = form.v.detach().abs().squeeze(-2).float()
    size = size.unflatten(0, (row.shape[-2], -1)).amax(1)
    lender = size.argmin(-1, keepdim=True).expand(*row.shape[:-1], 1)
    return row + torch.zeros_like(row).scatter(-1, lender, series.reach.shape[0])


def logit_error(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """A bound on the error of any logit due to the series, without rounding: `sum_h |v_h| error_h`."""
    return weighed(form, series.error[row_for(series, reach)])


def slope_error(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """A bound on the sum of the errors of all `d logit / d a_h` of a pair, due to the series."""
    return weighed(form, series.slope_error[row_for(series, reach)])


def weighed(form: Pairwise, errors: Tensor) -> Tensor:
    """The largest over heads of `sum_h |v_h| errors_h`; `errors` is (*, K, E)."""
    size = form.v.detach().abs().squeeze(-2).float()
    groups = max(size.shape[0] // errors.shape[-2], 1)
    return (size * errors.repeat_interleave(groups, -2)).sum(-1).amax()


def lower(form: Pairwise, series: Series) -> Inner:
    """The inner form whose logits are those of `form` with tanh replaced by the series.

    Each hidden unit takes the row of the table for its own reach, chosen on the device. Beyond the
    longest reach the series is wrong: the caller has to check `unit_reach` first.
    """
    row = row_for(series, unit_reach(form))
    return sine_features(
        form, series.linear[row], series.frequencies[row], series.coefficients[row]
    )


def lower_exactly(form: Pairwise) -> Inner:
    """The inner form of a score whose activation is the series itself."""
    # One row for all units: the reach is part of the activation, not a bound on the inputs.
    row = row_of(form.parameter)
    shape = (form.b.shape[-3], form.b.shape[-1])
    work = torch.promote_types(form.a.dtype, torch.float32)
    linear, w, c = (
        torch.tensor(x, dtype=work, device=form.a.device)
        for x in (row.linear, row.frequencies, row.coefficients)
    )
    return sine_features(form, linear.expand(shape), w.expand(*shape, -1), c.expand(*shape, -1))


def sine_features(form: Pairwise, linear: Tensor, frequencies: Tensor, heights: Tensor) -> Inner:
    """The inner form of a series with linear term (*, K, E), frequencies and heights (*, K, E, R).

    `phi = v c [sin wa, cos wa]` and `psi = [cos wb, sin wb]`; the linear term goes into alpha and beta.
    All of them are in fp32 or wider.
    """
    a, b, v = form.a, form.b, form.v
    work = torch.promote_types(a.dtype, torch.float32)
    a, b, v = a.to(work), b.to(work), v.to(work)
    linear, w, c = linear.to(work), frequencies.to(work), heights.to(work)
    # Key features before heads are repeated: query heads of a group share them.
    wb = b.unsqueeze(-1) * w.unsqueeze(-3)
    groups = a.shape[-3] // b.shape[-3]
    if groups > 1:
        linear, b = linear.repeat_interleave(groups, -2), b.repeat_interleave(groups, -3)
        w, c = w.repeat_interleave(groups, -3), c.repeat_interleave(groups, -3)
    wa = a.unsqueeze(-1) * w.unsqueeze(-3)
    vc = v.unsqueeze(-1) * c.unsqueeze(-3)
    phi = torch.cat([(vc * wa.sin()).flatten(-2), (vc * wa.cos()).flatten(-2)], -1)
    psi = torch.cat([wb.cos().flatten(-2), wb.sin().flatten(-2)], -1)
    # v times the linear term, of which a takes its part as alpha and b as beta.
    pull = (v.squeeze(-2) * linear).unsqueeze(-2)
    return Inner(phi, psi, (a * pull).sum(-1), (b * pull).sum(-1))
