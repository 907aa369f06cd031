"""A spiking neuron of two compartments: a soma that fires and an apical dendrite that listens.

P populations, C contexts, I currents, N neurons in a population. Units: ms, mV, pA, pF.

The state of every neuron, each (P, C, I, N): v potential of the soma, u of the dendrite, w current of
the adaptation, z of the dendrite's recovery, x of the noise, since: ms since the last spike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.claims.claim import Run

REST, THRESHOLD, RESET = -70.0, -50.0, -70.0
STEP = 0.25
SETTLING = 200.0  # not counted: the start is the same for all
NOISE_TIME = 2.0
# When a spike runs back through the dendrite: from this until that long after it.
BACK_FROM, BACK_UNTIL = 0.5, 2.5


@dataclass(frozen=True)
class Neuron:
    """A leaky soma with spikes and adaptation, and a dendrite with a calcium plateau.

    Every spike runs back into the dendrite as a short pulse. Together with apical input it opens a
    plateau, whose current flows to the soma: the neuron answers to the coincidence of both. The
    constants are chosen for plausible rates (up to about 100 Hz); they are not fitted to recordings.

    Attributes:
        plateau: pA into the soma from a dendrite that is fully open.
        backward: pA into the dendrite while a spike runs back.
        opening: mV of the dendrite at which the plateau is half open.
        width: mV over which it opens.
        noise: pA, standard deviation of the somatic noise current.
        soma_time: in which the soma forgets.
        soma_capacity: of the soma.
        dendrite_time: in which the dendrite forgets.
        dendrite_capacity: of the dendrite.
        regenerative: pA into the dendrite itself when it is fully open.
        adaptation: pA that each spike takes from the soma.
        adaptation_time: in which that fades.
        recovery: pA that each mV of the dendrite calls up against itself.
        recovery_time: in which it comes.
        refractory: ms of rest after a spike.
        lasting: ms of the whole simulation.
    """

    plateau: float = 1300.0
    backward: float = 2600.0
    opening: float = -38.0
    width: float = 6.0
    noise: float = 450.0
    soma_time: float = 16.0
    soma_capacity: float = 370.0
    dendrite_time: float = 7.0
    dendrite_capacity: float = 170.0
    regenerative: float = 1200.0
    adaptation: float = 200.0
    adaptation_time: float = 100.0
    recovery: float = 13.0
    recovery_time: float = 30.0
    refractory: float = 3.0
    lasting: float = 1000.0

    def rates(
        self,
        currents: Tensor,
        contexts: Tensor,
        place: str,
        populations: int,
        size: int,
        generator: torch.Generator,
        run: Run,
    ) -> Tensor:
        """Mean firing rates in Hz, (P, C, I).

        Args:
            currents: pA into the soma.
            contexts: pA of context.
            place: where the context goes, "dendrite" or "soma".
            populations: P, each with noise of its own.
            size: N.
            generator: of the noise.
            run: told how far it is.
        """
        shape = (populations, len(contexts), len(currents), size)
        soma = currents.view(-1, 1).float().expand(shape)
        context = contexts.view(-1, 1, 1).float().expand(shape)
        soma, apical = (soma + context, 0.0) if place == "soma" else (soma, context)
        v, u = torch.full(shape, REST), torch.full(shape, REST)
        w, z, x, since = (torch.zeros(shape) for _ in range(4))
        since += 1e3
        spikes = torch.zeros(shape)
        steps, warm = round(self.lasting / STEP), round(SETTLING / STEP)
        # An Ornstein-Uhlenbeck current: its step keeps the standard deviation of `noise`.
        keep = 1 - STEP / NOISE_TIME
        fresh = self.noise * (1 - keep**2) ** 0.5
        for step in range(steps):
            x = keep * x + fresh * torch.randn(shape, generator=generator)
            open_ = torch.sigmoid((u - self.opening) / self.width)
            back = ((since > BACK_FROM) & (since <= BACK_UNTIL)) * self.backward
            into = soma + x + self.plateau * open_ - w
            v = v + STEP * ((REST - v) / self.soma_time + into / self.soma_capacity)
            into = self.regenerative * open_ + back + apical - z
            u = u + STEP * ((REST - u) / self.dendrite_time + into / self.dendrite_capacity)
            w = w - STEP * w / self.adaptation_time
            z = z + STEP * (self.recovery * (u - REST) - z) / self.recovery_time
            v = torch.where(since < self.refractory, RESET, v)
            fired = v > THRESHOLD
            v, w = torch.where(fired, RESET, v), w + self.adaptation * fired
            since = torch.where(fired, 0.0, since + STEP)
            if step >= warm:
                spikes += fired
            if step % 200 == 0:
                run.tell((step + 1) / steps)
        return (spikes.mean(-1) / ((steps - warm) * STEP / 1000)).double()
