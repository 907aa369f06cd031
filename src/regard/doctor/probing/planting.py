"""Makes one key of one attention call longer while a block runs.

The key is lengthened before anything that depends on its norm: before the module's norm on keys,
before a score of regard lowers it, before remedies. Where there is none of these, the key that the
kernel gets is lengthened.

Shape legend: `...` leading dims, L keys, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.doctor.remedies.intervene import HOLDER, Change, ChangePlace, module_at, put, take_away
from regard.observed import KEY_CHANGES

# Attributes in which models keep their norm on keys.
KEY_NORMS = ("k_norm", "key_norm", "norm_k", "k_layernorm", "key_layernorm", "ln_k", "k_ln")


def lengthened(key: Tensor, place: int, factor: float, dim: int = -2) -> Tensor:
    """Keys (..., L, D) with the one at `place` multiplied."""
    longer = key.clone()
    longer.select(dim, place).mul_(factor)
    return longer


@contextmanager
def planted(
    model: nn.Module, where: ChangePlace, keys: int, place: int, factor: float
) -> Iterator[None]:
    """Key `place` of `keys` at an attention call is `factor` times as long within the block."""
    module = module_at(model, where.module)
    norm = key_norm(module)
    with ExitStack() as undo:
        # In each case the earliest point at which the key can be reached.
        if where.route == "regard":
            undo.enter_context(before_lowering(module, where.index, place, factor))
        elif norm is not None:
            hook = partial(before_norm, keys, place, factor)
            undo.callback(norm.register_forward_pre_hook(hook).remove)
        else:
            name = put(model, where, "planted", Planted(place, factor))
            undo.callback(take_away, model, module, name)
            to_the_front(module, name)
        yield


class Planted(Change):
    """A change that makes one key longer."""

    def __init__(self, key: int, factor: float) -> None:
        super().__init__()
        self.key, self.factor = key, factor

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query unchanged, and the keys with one of them longer."""
        return query, lengthened(key, self.key, self.factor)


def to_the_front(module: nn.Module, name: str) -> None:
    """Move a change before all remedies, so that the attack has to pass through them."""
    # Changes run in the order in which their holder lists them.
    held = module._modules[HOLDER]
    assert held is not None
    for other in [x for x in held._modules if x != name]:
        held._modules[other] = held._modules.pop(other)


def key_norm(module: nn.Module) -> nn.Module | None:
    """The norm that a module puts on its keys, None where it has none."""
    return next(
        (x for name in KEY_NORMS if isinstance(x := getattr(module, name, None), nn.Module)), None
    )


def before_norm(keys: int, place: int, factor: float, module: nn.Module, args: tuple) -> tuple:
    """A pre-hook for a norm on keys (..., L, D), (..., L, heads, D) or (..., L, heads * D)."""
    x = args[0]
    dims = [dim for dim in range(1, x.ndim - 1) if x.shape[dim] == keys]
    if len(dims) != 1:
        raise ValueError(
            f"the keys before their norm have the shape {tuple(x.shape)}; exactly one inner dim "
            f"must be the length {keys}"
        )
    return lengthened(x, place, factor, dims[0]), *args[1:]


@contextmanager
def before_lowering(module: nn.Module, index: int, place: int, factor: float) -> Iterator[None]:
    """Lengthen the key in call number `index` of `regard.attention` in a forward of the module."""
    # `KEY_CHANGES` get the keys of every call, so the calls of this module are counted by its
    # hooks.
    inside, calls = False, 0

    def begin(module: nn.Module, args: Any) -> None:
        nonlocal inside, calls
        inside, calls = True, 0

    def end(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal inside
        inside = False

    def louder(key: Tensor) -> Tensor:
        nonlocal calls
        if not inside:
            return key
        calls += 1
        return lengthened(key, place, factor) if calls == index + 1 else key

    hooks = (
        module.register_forward_pre_hook(begin),
        module.register_forward_hook(end, always_call=True),
    )
    KEY_CHANGES.append(louder)
    try:
        yield
    finally:
        KEY_CHANGES.remove(louder)
        for hook in hooks:
            hook.remove()
