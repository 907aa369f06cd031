"""The largest data that is read: a share of the free memory, checked before memory is allocated."""

from __future__ import annotations

import torch

from regard.choosing.training.errors import ChooseError
from regard.measuring import memory

# Arrays may take this fraction of the free memory, because they are copied a few times.
SHARE = 0.2


def check_size(size: int, where: str, what: str = "") -> None:
    """Raise ChooseError if arrays would take too much memory.

    Args:
        size: bytes when unpacked.
        where: the data in the message.
        what: the part of the data that takes these bytes, if not all of it.
    """
    free = memory.available(torch.device("cpu"))
    if size > SHARE * free:
        raise ChooseError(
            f"{where}: too large: {memory.show(size)}{what}, of {memory.show(free)} free memory a file "
            f"may take {SHARE:.0%}. Give fewer rows"
        )
