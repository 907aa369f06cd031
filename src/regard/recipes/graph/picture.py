"""The picture of the recipe: a node, those around it, and edges as wide as their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from regard.figures.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW, Canvas
from regard.recipes.estimator import RecipeError
from regard.recipes.graph.classifier import NodeClassifier
from regard.recipes.graph.data import EMBEDDED, load
from regard.recipes.graph.nodes import Nodes, checked_nodes
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INKS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY)
MARKS = "osD^v<>"  # of the first classes, of those after them in the same colours, and so on
MOST = 24  # neighbours that are drawn, those with the greatest weights
WIDEST = 5.0  # points of the edge with the greatest weight


def show(recipe: Any, x: Nodes | None = None, language: Language = "en") -> Figure:
    """Draw whom a node attends to in the first layer.

    Args:
        recipe: a trained `NodeClassifier`.
        x: the first of these nodes is drawn; None for the best connected node of the embedded graph that the
            model fits.
        language: of the labels.
    """
    if not isinstance(recipe, NodeClassifier):
        raise RecipeError(f"recipe must be a NodeClassifier, got {type(recipe).__name__}")
    x = default_node(recipe) if x is None else checked_nodes(x)
    if len(x) == 0:
        raise RecipeError("x has no nodes: give the node to draw")
    centre = int(x.index[0])
    weight = weights_into(recipe, x, centre)
    own = weight.pop(centre, None)
    shown = sorted(weight, key=lambda node: -weight[node])[:MOST]
    nodes = [centre, *shown]
    classes = recipe.predict(Nodes(x.graph, nodes))
    canvas = Canvas(language)
    (axes,) = canvas.panels(1, wide=6.4, high=5.4)
    draw_star(axes, recipe, names_of(x), nodes, [weight[node] for node in shown], classes)
    axes.set_axis_off()
    title = heading(names_of(x)(centre), own, len(shown), len(weight))
    axes.set_title(canvas.say(title), loc="left", fontsize=9.5, parse_math=False)
    return canvas.figure


def weights_into(recipe: NodeClassifier, x: Nodes, centre: int) -> dict[int, float]:
    """How much of a node's sum in the first layer comes from each node, as a mean over heads."""
    edges, weights = recipe.attend(Nodes(x.graph, [centre]))
    found: dict[int, float] = {}
    for source, weight in zip(edges[0].tolist(), weights.mean(1).tolist(), strict=True):
        found[source] = found.get(source, 0.0) + weight  # edges may repeat
    return found


def draw_star(
    axes: Any,
    recipe: NodeClassifier,
    name: Any,
    nodes: list[int],
    weights: list[float],
    classes: Any,
) -> None:
    """The centre with its neighbours around it, coloured by the predicted class."""
    star = nx.star_graph(len(nodes) - 1)
    place = nx.circular_layout(star.subgraph(range(1, len(nodes)))) | {0: np.zeros(2)}
    # A node that attends to itself alone may leave the others weights that are rounded to 0.
    greatest = max(weights, default=0.0) or 1.0
    for number, weight in enumerate(weights, start=1):
        (x0, y0), (x1, y1) = place[0], place[number]
        axes.plot([x0, x1], [y0, y1], color="#555555", lw=max(WIDEST * weight / greatest, 0.3),
                  zorder=1, solid_capstyle="butt", alpha=0.6)  # fmt: skip
        axes.annotate(f"{weight:.2f}", (0.68 * x1, 0.68 * y1), fontsize=6.5, ha="center",
                      va="center", bbox={"fc": "white", "ec": "none", "pad": 0.6})  # fmt: skip
    kinds = {}
    for label in np.unique(classes):
        chosen = [n for n in range(len(nodes)) if classes[n] == label]
        again, ink = divmod(int(np.searchsorted(recipe.classes_, label)), len(INKS))
        spots = np.array([place[n] for n in chosen])
        kinds[str(label)] = axes.scatter(*spots.T, s=170, color=INKS[ink], marker=MARKS[again % len(MARKS)],
                                         zorder=2, edgecolor="white")  # fmt: skip
    for number, node in enumerate(nodes):
        shift = 14 if number == 0 or place[number][1] > -1e-6 else -14
        ground = {"fc": "white", "ec": "none", "pad": 0.8} if number == 0 else None
        # A dollar sign in a name does not start a formula, here and below.
        axes.annotate(name(node), place[number], (0, shift), textcoords="offset points", fontsize=7,
                      ha="center", va="center", zorder=3, bbox=ground, parse_math=False)  # fmt: skip
    axes.margins(0.12)
    # Handles are named: on its own, a legend leaves out labels that begin with an underscore.
    legend = axes.legend(
        kinds.values(), kinds, frameon=False, fontsize=8, loc="lower right", markerscale=0.7
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def heading(name: str, own: float | None, shown: int, count: int) -> Text:
    """What the picture shows.

    Args:
        name: of the node in the centre.
        own: the weight of the node for itself; None without self-loops.
        shown: neighbours in the picture.
        count: neighbours that the node attends to.
    """
    first = Text(
        f"Whom node {name} attends to: weights of layer 1, mean of its heads",
        f"节点 {name} 注意谁：第 1 层的权重，各头的平均",
    )
    more = []
    if own is not None:
        more.append(Text(f"{own:.2f} to itself", f"对自身 {own:.2f}"))
    if shown < count:
        more.append(
            Text(f"the {shown} greatest of {count} weights", f"{count} 个权重中最大的 {shown} 个")
        )
    more.append(Text("colour: predicted class", "颜色：预测的类别"))
    return Text(
        f"{first.en}\n{'; '.join(one.en for one in more)}",
        f"{first.zh}\n{'；'.join(one.zh for one in more)}",
    )


def names_of(x: Nodes) -> Any:
    """From a node's number to its name, if the graph has names."""
    names = x.graph.names if "names" in x.graph else None
    return str if names is None else lambda node: names[node]


def default_node(recipe: NodeClassifier) -> Nodes:
    """The best connected node of the embedded graph whose features fit the model."""
    recipe.check_fitted()
    for name in EMBEDDED:
        data = load(name)
        graph = data.test.x.graph
        if graph.x.shape[1] == recipe.shape_.in_dim:
            counts = np.bincount(graph.edge_index[1].numpy(), minlength=graph.num_nodes)
            return Nodes(graph, [int(counts.argmax())])
    raise RecipeError(
        f"no embedded graph has {recipe.shape_.in_dim} features for each node: give the node to draw"
    )
