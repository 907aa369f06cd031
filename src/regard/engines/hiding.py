"""`Hiding`: which pairs of a call are hidden, and which weights it drops, as several engines hand it on.

Shape legend: Z heads of the whole call, one after the other; Q queries, L keys.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Hiding(NamedTuple):
    """What hides pairs or drops weights; None or 0 where there is no such thing.

    causal: query i sees no key after i; as many queries as keys. `stop`, if given, says so too.
    start, stop: (Z or 1, Q) in int32, contiguous: query i sees the keys `start <= j < stop`. Both have
    as many heads.
    query_segment, key_segment: (Z, Q) and (Z, L) in int64, contiguous: a query sees its own segment;
    a negative one is padding.
    seed, dropout: one integer on the device, and the share of weights that are dropped.
    """

    causal: bool = False
    start: Tensor | None = None
    stop: Tensor | None = None
    query_segment: Tensor | None = None
    key_segment: Tensor | None = None
    seed: Tensor | None = None
    dropout: float = 0.0

    def tensors(self) -> list[Tensor]:
        """The tensors that are given, in the order of `names`."""
        given = (getattr(self, name) for name in self.names())
        return [x for x in given if x is not None]

    def names(self, with_stop: bool = False) -> tuple[str, ...]:
        """The names of the tensors that are given; `with_stop` names `stop` too."""
        return tuple(
            name
            for name in TENSOR_FIELDS
            if getattr(self, name) is not None or (with_stop and name == "stop")
        )

    def heads(self, first: int, count: int) -> Hiding:
        """The same for some consecutive heads."""
        end = first + count

        def part(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[first:end]

        return self._replace(
            start=part(self.start),
            stop=part(self.stop),
            query_segment=part(self.query_segment),
            key_segment=part(self.key_segment),
        )


TENSOR_FIELDS = ("start", "stop", "query_segment", "key_segment", "seed")
NOTHING_HIDDEN = Hiding()
