"""`LawBench`: a model, its batch, what is declared, and the passes that laws share.

A pass is made when a law first asks for it, and kept. The budget is stated in `FORWARD` and `BACKWARD`.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.doctor.capture.names import named_modules, unwrapped
from regard.doctor.laws.changing import Change, Replace, Swap
from regard.doctor.laws.following import Summed
from regard.doctor.laws.law import NOISES
from regard.doctor.laws.layout import Sizes, arranged, tensors_in
from regard.doctor.laws.passes import SIDES, Base, Changed, Delta, Key, SiteCall
from regard.doctor.laws.recording import Recorder
from regard.doctor.laws.streams import Stream, layout_of, sample_count, streams_of
from regard.doctor.laws.weights import SiteFacts, facts_of
from regard.doctor.running import call, mapped
from regard.doctor.seen import Seen

if TYPE_CHECKING:
    from regard.doctor.laws.declared import Declared

FORWARD, BACKWARD = 12, 3
SEED, OTHER_SEED = 0, 1
INFLUENCES = 2  # passes that change one token of each sample
# Rounding: a number is uncertain by this many of its last digits, whatever the noise that was measured.
FLOOR, HALF_FLOOR = 64, 8
# Noise beyond this share of a tensor's size is no noise: the law of one sample is broken.
MOST_NOISE = 0.5  # the exponent of the rounding: half of the digits


class LawBench:
    """A model under test, inside `untouched`; the laws are given one."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        batch_first: bool | None = None,
        restore: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.batch, self.restore = model, batch, restore
        # Inside a wrapper for compiling or parallel training are the names of arguments, and the config.
        self.inner = unwrapped(model)
        self.root = type(self.inner).__name__  # the name of the model itself, as a path
        first = layout_of(model, batch_first)
        self.streams = streams_of(self.inner, batch, first)
        lengths = tuple(dict.fromkeys(s.length for s in self.streams if s.length > 1))
        self.sizes = Sizes(sample_count(batch, self.streams, first), lengths, first)
        self.declared: Declared
        self.forward = self.backward = 0
        self.facts: dict[str, SiteFacts] = {}
        # What was seen of each call: tensors of the base pass, uncopied.
        self.shown: dict[str, tuple[Seen | None, Summed | None]] = {}
        self.base, self.output = self._first_pass()
        # Patches of a picture, memories and the like have lengths that no input has.
        seen = [n for facts in self.facts.values() for n in facts.shape if n > 1]
        self.sizes = self.sizes._replace(lengths=tuple(dict.fromkeys((*lengths, *seen))))
        # Only streams that reach the model can be changed.
        read = self.base.read
        self.streams = [
            s._replace(shifted=read.get(s.name, False))
            for s in self.streams
            if s.ids is None or s.name in read
        ]
        self.base.streams = self.streams

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """The modules by path."""
        return {name or type(x).__name__: x for name, x in named_modules(self.model)}

    @property
    def calls(self) -> dict[str, SiteCall]:
        """The attention calls, in the order in which they are made."""
        return self.base.calls

    @property
    def owners(self) -> frozenset[str]:
        """The modules that attend, without the model itself."""
        own = {x.path for x in self.calls.values()}
        return frozenset(own - {self.root, ""})

    @property
    def target(self) -> Stream | None:
        """The stream that the rows of the output belong to: the decoder's, if there are two."""
        lengths = {x.shape[1] for x in self.rows.values()}
        found = [s for s in self.streams if s.length in lengths]
        return found[-1] if found else None

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """The outputs with a row for each token, (B, T, F), by name."""
        found = {}
        for name, x in tensors_in(self.output):
            as_rows = arranged(x, self.sizes)
            if as_rows is not None and as_rows[1]:
                found[name] = as_rows[0]
        return found

    def _first_pass(self) -> tuple[Base, Any]:
        base = Base(self.streams, self._read)
        output = self._run(base, self.batch)
        self._outputs(base, output)
        base.settle()
        return base, output

    def _read(self, site: str, made: SiteCall, seen: Seen | None, summed: Summed | None) -> None:
        self.shown[site] = seen, summed
        found = facts_of(made, seen, summed)
        if found is not None:
            self.facts[site] = found

    def _run(self, listener: Any, batch: Any, seed: int = SEED) -> Any:
        """One forward pass; the same random numbers each time unless another seed is given."""
        self.forward += 1
        if seed != OTHER_SEED:
            self.restore()
        torch.manual_seed(seed)
        with Recorder(self.model, listener).start(), torch.no_grad():
            return call(self.model, batch)

    def _outputs(self, listener: Any, output: Any) -> None:
        listener.stack.clear()
        for name, x in tensors_in(output):
            listener.event(("", f"output:{name}", 1), x)

    def changed(
        self, change: Change | None, *, isolated: bool = False, seed: int = SEED
    ) -> dict[Key, Delta]:
        """What moved in a pass with changed inputs."""
        owners = self.owners if isolated else frozenset[str]()
        listener = Changed(self.base, self.sizes, change, owners)
        batch = self.batch if isolated or change is None else self.with_vectors(change)
        self._outputs(listener, self._run(listener, batch, seed))
        return listener.deltas

    def with_vectors(self, change: Change) -> Any:
        """The batch with its streams of vectors changed."""
        new: dict[int, Tensor] = {}
        for stream in self.streams:
            x = stream.given
            if stream.ids is not None or (change.only and stream.name not in change.only):
                continue
            if stream.length == 0:
                flat = change.of_tokens(x.flatten(1).unsqueeze(1), 0)
                new[id(x)] = flat.reshape(x.shape)
            elif self.sizes.batch_first:
                new[id(x)] = change.of_tokens(x, stream.length)
            else:
                new[id(x)] = change.of_tokens(x.transpose(0, 1), stream.length).transpose(0, 1)
        return mapped(self.batch, lambda x: new.get(id(x), x))

    # The passes that several laws read.

    @cached_property
    def reordered(self) -> dict[Key, Delta] | None:
        """The batch in reverse order, or a batch of one twice, compared in the old order."""
        count = self.sizes.batch
        alone = count == 1
        order = torch.arange(1) if alone else torch.arange(count - 1, -1, -1)
        sizes = self.sizes._replace(batch=2 if alone else count)
        listener = Changed(self.base, self.sizes, order=order, own=sizes)
        try:
            output = self._run(listener, rearranged(self, alone))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None  # a model for batches of one size
        self._outputs(listener, output)
        return listener.deltas

    @cached_property
    def tolerance(self) -> dict[Key, float]:
        """By how much a tensor of the base pass may move, over its own size."""
        found = {}
        deltas = self.reordered or {}
        for key, (x, _) in self.base.tensors.items():
            rounding = torch.finfo(x.dtype).eps
            noise, delta = 0.0, deltas.get(key)
            if delta is not None and float(delta.size.max()) > 0:
                noise = float(delta.moved.max()) / float(delta.size.max())
            # Samples that mix move by far more than rounding: that is no noise.
            noise = noise if noise < rounding**MOST_NOISE else 0.0
            floor = FLOOR if rounding < 1e-4 else HALF_FLOOR
            found[key] = max(NOISES * noise, floor * rounding)
        return found

    def dirty(self, key: Key, delta: Delta) -> Tensor:
        """(B, T), True where a tensor moved by more than noise."""
        size = torch.maximum(delta.size, 0.01 * delta.size.max())
        return delta.moved > self.tolerance.get(key, 1.0) * size.clamp(min=1e-30)

    @cached_property
    def changed_tokens(self) -> list[Tensor]:
        """For each influence pass the token (B,) of each sample that it changes, counted in the target."""
        target = self.target
        if target is None:
            return []
        length, count = target.length, self.sizes.batch
        real = self.declared.real.get(target.name)
        passes = INFLUENCES + (count == 1)
        places = spread(length, passes * count)
        found = []
        for number in range(passes):
            chosen = torch.tensor([places[number * count + b] for b in range(count)])
            if real is not None:
                chosen = torch.stack([nearest(real[b].cpu(), chosen[b]) for b in range(count)])
            found.append(chosen)
        return found

    @cached_property
    def influences(self) -> list[dict[Key, Delta]]:
        """Passes that change one token of each sample of the target."""
        target = self.target
        if target is None:
            return []
        return [
            self.changed(Replace({target.length: one_hot(at, target.length)}, only=(target.name,)))
            for at in self.changed_tokens
        ]

    @cached_property
    def alone(self) -> tuple[dict[Key, Delta], dict[int, Tensor]] | None:
        """Each module that attends on its own inputs with one token changed, and these tokens by length."""
        if not self.owners or not self.sizes.lengths:
            return None
        count = self.sizes.batch
        at = {
            n: torch.tensor([(n // 2 + b) % n if n > 2 else n - 1 for b in range(count)])
            for n in self.sizes.lengths
        }
        for stream in self.streams:
            real = self.declared.real.get(stream.name)
            if real is not None and stream.length in at:
                both = zip(real.cpu(), at[stream.length], strict=True)
                at[stream.length] = torch.stack([nearest(r, a) for r, a in both])
        masks = {n: one_hot(x, n) for n, x in at.items()}
        return self.changed(Replace(masks), isolated=True), at

    @cached_property
    def swapped(self) -> tuple[dict[Key, Delta], dict[int, tuple[int, int]]]:
        """Two neighbours in each sample change places in the inputs."""
        return self.changed(Swap(self.pairs)), self.pairs

    @cached_property
    def swapped_alone(self) -> dict[Key, Delta]:
        """The same in the inputs of each module that attends, alone."""
        return self.changed(Swap(self.pairs), isolated=True)

    @property
    def pairs(self) -> dict[int, tuple[int, int]]:
        """Two neighbours for each length: what relative positions tell apart best."""
        return {s.length: (s.length // 2 - 1, s.length // 2) for s in self.streams if s.length >= 4}

    def of_sites(self, deltas: Mapping[Key, Delta], site: str) -> dict[str, tuple[Key, Delta]]:
        """The sides of a call that were compared."""
        return {
            what: ((site, what, 1), deltas[site, what, 1])
            for what in SIDES
            if (site, what, 1) in deltas
        }


def spread(length: int, count: int) -> list[int]:
    """So many tokens, the last and the second first, then those between, halving the gaps."""
    found = [
        length - 1,
        1 % length,
        length // 2,
        length // 4,
        3 * length // 4,
        2 % length,
        length // 3,
    ]
    step = 5 if length % 5 else 7
    more = [(length - 2 - step * i) % length for i in range(count)]
    return (found + more)[:count]


def nearest(real: Tensor, place: Tensor) -> Tensor:
    """The token nearest to a place that is no padding; the place itself where all is padding."""
    known = real.nonzero().flatten()
    return place if not len(known) else known[(known - place).abs().argmin()]


def one_hot(at: Tensor, length: int) -> Tensor:
    """(B, T), True at one token of each sample."""
    return torch.arange(length) == at[:, None]


def rearranged(bench: LawBench, twice: bool) -> Any:
    """The batch with its samples in reverse order, or a batch of one twice."""
    count, first = bench.sizes.batch, bench.sizes.batch_first
    turned = {id(s.given) for s in bench.streams if not first and s.length}

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim == 0:
            return x
        square = x.ndim == 2 and x.shape[0] == x.shape[1] and x.shape[0] in bench.sizes.lengths
        dim = 1 if id(x) in turned else 0
        if x.shape[dim] != count or (square and id(x) not in {id(s.given) for s in bench.streams}):
            return x
        return torch.cat([x, x], dim) if twice else x.flip(dim)

    return mapped(bench.batch, one)
