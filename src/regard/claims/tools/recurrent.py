"""A small recurrent network with or without attention over its states, and its gradients.

B batch, n tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import regard
from regard import Score


class Recaller(nn.Module):
    """h_t = tanh(U x_t + W h_{t-1}); answers from the last state, or from attention over all states.

    W starts uniform with variance 1 / (3 hidden), PyTorch's default for linear layers.

    Args:
        features: width of a token.
        hidden: width of a state.
        classes: number of answers.
        score: of the attention from the last state to all states; None answers from the last state.
        fading: if false, W is orthogonal and there is no tanh, so the recurrence preserves norms.
    """

    def __init__(
        self, features: int, hidden: int, classes: int, score: Score | None, fading: bool = True
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(features, hidden)
        self.step = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, classes)
        self.score, self.fading = score, fading
        if not fading:
            nn.init.orthogonal_(self.step.weight)

    def states(self, tokens: Tensor) -> Tensor:
        """Tokens (B, n, features) to states (B, n, hidden)."""
        drive = self.enter(tokens)
        state, found = torch.zeros_like(drive[:, 0]), []
        for now in drive.unbind(-2):
            state = now + self.step(state)
            state = state.tanh() if self.fading else state
            found.append(state)
        return torch.stack(found, -2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, n, features) to logits (B, classes)."""
        states = self.states(tokens)
        if self.score is None:
            return self.out(states[:, -1])
        read = regard.attention(states[:, -1:], states, states, self.score, engine="reference")
        return self.out(read.squeeze(-2))


def log_gradient(net: Recaller, tokens: Tensor) -> Tensor:
    """Log of the root mean square gradient at each token, the last token first: (n,).

    The gradient is that of a random linear combination of the logits; tokens (B, n, features).
    """
    tokens = tokens.clone().requires_grad_()
    logits = net(tokens)
    mixture = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    (gradient,) = torch.autograd.grad((logits * mixture).sum(), tokens)
    return gradient.square().mean((0, 2)).log().div(2).flip(0)


def decay(net: Recaller, tokens: Tensor) -> float:
    """Predicted change of the log gradient for each step back in time.

    For a random W with entries of variance s^2, a step multiplies the mean square of a gradient by
    hidden s^2 E[tanh'^2], where tanh' = 1 - h^2. The result is half the log of that factor.
    """
    with torch.no_grad():
        states = net.states(tokens)
        alive = (1 - states.square()).square().mean() if net.fading else torch.ones(())
        gain = net.step.weight.square().sum(0).mean()
    return float((alive * gain).log() / 2)
