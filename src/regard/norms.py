"""LayerNorm and RMSNorm by name, and their application under autocast."""

from __future__ import annotations

from torch import Tensor, nn

from regard.arguments import check_one_of

# Each with its usual eps. It is given because RMSNorm's own default depends on the dtype.
NORMS = {"layer": (nn.LayerNorm, 1e-5), "rms": (nn.RMSNorm, 1e-6)}


def make_norm(
    kind: str, dim: int, eps: float | None = None, name: str = "norm"
) -> nn.LayerNorm | nn.RMSNorm:
    """A norm over the last dim; eps by default 1e-5 for "layer", 1e-6 for "rms".

    `name` is what an error calls the argument `kind`.
    """
    check_one_of(name, kind, NORMS)
    build, usual = NORMS[kind]
    return build(dim, eps=usual if eps is None else eps)


def normalize(norm: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
    """The norm of x, computed in the dtype of its gains: under autocast x may be narrower."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)
