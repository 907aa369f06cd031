"""From SMILES to numbers: atoms and bonds as graphs, descriptors and fingerprints. RDKit does the chemistry.

Shape legend: A atoms, B bonds, E = 2 B directed bonds, F atom features, G bond features, N molecules.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import Descriptors, rdFingerprintGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold

from regard.describe import describe
from regard.recipes.columns import is_table
from regard.recipes.estimator import RecipeError
from regard.text import encodable

# A molecule is featurised once in a process: fits, validations and baselines of a comparison share it.
REMEMBERED = 32_768
FINGERPRINT_BITS = 2048

SYMBOLS = ("C", "N", "O", "S", "F", "Cl", "Br", "I", "P", "B", "Si", "Na", "H")
KINDS = Chem.HybridizationType
HYBRIDS = (KINDS.SP, KINDS.SP2, KINDS.SP3, KINDS.SP3D, KINDS.SP3D2)
BONDS = (
    Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC,
)  # fmt: skip
STEREO = (
    Chem.BondStereo.STEREOE, Chem.BondStereo.STEREOZ,
    Chem.BondStereo.STEREOCIS, Chem.BondStereo.STEREOTRANS,
)  # fmt: skip
RING_SIZES = (3, 4, 5, 6, 7)


class Molecule(NamedTuple):
    """A molecule as a graph.

    Attributes:
        atoms: (A, F) float32.
        ends: (2, E) int64: each bond in both directions, bond b in columns 2 b and 2 b + 1.
        bonds: (E, G) float32.
    """

    atoms: np.ndarray
    ends: np.ndarray
    bonds: np.ndarray


def parsed(smiles: Any, place: str = "") -> Chem.Mol:
    """The RDKit molecule of a SMILES.

    Raises:
        RecipeError: it is no text, is empty or does not parse; the message begins with its place, if one is given.
    """
    where = f"{place}: " if place else ""
    if not isinstance(smiles, str) or not smiles.strip() or not encodable(smiles):
        raise RecipeError(f"{where}expected a SMILES such as 'CCO', got {smiles!r}")
    with rdBase.BlockLogs():  # what RDKit prints about it goes into the message below
        found = Chem.MolFromSmiles(smiles.strip())
        if found is None or found.GetNumAtoms() == 0:
            raise RecipeError(f"{where}{smiles!r} is not a SMILES that RDKit can parse")
    return found


def check_smiles(x: Any, name: str = "x") -> list[str]:
    """The SMILES of a column as a list.

    Raises:
        RecipeError: it is a single text, is empty, or a row does not parse.
    """
    if isinstance(x, str) or not hasattr(x, "__len__"):
        raise RecipeError(f"{name} must be a list of SMILES such as ['CCO', 'C'], got {x!r}")
    if is_table(x):
        raise RecipeError(f"{name} must be a list of SMILES, got {describe(x)}; give one column")
    found = list(x)
    if not found:
        raise RecipeError(f"{name} is empty: give at least one SMILES")
    for row, smiles in enumerate(found):
        if not isinstance(smiles, Hashable) or canonical_or_none(smiles) is None:
            parsed(smiles, f"row {row} of {name}")
    return [str(smiles) for smiles in found]


@lru_cache(REMEMBERED)
def canonical_or_none(smiles: Any) -> str | None:
    """The one SMILES that RDKit writes for this molecule; None where it does not parse."""
    try:
        return Chem.MolToSmiles(parsed(smiles))
    except RecipeError:
        return None


def canonical(smiles: str) -> str:
    """The one SMILES that RDKit writes for this molecule, however it was written."""
    found = canonical_or_none(smiles)
    return Chem.MolToSmiles(parsed(smiles)) if found is None else found


@lru_cache(REMEMBERED)
def scaffold(smiles: str) -> str:
    """The Bemis-Murcko scaffold, rings and what links them, as a SMILES; "" for a molecule without rings."""
    return MurckoScaffold.MurckoScaffoldSmiles(mol=parsed(smiles))


@lru_cache(REMEMBERED)
def featurised(smiles: str) -> Molecule:
    """The graph of a molecule; without bonds `ends` is (2, 0)."""
    found = parsed(smiles)
    atoms = np.array([atom_features(atom) for atom in found.GetAtoms()], np.float32)
    pairs, features = [], []
    for bond in found.GetBonds():
        first, second = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        pairs += [(first, second), (second, first)]
        features += 2 * [bond_features(bond)]
    ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return Molecule(atoms, ends, np.array(features, np.float32).reshape(-1, BOND_WIDTH))


def one_of(value: Any, choices: Sequence[Any]) -> list[float]:
    """One-hot over the choices, with a last place for all others."""
    place = choices.index(value) if value in choices else len(choices)
    return [float(place == number) for number in range(len(choices) + 1)]


def atom_features(atom: Any) -> list[float]:
    """Element, neighbours, hydrogens, charge, hybridisation, chirality, rings and mass of an atom."""
    return [
        *one_of(atom.GetSymbol(), SYMBOLS),
        *one_of(atom.GetDegree(), range(6)),
        *one_of(atom.GetTotalNumHs(includeNeighbors=True), range(5)),
        *one_of(atom.GetFormalCharge(), (-1, 0, 1)),
        *one_of(atom.GetHybridization(), HYBRIDS),
        *one_of(atom.GetChiralTag(), (Chem.CHI_UNSPECIFIED, Chem.CHI_TETRAHEDRAL_CW)),
        float(atom.GetIsAromatic()),
        float(atom.IsInRing()),
        *(float(atom.IsInRingSize(size)) for size in RING_SIZES),
        float(atom.GetNumRadicalElectrons()),
        atom.GetMass() / 100,
    ]


def bond_features(bond: Any) -> list[float]:
    """Type, stereo, conjugation and ring of a bond."""
    return [
        *one_of(bond.GetBondType(), BONDS),
        *one_of(bond.GetStereo(), STEREO),
        float(bond.GetIsConjugated()),
        float(bond.IsInRing()),
    ]


ETHANE = Chem.MolFromSmiles("CC")
ATOM_WIDTH = len(atom_features(ETHANE.GetAtomWithIdx(0)))
BOND_WIDTH = len(bond_features(ETHANE.GetBondWithIdx(0)))


@lru_cache(REMEMBERED)
def descriptors_of(smiles: str) -> np.ndarray:
    """RDKit's 2-D descriptors of a molecule; what is not finite or beyond fp32 becomes 0."""
    found = Descriptors.CalcMolDescriptors(parsed(smiles), missingVal=0.0, silent=True)
    values = np.array(list(found.values()), np.float64)
    # Ipc grows exponentially with the molecule: large ones overflow.
    return np.where(np.isfinite(values) & (np.abs(values) < 1e30), values, 0).astype(np.float32)


def descriptors(smiles: Sequence[str]) -> np.ndarray:
    """RDKit's 2-D descriptors, (N, about 217).

    RDKit's time for a molecule grows with the cube of its atoms: 0.06 s at 60, 1 s at 200, minutes at 1,000.
    """
    with rdBase.BlockLogs():
        return np.stack([descriptors_of(one) for one in smiles])


def featurise(smiles: Sequence[str], beside: bool) -> None:
    """Let RDKit compute the graphs of molecules, and descriptors too if they go in `beside`; both are remembered."""
    for one in check_smiles(smiles):
        featurised(one)
    if beside:
        descriptors(smiles)


@lru_cache(REMEMBERED)
def fingerprint_of(smiles: str) -> np.ndarray:
    """The counted Morgan fingerprint of radius 2 of a molecule."""
    make = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=FINGERPRINT_BITS)
    return make.GetCountFingerprintAsNumPy(parsed(smiles)).astype(np.float32)


def fingerprints(smiles: Sequence[str]) -> np.ndarray:
    """Counted Morgan fingerprints of radius 2, (N, 2048)."""
    return np.stack([fingerprint_of(one) for one in smiles])
