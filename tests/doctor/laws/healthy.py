"""Healthy models, which no law may accuse above a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.doctor.laws.checking import check
from regard.doctor.laws.result import Checked

from .hosts import HOSTS


class Healthy(NamedTuple):
    """A healthy model with its batch, and what is declared."""

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    options: dict[str, Any] = {}  # noqa: RUF012
    apart: bool = False

    def examined(self) -> Checked:
        torch.manual_seed(0)
        model, batch = self.build()
        return check(model, batch, **self.options)


HEALTHY = tuple(
    Healthy(host.name, lambda host=host: (host.build({}).eval(), host.batch()), host.options, host.apart)
    for host in HOSTS
)
