"""`torch.nn.MultiheadAttention` with any score, and functions that put it into existing models.

This folder covers what torch's module promises: its arguments, layouts and masks. What torch's module
does not have goes into `transformer`.
"""

from regard.nn.multihead.module import MultiheadAttention
from regard.nn.multihead.replace import from_torch, replace_attention

__all__ = ["MultiheadAttention", "from_torch", "replace_attention"]
