"""From the pairwise form of tanh to the inner form, hidden unit by hidden unit.

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
    """The largest |a + b| that each hidden unit can meet, (*, K, E), from the largest of each side.

    Query heads that share a key head share its features, so that they share the reach too. Where
    leading dims are broadcast, one reach serves all of them.
    """
    a, b = form.a.detach(), form.b.detach()
    of_a, of_b = a.abs().amax(-2), b.abs().amax(-2)
    heads, key_heads = a.shape[-3], b.shape[-3]
    if heads != key_heads:
        of_a = of_a.unflatten(-2, (key_heads, heads // key_heads)).amax(-2)
    if a.shape[:-3] != b.shape[:-3]:
        of_a, of_b = (x.flatten(0, -3).amax(0) if x.ndim > 2 else x for x in (of_a, of_b))
    return of_a.float() + of_b.float()


def row_for(series: Series, reach: Tensor) -> Tensor:
    """The row of the table for each hidden unit: the first whose reach is long enough."""
    return torch.searchsorted(series.reach, reach).clamp(max=series.reach.shape[0] - 1)


def lending_rows(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """The same in a table from `load_lending`: the unit with the least |v| takes a row of its second half.

    Query heads that share a key head share the unit too: the largest |v| of them counts.
    """
    row = row_for(series, reach)
    size = form.v.detach().abs().squeeze(-2).float()
    size = size.unflatten(0, (row.shape[-2], -1)).amax(1)
    lender = size.argmin(-1, keepdim=True).expand(*row.shape[:-1], 1)
    return row + torch.zeros_like(row).scatter(-1, lender, series.reach.shape[0])


def logit_error(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """A bound on the error of any logit by the series, rounding apart: `sum_h |v_h| error_h`."""
    return weighed(form, series.error[row_for(series, reach)])


def slope_error(form: Pairwise, series: Series, reach: Tensor) -> Tensor:
    """A bound on the errors of all `d logit / d a_h` of a pair together."""
    return weighed(form, series.slope_error[row_for(series, reach)])


def weighed(form: Pairwise, errors: Tensor) -> Tensor:
    """The largest sum of |v| times the errors of the units, (*, K, E), of any head."""
    size = form.v.detach().abs().squeeze(-2).float()
    groups = max(size.shape[0] // errors.shape[-2], 1)
    return (size * errors.repeat_interleave(groups, -2)).sum(-1).amax()


def lower(form: Pairwise, series: Series) -> Inner:
    """The inner form whose logits are those of `form` with tanh replaced by the series.

    Each hidden unit takes the row of the table for its own reach, chosen on the device. Beyond the
    longest reach the series is wrong: the caller looks at `unit_reach` first.
    """
    row = row_for(series, unit_reach(form))
    return sine_features(
        form, series.linear[row], series.frequencies[row], series.coefficients[row]
    )


def lower_exactly(form: Pairwise) -> Inner:
    """The inner form of a score whose activation is the series itself."""
    row = row_of(form.parameter)
    shape = (form.b.shape[-3], form.b.shape[-1])
    work = torch.promote_types(form.a.dtype, torch.float32)
    linear, w, c = (
        torch.tensor(x, dtype=work, device=form.a.device)
        for x in (row.linear, row.frequencies, row.coefficients)
    )
    return sine_features(form, linear.expand(shape), w.expand(*shape, -1), c.expand(*shape, -1))


def sine_features(form: Pairwise, linear: Tensor, frequencies: Tensor, heights: Tensor) -> Inner:
    """Features of queries and keys; linear term (*, K, E), frequencies and heights (*, K, E, R).

    `phi = v c [sin wa, cos wa]` and `psi = [cos wb, sin wb]`; the linear term goes into alpha and
    beta. All of them are in fp32 at least.
    """
    a, b, v = form.a, form.b, form.v
    work = torch.promote_types(a.dtype, torch.float32)
    a, b, v = a.to(work), b.to(work), v.to(work)
    linear, w, c = linear.to(work), frequencies.to(work), heights.to(work)
    wb = b.unsqueeze(-1) * w.unsqueeze(-3)
    groups = a.shape[-3] // b.shape[-3]
    if groups > 1:
        linear, b = linear.repeat_interleave(groups, -2), b.repeat_interleave(groups, -3)
        w, c = w.repeat_interleave(groups, -3), c.repeat_interleave(groups, -3)
    wa = a.unsqueeze(-1) * w.unsqueeze(-3)
    vc = v.unsqueeze(-1) * c.unsqueeze(-3)
    phi = torch.cat([(vc * wa.sin()).flatten(-2), (vc * wa.cos()).flatten(-2)], -1)
    psi = torch.cat([wb.cos().flatten(-2), wb.sin().flatten(-2)], -1)
    pull = (v.squeeze(-2) * linear).unsqueeze(-2)
    return Inner(phi, psi, (a * pull).sum(-1), (b * pull).sum(-1))
