"""Node classification: the class of the nodes of a graph, by attention over its edges.

`NodeClassifier` is the estimator, `Nodes` its rows. Needs PyTorch Geometric: `pip install "regard[recipes]"`.
"""

from regard.recipes.graph.classifier import EdgeWeights, NodeClassifier
from regard.recipes.graph.contenders import arguments, comparison
from regard.recipes.graph.data import SETS, load
from regard.recipes.graph.files import read, write
from regard.recipes.graph.nodes import Nodes
from regard.recipes.graph.picture import show
from regard.recipes.kit import Kit

KIT = Kit("graph", NodeClassifier, SETS, arguments, load, read, write, show, comparison)

__all__ = ["KIT", "EdgeWeights", "NodeClassifier", "Nodes", "load"]
