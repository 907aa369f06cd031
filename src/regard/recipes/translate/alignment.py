"""`Alignments`: pictures of how much each output attends to each input, for the page and for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard import plot
from regard.figures.canvas import composed
from regard.recipes.estimator import Recipe, RecipeError
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

DARKEST = (
    0.5  # the least weight at the dark end of the colours: equal small weights are not drawn dark
)
VALUES = 12  # up to so many inputs the weights are written into the squares


@dataclass(frozen=True)
class Alignments:
    """The pictures of one recipe.

    Attributes:
        recipe: its class.
        legend: what is drawn.
        example: the input to draw of a model where none is given.
        attended: from a model and an input to labels of the inputs, labels of the outputs, and the weights
            (outputs, inputs).
    """

    recipe: type[Recipe]
    legend: Text
    example: Callable[[Any], str]
    attended: Callable[[Any, str], tuple[list[str], list[str], Tensor]]

    def show(
        self, model: Recipe, x: Sequence[str] | str | None, language: Language = "en"
    ) -> Figure:
        """The alignment of an input with its output; of an example if none is given."""
        if not isinstance(model, self.recipe):
            raise RecipeError(f"expected {self.recipe.__name__}, got {type(model).__name__}")
        text = (x if isinstance(x, str) else x[0]) if x else self.example(model)
        return self.figure(model, text, text, self.legend.of(language))

    def figure(
        self, model: Recipe, text: str, title: str | None = None, note: str | None = None
    ) -> Figure:
        """The alignment of an input with its output."""
        inputs, outputs, weights = self.attended(model, text)
        return plot.alignment(
            weights,
            inputs,
            outputs,
            title=title,
            note=note,
            values=len(inputs) <= VALUES,
            scale_to=DARKEST,
        )

    def captioned(self, model: Recipe, way: Text) -> dict[str, str]:
        """The picture of the example for a report: SVG, and in both languages what it shows.

        Args:
            model: a trained model.
            way: how it attends.
        """
        text = self.example(model)
        return {
            "en": f"{text}: {way.en}. {self.legend.en}",
            "zh": f"{text}：{way.zh}。{self.legend.zh}",
            "svg": composed(lambda: self.figure(model, text), ["svg"])["svg"].decode(),
        }
