"""`KIT`: the recipe as the command line and comparisons see it."""

from __future__ import annotations

from regard.recipes.graph.classifier import NodeClassifier
from regard.recipes.graph.contenders import arguments, comparison
from regard.recipes.graph.data import GRAPH_SETS, load
from regard.recipes.graph.files import read, write
from regard.recipes.graph.picture import show
from regard.recipes.kit import Kit

KIT = Kit(
    name="graph",
    estimator=NodeClassifier,
    sets=GRAPH_SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
