"""The picture of the recipe: where a query found its document.

For texts, which word of the query attends to which of the document; for vectors, the weights of the best documents,
and the documents themselves where they are square images.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.figures.canvas import BLUE, Canvas, drawn
from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve.data import EMBEDDED, load
from regard.recipes.retrieve.documents import Content
from regard.recipes.retrieve.finder import DocumentFinder
from regard.recipes.retrieve.job import all_logits
from regard.recipes.retrieve.reading import VectorReader, WordReader
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLE = "Return the absolute version of a path."
WORDS = 14  # of a document that are drawn, those with the most attention
LISTED = 8  # documents


class WordMatch(NamedTuple):
    """Where a query found a document.

    Attributes:
        name: the document's id.
        asked, found: stems of the query and of the document.
        weights: (asked, found) attention; what a row lacks to 1 went to the sink.
    """

    name: str
    asked: list[str]
    found: list[str]
    weights: np.ndarray


@torch.no_grad()
def best_match(model: DocumentFinder, query: str) -> WordMatch:
    """The attention of the words of a query over those of its best document.

    Raises:
        RecipeError: the model does not attend over words that it knows by name, or none of the query's is known.
    """
    content, reader = model.asked([query]), model.reader_
    if not isinstance(reader, WordReader) or not model.matcher.late_too:
        raise RecipeError(
            "this model does not attend over words: train one with reading='late+hop'"
        )
    bags = model.read(content)
    if not len(bags.types):
        raise RecipeError(f"no document has a word of {query!r}")
    row = int(next(all_logits(model.matcher, bags, model.documents_)).argmax())
    document = model.documents_.take(torch.tensor([row]))
    weights = model.matcher.weights(bags, document).cpu().numpy()
    words = reader.vocabulary.words
    asked, found = ([words[n] for n in one.types.tolist()] for one in (bags, document))
    kept = np.sort(np.argsort(-weights.sum(0), kind="stable")[:WORDS])
    return WordMatch(str(model.names_[row]), asked, [found[n] for n in kept], weights[:, kept])


@torch.no_grad()
def best_weights(model: DocumentFinder, content: Content) -> tuple[np.ndarray, np.ndarray]:
    """Rows and weights of the best documents for the first query, by the softmax over all documents."""
    logits = next(all_logits(model.matcher, model.read(content[:1]), model.documents_))
    weights, rows = logits[0].softmax(0).topk(min(LISTED, len(model.names_)))
    return rows.cpu().numpy(), weights.cpu().numpy()


def show(recipe: Any, x: Any = None, language: Language = "en") -> Figure:
    """Draw where the first query found its document.

    Args:
        recipe: a trained `DocumentFinder`.
        x: queries; None for an example.
        language: of the labels.
    """
    if not isinstance(recipe, DocumentFinder):
        raise RecipeError(f"recipe must be a DocumentFinder, got {type(recipe).__name__}")
    recipe.check_fitted()
    content = recipe.asked(example(recipe) if x is None else x)
    if not len(content):
        raise RecipeError("x is empty: give a query")
    canvas = Canvas(language)
    if isinstance(recipe.reader_, WordReader) and recipe.matcher.late_too:
        (axes,) = canvas.panels(1, wide=7.2, high=3.6)
        draw_match(canvas, axes, best_match(recipe, str(content[0])))
        return canvas.figure
    (axes,) = canvas.panels(1, wide=6.0, high=3.6)
    draw_list(canvas, axes, recipe, content)
    return canvas.figure


def example(model: DocumentFinder) -> Content:
    """A query that a model without inputs is shown with.

    Raises:
        RecipeError: the model knows vectors of another kind than those of the embedded set.
    """
    if not isinstance(model.reader_, VectorReader):
        return [EXAMPLE]
    content = load(EMBEDDED[1]).test.x.content
    if content.shape[1] != model.reader_.blocks[0]:
        raise RecipeError(f"give a query of {model.reader_.blocks[0]} numbers")
    return content[:1]


def draw_match(canvas: Canvas, axes: Axes, match: WordMatch) -> None:
    """Words of the query down, those of the document across."""
    shown = axes.imshow(
        match.weights, cmap="Blues", vmin=0, vmax=max(match.weights.max(), 0.01), aspect="auto"
    )
    axes.set_xticks(
        range(len(match.found)), match.found, rotation=45, ha="right", fontsize=8, parse_math=False
    )
    axes.set_yticks(range(len(match.asked)), match.asked, fontsize=8, parse_math=False)
    axes.grid(False)
    for row, column in zip(*np.nonzero(match.weights >= 0.05), strict=True):
        value = match.weights[row, column]
        ink = "white" if value > 0.6 * match.weights.max() else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
    axes.figure.colorbar(shown, ax=axes, fraction=0.03)
    title = Text(
        f"Where the query found {match.name}: attention of its words (stems; the rest of a row goes to the sink)",
        f"查询如何找到 {match.name}：查询词的注意力（词干；每行余下的归于汇点）",
    )
    axes.set_title(canvas.say(title), loc="left", fontsize=8.5, parse_math=False)


def draw_list(canvas: Canvas, axes: Axes, model: DocumentFinder, content: Content) -> None:
    """Bars for the best documents, with their images if they are square ones."""
    rows, weights = best_weights(model, content)
    axes.bar(range(len(rows)), weights, color=BLUE, width=0.65)
    names = [str(model.names_[row]) for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=45, ha="right", fontsize=8, parse_math=False)
    canvas.label(axes, Text("document", "文档"), Text("weight", "权重"),
                 Text("the best documents, by their weight among all", "最好的文档及其在全部文档中的权重"))  # fmt: skip
    reader = model.reader_
    side = math.isqrt(reader.blocks[0]) if isinstance(reader, VectorReader) else 0
    if not isinstance(reader, VectorReader) or side**2 != reader.blocks[0]:
        return
    high = float(weights.max())
    vectors = model.documents_.table[torch.from_numpy(rows)].cpu() @ reader.axes + reader.mean
    for place, (vector, weight) in enumerate(zip(vectors, weights, strict=True)):
        box = axes.inset_axes(
            (place - 0.4, weight + 0.03 * high, 0.8, 0.3 * high), transform=axes.transData
        )
        box.imshow(vector.view(side, side).numpy(), cmap="gray_r")
        box.set_axis_off()
    axes.set_ylim(0, 1.4 * high)


def captioned(model: DocumentFinder) -> dict[str, str] | None:
    """The picture for a report: SVG, and in both languages what it shows; None if there is none."""
    if not model.matcher.late_too:
        return None
    match = best_match(model, EXAMPLE)

    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.panels(1, wide=7.2, high=3.6)
        draw_match(canvas, axes, match)

    return {
        "en": f"Which words of {match.name} the words of “{EXAMPLE}” attend to: stems; what a row lacks to 1 goes to "
        "the sink.",
        "zh": f"“{EXAMPLE}”的词注意 {match.name} 的哪些词：均为词干；每行不足 1 的部分归于汇点。",
        "svg": drawn(draw, "en", ["svg"])["svg"].decode(),
    }
