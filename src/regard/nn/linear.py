"""`Linear`, which keeps unit variance, and `reset_all`."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """`torch.nn.Linear` with another initialisation: normal with variance 1 / fan-in, bias 0.

    Inputs of variance 1 give outputs of variance 1. Torch's own initialisation gives 1/3.
    """

    def reset_parameters(self) -> None:
        """Draw the weights again."""
        # Torch allows layers without inputs, whose fan-in of 0 would divide by zero here.
        nn.init.normal_(self.weight, std=max(self.in_features, 1) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def reset_all(module: nn.Module) -> None:
    """Draw every parameter again: calls `reset_parameters` of the module and of all inside it."""
    for part in module.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
