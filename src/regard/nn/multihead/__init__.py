"""`torch.nn.MultiheadAttention` with any score, and how to put it into models that have torch's.

Here belongs what torch's module promises: its arguments, layouts, masks and errors. What torch has no
word for goes into `transformer`.
"""

from regard.nn.multihead.module import MultiheadAttention
from regard.nn.multihead.replace import from_torch, replace_attention

__all__ = ["MultiheadAttention", "from_torch", "replace_attention"]
