"""`bounded`: while a saved model is built, no more parameters than its file holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook


@contextmanager
def bounded(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop the building of a network that has clearly more parameters than these weights.

    A file of a few bytes may ask for a hundred thousand layers, which would be built for minutes before their names
    are compared with those in the file.

    Raises:
        RuntimeError: there are more than twice as many parameters, or twice as many numbers in them.
    """
    own, tensors, numbers = threading.get_ident(), 0, 0
    most_tensors = 2 * len(weights) + 16  # a parameter may be replaced while a network is built
    most_numbers = 2 * sum(one.numel() for one in weights.values()) + 2**16

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal tensors, numbers
        if parameter is None or threading.get_ident() != own:
            return
        tensors, numbers = tensors + 1, numbers + parameter.numel()
        if tensors > most_tensors or numbers > most_numbers:
            raise RuntimeError(
                f"its arguments ask for more than the {len(weights)} parameters that it holds"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
