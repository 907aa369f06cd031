"""`Base` and `Changed`: one pass that is remembered, and passes that are compared with it.

A key is (path of a module or name of a site, what, index of the module's call). What is "in0" or "out0" of
a module, or "query", "key", "value" or "out" of a site.

Shape legend: B samples, T tokens, F features.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor.laws.changing import Change
from regard.doctor.laws.following import Summed
from regard.doctor.laws.layout import Sizes, arranged, tensors_in
from regard.doctor.laws.streams import Stream, places_in, reads_shifted
from regard.doctor.seen import Seen

Key = tuple[str, str, int]
LOWEST = 1e30
SIDES = ("query", "key", "value", "out")


class SiteCall(NamedTuple):
    """An attention call of the base pass.

    Attributes:
        path: its module.
        route: "sdpa", "softmax" or "regard".
        code: the line that calls it, "" if not known.
        stack: the modules that ran, the outermost first.
    """

    path: str
    route: str
    code: str
    stack: tuple[str, ...]


class Delta(NamedTuple):
    """How far a tensor moved.

    Attributes:
        moved: (B, T), the largest change of a feature; T is 1 without tokens.
        size: (B, T), the largest feature of the base pass.
        tokens: whether the second dim is tokens.
    """

    moved: Tensor
    size: Tensor
    tokens: bool


class Listening:
    """Numbers the events of a pass."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams
        self.stack: list[str] = []
        self.counts: Counter[str] = Counter()
        self.open: list[int] = []
        self.sites: Counter[str] = Counter()
        # Streams that an embedding reads, by name, and whether shifted by one.
        self.read: dict[str, bool] = {}

    def entering(self, path: str, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Number the call and see its inputs."""
        self.counts[path] += 1
        self.stack.append(path)
        self.open.append(self.counts[path])
        changed = self.isolated(path, args, kwargs)
        args, kwargs = changed or (args, kwargs)
        for i, (_, x) in enumerate(tensors_in((*args, *kwargs.values()), depth=2)):
            self.event((path, f"in{i}", self.open[-1]), x)
        return changed

    def isolated(self, path: str, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Other arguments for a module, or None."""
        return None

    def leaving(self, path: str, output: Any) -> None:
        """See the outputs of a module."""
        if path not in self.stack:
            return
        while self.stack[-1] != path:
            self.stack.pop()
            self.open.pop()
        for i, (_, x) in enumerate(tensors_in(output, depth=3)):
            self.event((path, f"out{i}", self.open[-1]), x)
        self.stack.pop()
        self.open.pop()

    def embedded(self, ids: Tensor, output: Tensor) -> Tensor:
        """Change the embeddings of inputs."""
        if ids.is_floating_point():
            return output
        for stream in self.streams:
            places = places_in(ids, stream)
            if places is not None:
                if stream.name not in self.read:
                    self.read[stream.name] = stream.shifted and reads_shifted(ids, stream)
                return self.changed(output, places, stream)
        return output

    def changed(self, x: Tensor, places: Tensor, stream: Stream) -> Tensor:
        """The embeddings that the model goes on with."""
        return x

    def site(self, path: str, route: str, code: str) -> str:
        """Name the call as the vitals do."""
        self.sites[path] += 1
        return path if self.sites[path] == 1 else f"{path}#{self.sites[path]}"

    def side(self, site: str, what: str, x: Tensor) -> None:
        """See a side of a call."""
        self.event((site, what, 1), x)

    def call(self, site: str, seen: Seen | None, summed: Summed | None) -> None:
        """Nothing here."""

    def dropout(self, path: str, share: float, code: str) -> None:
        """Nothing here."""

    def event(self, key: Key, x: Tensor) -> None:
        """See a tensor."""
        raise NotImplementedError


class Base(Listening):
    """The pass that others are compared with: it keeps every tensor that it sees, uncopied."""

    def __init__(
        self,
        streams: list[Stream],
        read: Callable[[str, SiteCall, Seen | None, Summed | None], None],
    ) -> None:
        super().__init__(streams)
        self.tensors: dict[Key, tuple[Tensor, int]] = {}
        self.stacks: dict[Key, tuple[str, ...]] = {}
        self.row_sizes: dict[Key, Tensor] = {}  # the same in all passes that are compared
        self.calls: dict[str, SiteCall] = {}
        self.dropouts: dict[str, tuple[float, str]] = {}
        self.reader = read

    def site(self, path: str, route: str, code: str) -> str:
        """Keep where the call is made."""
        name = super().site(path, route, code)
        self.calls[name] = SiteCall(path, route, code, tuple(self.stack))
        return name

    def call(self, site: str, seen: Seen | None, summed: Summed | None) -> None:
        """Read the weights while they are there."""
        self.reader(site, self.calls[site], seen, summed)

    def dropout(self, path: str, share: float, code: str) -> None:
        """Keep where dropout is on."""
        self.dropouts.setdefault(path, (share, code))

    def event(self, key: Key, x: Tensor) -> None:
        """Keep a tensor."""
        x = x.detach()
        self.tensors[key] = x, x._version
        self.stacks[key] = tuple(self.stack)

    def settle(self) -> None:
        """Forget tensors that were changed in place after they were seen: they cannot be compared."""
        self.tensors = {
            key: (x, version) for key, (x, version) in self.tensors.items() if x._version == version
        }


class Changed(Listening):
    """A pass whose tensors are compared with those of the base pass as they are made.

    Args:
        base: the base pass.
        sizes: of the batch of this pass.
        change: what is changed about the inputs; None for nothing.
        owners: modules to run in isolation: on their inputs of the base pass, changed. Else the inputs
            of the model are changed.
        order: for each sample of the base batch, its index in this batch.
    """

    def __init__(
        self,
        base: Base,
        sizes: Sizes,
        change: Change | None = None,
        owners: frozenset[str] = frozenset(),
        order: Tensor | None = None,
        own: Sizes | None = None,
    ) -> None:
        super().__init__(base.streams)
        self.base, self.sizes, self.change, self.owners = base, sizes, change, owners
        self.order, self.own_sizes = order, own or sizes
        self.deltas: dict[Key, Delta] = {}
        # By tensor: what one module gives another takes, and it is compared once.
        self.compared: dict[int, tuple[Any, tuple, Delta]] = {}

    def changed(self, x: Tensor, places: Tensor, stream: Stream) -> Tensor:
        """Change embeddings of the model's inputs."""
        if self.change is None or self.owners:
            return x
        if self.change.only is not None and stream.name not in self.change.only:
            return x
        return self.change.of_places(x, places, stream.length)

    def isolated(self, path: str, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """The inputs of the base pass, changed, for a module that attends."""
        if path not in self.owners or self.change is None:
            return None
        place = 0
        done: dict[int, Any] = {}

        def other(x: Any) -> Any:
            nonlocal place
            index = place
            place += sum(1 for _ in tensors_in(x, depth=1))
            kept = self.base.tensors.get((path, f"in{index}", self.open[-1]))
            floats = isinstance(x, Tensor) and x.is_floating_point()
            if not floats or kept is None or kept[0].shape != x.shape:
                return x
            # A tensor that is query, key and value at once stays one: torch looks at that.
            done.setdefault(id(x), self.changed_tokens(kept[0]))
            return done[id(x)]

        return tuple(other(x) for x in args), {name: other(x) for name, x in kwargs.items()}

    def changed_tokens(self, x: Tensor) -> Tensor:
        """A tensor of the base pass with its tokens changed, in its own layout."""
        s, sizes = x.shape, self.sizes
        if x.ndim != 3 or self.change is None:
            return x
        turned = s[1] == sizes.batch and s[0] in sizes.lengths
        if turned and (not sizes.batch_first or s[0] != sizes.batch):
            return self.change.of_tokens(x.transpose(0, 1), s[0]).transpose(0, 1)
        if s[0] == sizes.batch and s[1] in sizes.lengths:
            return self.change.of_tokens(x, s[1])
        return x

    def event(self, key: Key, x: Tensor) -> None:
        """Compare a tensor."""
        before = self.base.tensors.get(key)
        if before is None:
            return
        of_call = key[1] in SIDES
        base = before[0]
        same = (x._version, base.data_ptr(), base.shape, base.stride(), of_call)
        known = self.compared.get(id(x))
        if known is not None and known[0]() is x and known[1] == same:
            self.deltas[key] = known[2]
            return
        old = arranged(base, self.sizes, of_call=of_call)
        new = arranged(x.detach(), self.own_sizes, of_call=of_call)
        if old is None or new is None or old[1] != new[1]:
            return
        after = new[0] if self.order is None else new[0][self.order]
        if after.shape == old[0].shape:
            if key not in self.base.row_sizes:
                self.base.row_sizes[key] = size_of_rows(old[0])
            moved = moved_rows(old[0], after)
            self.deltas[key] = Delta(moved, self.base.row_sizes[key], old[1])
            self.compared[id(x)] = weakref.ref(x), same, self.deltas[key]


def moved_rows(before: Tensor, after: Tensor) -> Tensor:
    """How far (B, T, F) moved, (B, T); equal NaN and infinities have not moved."""
    with torch.no_grad():
        moved = (after - before).abs_().amax(-1).float()
        if not bool(moved.isfinite().all()):
            same = (before == after) | (before.isnan() & after.isnan())
            each = (after - before).abs().float().nan_to_num(torch.inf, torch.inf)
            moved = each.masked_fill(same, 0.0).amax(-1)
        return moved.cpu()


def size_of_rows(x: Tensor) -> Tensor:
    """The largest feature of (B, T, F) in each row, (B, T)."""
    with torch.no_grad():
        size = x.abs().amax(-1).float()
        if not bool((size < LOWEST).all()):
            # A score of the lowest number, as masks have it, is no size to measure noise by.
            each = x.abs().float().nan_to_num(0.0, 0.0)
            size = each.masked_fill(each > LOWEST, 0.0).amax(-1)
        return size.cpu()
