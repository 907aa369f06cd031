"""A spiking neuron with two compartments: a soma that fires, and an apical dendrite that receives context.

P populations, C contexts, I currents, N neurons in a population. Units: ms, mV, pA, pF.

The state of every neuron, each (P, C, I, N): v potential of the soma, u potential of the dendrite, w
adaptation current, z recovery current of the dendrite, x noise current, since: ms since the last spike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.claims.claim import Run

REST, THRESHOLD, RESET = -70.0, -50.0, -70.0
STEP = 0.25
SETTLING = 200.0  # spikes before this time are not counted: all neurons start in the same state
NOISE_TIME = 2.0
# A spike propagates back into the dendrite from the first until the second time after it.
BACK_FROM, BACK_UNTIL = 0.5, 2.5


@dataclass(frozen=True)
class Neuron:
    """A leaky integrate-and-fire soma with adaptation, and a dendrite with a calcium plateau.

    Every spike propagates back into the dendrite as a short pulse. Together with apical input it opens a
    plateau, whose current flows to the soma, so the neuron responds to the coincidence of both. The
    constants are chosen for plausible rates (up to about 100 Hz); they are not fitted to recordings.

    Attributes:
        plateau: current into the soma when the dendrite is fully open, pA.
        backward: current into the dendrite during a backpropagating spike, pA.
        opening: dendritic potential at which the plateau is half open, mV.
        width: width of the sigmoid by which the plateau opens, mV.
        noise: standard deviation of the somatic noise current, pA.
        soma_time: membrane time constant of the soma, ms.
        soma_capacity: membrane capacitance of the soma, pF.
        dendrite_time: membrane time constant of the dendrite, ms.
        dendrite_capacity: membrane capacitance of the dendrite, pF.
        regenerative: current into the dendrite itself when it is fully open, pA.
        adaptation: increase of the adaptation current with each spike, pA.
        adaptation_time: time constant by which the adaptation current decays, ms.
        recovery: recovery current for each mV of the dendrite above rest, pA.
        recovery_time: time constant of the recovery current, ms.
        refractory: refractory period after a spike, ms.
        lasting: duration of the whole simulation, ms.
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
            currents: currents into the soma, pA.
            contexts: context currents, pA.
            place: the compartment that receives the context, "dendrite" or "soma".
            populations: P, each with its own noise.
            size: N.
            generator: of the noise.
            run: receives the progress.
        """
        shape = (populations, len(contexts), len(currents), size)
        soma = currents.view(-1, 1).float().expand(shape)
        context = contexts.view(-1, 1, 1).float().expand(shape)
        soma, apical = (soma + context, 0.0) if place == "soma" else (soma, context)
        v, u = torch.full(shape, REST), torch.full(shape, REST)
        w, z, x, since = (torch.zeros(shape) for _ in range(4))
        since += 1e3  # no spike so far: past the refractory period and any backpropagation
        spikes = torch.zeros(shape)
        steps, warm = round(self.lasting / STEP), round(SETTLING / STEP)
        # The noise is an Ornstein-Uhlenbeck current. This factor keeps its standard deviation at `noise`.
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
