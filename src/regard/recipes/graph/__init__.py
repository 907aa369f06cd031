"""Node classification: the class of the nodes of a graph, by attention over its edges.

`classifier.py` is the estimator and `nodes.py` its rows, `net.py` the network, `job.py` its training, `loading.py` its
batches and `features.py` their sparse features; `data.py` has the sets, `files.py` reads graphs for the command line,
`picture.py` draws, and `contenders.py` says what is compared. Needs PyTorch Geometric: `pip install "regard[recipes]"`.
"""

from regard.recipes.graph.classifier import EdgeWeights, NodeClassifier
from regard.recipes.graph.data import load
from regard.recipes.graph.kit import KIT
from regard.recipes.graph.nodes import Nodes

__all__ = ["KIT", "EdgeWeights", "NodeClassifier", "Nodes", "load"]
