"""Pictures of molecules with the bonds that a prediction attends to."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rdkit.Chem import rdDepictor
from rdkit.Chem.Draw import rdMolDraw2D

from regard.measuring.files import write_atomic
from regard.recipes.molecules.features import parsed
from regard.text import Language, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.recipes.molecules.predictor import AttendedMolecule, MoleculePredictor

WIDE, HIGH = 520, 400  # pixels
# White to the orange of Okabe and Ito, which colour-blind readers see as well.
FAR = (0.902, 0.624, 0.0)
DEFAULT = "CC(=O)Oc1ccccc1C(=O)O"  # aspirin


def shades(lift: np.ndarray) -> np.ndarray:
    """How strongly each bond is coloured, 0 to 1: 0 up to the weight of an average bond, 1 for the greatest."""
    above = np.clip(lift - 1, 0, None)
    most = above.max(initial=0)
    return above / most if most > 0 else above


def painted(found: AttendedMolecule, drawer: Any) -> Any:
    """Draw the molecule with its bonds coloured by `lift`, and its atoms marked by their weights in the readout."""
    molecule = parsed(found.smiles)
    rdDepictor.Compute2DCoords(molecule)
    bonds = {n: toned(float(one)) for n, one in enumerate(shades(found.lift)) if one > 0}
    share = found.atom_weights * len(found.atoms)  # 1 for equal weights
    atoms = {n: toned(0.5) for n, one in enumerate(share) if one > 1.25}
    radii = {n: 0.2 + 0.1 * min(float(share[n]), 4.0) for n in atoms}
    drawer.drawOptions().fillHighlights = True
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer,
        molecule,
        highlightAtoms=list(atoms),
        highlightBonds=list(bonds),
        highlightAtomColors=atoms,
        highlightBondColors=bonds,
        highlightAtomRadii=radii,
    )
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def toned(share: float) -> tuple[float, float, float]:
    """The colour between white (0) and orange (1)."""
    first, second, third = (1 - share * (1 - one) for one in FAR)
    return first, second, third


def as_svg(found: AttendedMolecule) -> str:
    """The picture as SVG."""
    return painted(found, rdMolDraw2D.MolDraw2DSVG(WIDE, HIGH))


def draw(model: MoleculePredictor, smiles: str, path: str | os.PathLike[str]) -> AttendedMolecule:
    """Write an SVG of the molecule with the attended bonds highlighted, and return what it shows."""
    found = model.attend(smiles)
    write_atomic(Path(path), as_svg(found).encode())
    return found


def figure(model: MoleculePredictor, smiles: str, language: Language) -> Figure:
    """The picture with the prediction and the weights of the most attended bonds, for pages and the command."""
    from matplotlib.image import imread

    from regard.figures.canvas import ORANGE, Canvas

    found = model.attend(smiles)
    canvas = Canvas(language)
    left, right = canvas.panels(2, wide=4.6, high=3.6)
    image = painted(found, rdMolDraw2D.MolDraw2DCairo(2 * WIDE, 2 * HIGH))
    left.imshow(imread(io.BytesIO(image)))
    left.set_axis_off()
    value = model.predict([smiles])[0]
    said = Text(f"prediction {value:.3g}", f"预测值 {value:.3g}")
    canvas.label(left, "", "", said)
    order = np.argsort(-found.lift)[:10][::-1]
    names = [f"{bond_name(found, n)}" for n in order]
    right.barh(range(len(order)), found.lift[order], color=ORANGE, height=0.65)
    right.set_yticks(range(len(order)), names)
    right.axvline(1, color="#444444", ls=(0, (4, 3)), lw=1.1)
    canvas.label(
        right,
        Text("weight / weight of an average bond", "权重 / 平均键的权重"),
        "",
        Text("most attended bonds", "最受关注的键"),
    )
    return canvas.figure


def bond_name(found: AttendedMolecule, bond: int) -> str:
    """The two atoms of a bond with their numbers: "C1-O2"."""
    first, second = (int(n) for n in found.bonds[bond])
    return f"{found.atoms[first]}{first}-{found.atoms[second]}{second}"
