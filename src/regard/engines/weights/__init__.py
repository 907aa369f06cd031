"""Softmax of logits that exist already, with the mean of the weights over heads from the same pass.

`call.py` is its host side and gradient, `kernels.py` the kernel for a GPU. For modules that return weights:
engines that never build the Q x L matrix have nothing to gain here.
"""

from regard.engines.weights.call import mean_weights

__all__ = ["mean_weights"]
