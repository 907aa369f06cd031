"""Pictures of molecules with the bonds that a prediction attends to.

Two things are coloured: a bond in orange by its weight relative to equal weights (`AttendedMolecule.lift`), on a scale
that is the same for all molecules, and an atom in a blue circle by its weight in the readout. The bonds with the
greatest weights have their rank beside them.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rdkit.Chem import BondType, rdDepictor
from rdkit.Chem.Draw import rdMolDraw2D

from regard.measuring.files import write_atomic
from regard.recipes.molecules.features import parsed
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from regard.figures.canvas import Canvas
    from regard.recipes.molecules.predictor import AttendedMolecule, MoleculePredictor

WIDE, HIGH = 520, 400  # pixels
# Orange and sky blue of Okabe and Ito, which colour-blind readers can tell apart.
BOND_COLOR, ATOM_COLOR = (0.902, 0.624, 0.0), (0.337, 0.706, 0.914)
FULL = 1.5  # the lift of a bond that is drawn in full orange
MARKED_ATOM = 1.25  # an atom's weight, relative to equal weights, from which it has a circle
RANKED = 6  # bonds with a number
SIGNS = {BondType.DOUBLE: "=", BondType.TRIPLE: "≡", BondType.AROMATIC: ":"}
DEFAULT = "CC(=O)Oc1ccccc1C(=O)O"  # aspirin
LEAST = 1.01  # the lift from which a bond counts as attended: below it, rounding would decide
BOND_LEGEND = Text(
    f"weight / equal weight (white: 1, full orange: {FULL:g})",
    f"权重 / 均等权重（白色：1，全橙：{FULL:g}）",
)
ATOM_LEGEND = Text(
    f"blue circle: readout weight / equal weight is {MARKED_ATOM:g} or more",
    f"蓝色圆圈：读出权重 / 均等权重不低于 {MARKED_ATOM:g}",
)


def shades(lift: np.ndarray) -> np.ndarray:
    """How strongly each bond is coloured, 0 to 1: 0 up to an equal weight, 1 from `FULL` times that on."""
    return np.clip((lift - 1) / (FULL - 1), 0, 1)


def toned(share: float, color: tuple[float, float, float]) -> tuple[float, float, float]:
    """The colour between white (0) and the one given (1)."""
    first, second, third = (1 - share * (1 - one) for one in color)
    return first, second, third


def ranked(found: AttendedMolecule) -> list[int]:
    """The bonds with the greatest lift, greatest first; none of those with equal weights or less."""
    order = np.argsort(-found.lift, kind="stable")[:RANKED]
    return [int(n) for n in order if found.lift[n] >= LEAST]


def painted(found: AttendedMolecule, drawer: Any) -> Any:
    """What the drawer makes of the molecule with coloured bonds, circles around atoms, and ranks beside bonds."""
    molecule = parsed(found.smiles)
    rdDepictor.Compute2DCoords(molecule)
    rdDepictor.StraightenDepiction(molecule)
    for rank, bond in enumerate(ranked(found), 1):
        molecule.GetBondWithIdx(bond).SetProp("bondNote", str(rank))
    tones = shades(found.lift)
    shown = np.flatnonzero(found.lift >= LEAST).tolist()
    bonds = {n: toned(float(tones[n]), BOND_COLOR) for n in shown}
    share = found.atom_weights * len(found.atoms)  # 1 for equal weights
    atoms = {n: toned(0.6, ATOM_COLOR) for n, one in enumerate(share) if one >= MARKED_ATOM}
    options = drawer.drawOptions()
    options.useBWAtomPalette()  # colours of elements would mix with those of weights
    options.setBondNoteColour((0.25, 0.25, 0.25))
    options.fillHighlights = True
    options.bondLineWidth, options.annotationFontScale = 3, 0.65
    options.minFontSize = (
        drawer.Width() // 45
    )  # of large molecules, whose ranks would be too small to read
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer,
        molecule,
        highlightAtoms=list(atoms),
        highlightBonds=list(bonds),
        highlightAtomColors=atoms,
        highlightBondColors=bonds,
        highlightAtomRadii={n: 0.2 + 0.06 * min(float(share[n]), 4.0) for n in atoms},
    )
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def as_svg(found: AttendedMolecule) -> str:
    """The picture as SVG, without words."""
    return painted(found, rdMolDraw2D.MolDraw2DSVG(WIDE, HIGH))


def draw(model: MoleculePredictor, smiles: str, path: str | os.PathLike[str]) -> AttendedMolecule:
    """Write an SVG of the molecule with the attended bonds highlighted, and return what it shows."""
    found = model.attend(smiles)
    write_atomic(Path(path), as_svg(found).encode())
    return found


def captioned(model: MoleculePredictor, smiles: str, name: Text) -> dict[str, str]:
    """The picture for a report: SVG, and in both languages what it shows."""
    return {
        "en": f"Where the prediction for {name.en} looks: the darker the orange, the more weight a bond has "
        f"relative to equal weights (white: equal or less; full orange: {FULL:g} times or more). Numbers rank the "
        f"bonds. A blue circle marks an atom with {MARKED_ATOM:g} times an equal weight or more in the readout.",
        "zh": f"对{name.zh}的预测关注何处：橙色越深，键的权重相对均等权重越大（白色：均等或更小；全橙：{FULL:g} 倍"
        f"或以上）。数字为键的排名。蓝色圆圈标出读出权重达到均等权重 {MARKED_ATOM:g} 倍或以上的原子。",
        "svg": as_svg(model.attend(smiles)),
    }


def figure(model: MoleculePredictor, smiles: str, language: Language) -> Figure:
    """The picture with its legend, the prediction, and the weights of the most attended bonds."""
    from matplotlib.image import imread

    from regard.figures.canvas import Canvas

    found = model.attend(smiles)
    canvas = Canvas(language)
    left, right = canvas.panels(2, wide=4.6, high=3.8)
    image = painted(found, rdMolDraw2D.MolDraw2DCairo(2 * WIDE, 2 * HIGH))
    left.imshow(imread(io.BytesIO(image)))
    left.grid(False)
    left.set(xticks=[], yticks=[])
    left.spines[:].set_visible(False)
    value = model.predict([smiles])[0]
    shown = f"{value:.3g}".replace("-", "−") if isinstance(value, float) else str(value)
    canvas.label(left, ATOM_LEGEND, "", Text(f"prediction: {shown}", f"预测：{shown}"))
    left.xaxis.label.set_fontsize(8)
    plot_ranking(canvas, right, found)
    return canvas.figure


def plot_ranking(canvas: Canvas, axes: Axes, found: AttendedMolecule) -> None:
    """Bars for the most attended bonds, in the colours of the picture."""
    order = ranked(found)
    if not order:
        axes.set_axis_off()
        none = Text("no bond has more than an equal weight", "没有键的权重高于均等权重")
        canvas.label(axes, "", "", none if len(found.bonds) else Text("no bonds", "没有键"))
        return
    names = [f"{rank}  {bond_name(found, n)}" for rank, n in enumerate(order, 1)]
    colors = [toned(float(one), BOND_COLOR) for one in shades(found.lift[order])]
    axes.barh(names, found.lift[order] - 1, left=1, color=colors, ec="#888888", lw=0.6, height=0.65)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    canvas.label(axes, BOND_LEGEND, "", Text("most attended bonds", "最受关注的键"))


def bond_name(found: AttendedMolecule, bond: int) -> str:
    """The two elements of a bond with its sign between: "C=O"."""
    first, second = (found.atoms[int(n)] for n in found.bonds[bond])
    kind = parsed(found.smiles).GetBondWithIdx(bond).GetBondType()
    return f"{first}{SIGNS.get(kind, '-')}{second}"
