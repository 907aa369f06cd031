"""The sets: activities inside RDKit, and ESOL, FreeSolv and BBBP from a folder or by download.

ESOL has 11 and BBBP 64 rows whose molecule occurred before under another spelling, so that splits are by molecule.
The column `logp` of ESOL holds the logarithm of the solubility, whatever its name says. One row of ESOL and three of
FreeSolv have no bonds.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from rdkit import RDConfig

from regard.recipes.datasets import Dataset, Origin, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.molecules.features import canonical, scaffold
from regard.recipes.molecules.splits import grouped_split, scaffold_split
from regard.recipes.sources import (
    DataError,
    PublicSet,
    RemoteFile,
    obtained,
    read_file,
)
from regard.text import Text

SHARES = (0.8, 0.1, 0.1)
CHEMPROP = "https://raw.githubusercontent.com/chemprop/chemprop/"
PUBLIC = PublicSet(
    "molecules",
    (
        RemoteFile(
            "esol.csv.gz",
            CHEMPROP + "9a6522e217b58c18fb9514806ae63ef20a517ae9/deepchem-test/data/delaney.csv",
            "887aa5930b0a7e7fcb76a2d25dc0ebe11c23878ca2d8d1e2204ca2c46b175140",
        ),
        RemoteFile(
            "freesolv.csv.gz",
            CHEMPROP + "b83635bcddaddcdb91d453128edec9f2be0d25cf/data/freesolv.csv",
            "97d74c86228d4c16c0fbbf063bb8280354d8152db09a85ade8517a2f43bd9824",
        ),
        RemoteFile(
            "bbbp.csv.gz",
            CHEMPROP + "a68ade20f227862fe6265c46f021c78217a324ab/data/bbbp.csv",
            "a61e17872cbec0743a6147dc802a1f7550acfe8dc1053f881f4c42a3ce2dc597",
        ),
    ),
    "MIT (chemprop); the sets are those of MoleculeNet",
)


@dataclass(frozen=True)
class MoleculeSet:
    """One set: its title, task, kind of split and origin."""

    title: Text
    task: Literal["regression", "classification"]
    split: Literal["random", "scaffold"]
    origin: Origin
    licence: str


EMBEDDED = "chembl2321810"
MOLECULE_SETS: dict[str, MoleculeSet] = {
    EMBEDDED: MoleculeSet(
        Text("activity (pIC50) of 1,017 molecules in one patent", "一项专利中 1,017 个分子的活性"),
        "regression",
        "random",
        "package",
        "ChEMBL document CHEMBL2321810, CC BY-SA 3.0, inside RDKit (BSD)",
    ),
    "esol": MoleculeSet(
        Text(
            "ESOL: solubility of 1,128 molecules in water, log mol/l", "ESOL：1,128 个分子的水溶性"
        ),
        "regression",
        "random",
        "public",
        PUBLIC.licence,
    ),
    "freesolv": MoleculeSet(
        Text(
            "FreeSolv: hydration energy of 642 molecules, kcal/mol", "FreeSolv：642 个分子的水合能"
        ),
        "regression",
        "random",
        "public",
        PUBLIC.licence,
    ),
    "bbbp": MoleculeSet(
        Text(
            "BBBP: which of 2,039 molecules pass the blood-brain barrier",
            "BBBP：2,039 个分子能否通过血脑屏障",
        ),
        "classification",
        "scaffold",
        "public",
        PUBLIC.licence,
    ),
}
Rows = tuple[list[str], np.ndarray]


def load(
    name: str = EMBEDDED,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
    split_seed: int = 0,
) -> Dataset:
    """The set of that name, split 80/10/10: at random by molecule, BBBP by scaffold.

    Args:
        name: one of `MOLECULE_SETS`.
        data: the folder with the public sets; None for `REGARD_DATA`.
        download: get a public set that is in no folder from its public address.
        limit: keep that many training rows.
        split_seed: of a random split; a split by scaffold has none.

    Raises:
        DataError: the set is not there, or damaged.
        RecipeError: there is no set of that name.
    """
    known = known_set(name)
    smiles, y = embedded_rows() if name == EMBEDDED else public_rows(name, data, download)
    if known.task == "classification":
        y = y.astype(np.int64)
    parts = split_rows(name, (smiles, y), split_seed)
    train = parts[0] if limit is None else Part(parts[0].x[:limit], parts[0].y[:limit])
    return Dataset(name, known.title, known.origin, train, parts[1], parts[2], known.licence)


def resplit(data: Dataset, seed: int) -> Dataset:
    """The same rows by the split of another seed; a set that is not split at random stays as it is."""
    if data.name not in MOLECULE_SETS or MOLECULE_SETS[data.name].split != "random":
        return data
    parts = (data.train, data.validation, data.test)
    smiles = [one for part in parts for one in part.x]
    rows = smiles, np.concatenate([np.asarray(part.y) for part in parts])
    train, validation, test = split_rows(data.name, rows, seed)
    return Dataset(
        data.name, data.title, data.origin, train, validation, test, data.licence, data.show_rows
    )


def split_rows(name: str, rows: Rows, seed: int) -> list[Part]:
    """Training, validation and test part."""
    smiles, y = rows
    if known_set(name).split == "random":
        # Sorted first: the split of a seed is the same for rows that were split by another seed before.
        order = sorted(range(len(smiles)), key=lambda n: (canonical(smiles[n]), smiles[n], y[n]))
        smiles, y = [smiles[n] for n in order], y[order]
        chosen = grouped_split([canonical(one) for one in smiles], SHARES, seed)
    else:
        chosen = scaffold_split([scaffold(one) for one in smiles], SHARES)
    return [Part([smiles[n] for n in numbers], y[numbers]) for numbers in chosen]


def public_rows(name: str, data: str | os.PathLike[str] | None, allowed: bool) -> Rows:
    """The rows of a public set."""
    file = f"{name}.csv.gz"
    folder = obtained(PUBLIC, data, allowed, [file])
    lines = csv.reader(io.StringIO(read_file(PUBLIC, folder, file).decode()))
    next(lines)
    found = [(smiles, float(value)) for smiles, value in lines]
    return [smiles for smiles, _ in found], np.array([value for _, value in found])


def embedded_rows() -> Rows:
    """The rows of CHEMBL2321810, which come with RDKit as data of its Free-Wilson analysis.

    Raises:
        DataError: this build of RDKit lacks its contributions.
    """
    folder = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
    try:
        lines = (folder / "CHEMBL2321810.smi").read_text().splitlines()
        table = (folder / "CHEMBL2321810_act.csv").read_text().splitlines()
    except OSError as error:
        raise DataError(
            f"this RDKit has no data of its contributions ({error}); install it by pip install rdkit"
        ) from None
    activity = {row["Name"]: float(row["Act"]) for row in csv.DictReader(table)}
    found = [line.split() for line in lines if line.strip()]
    return [smiles for smiles, _ in found], np.array([activity[name] for _, name in found])


def known_set(name: str) -> MoleculeSet:
    """The set of that name, or an error that lists all."""
    if name not in MOLECULE_SETS:
        raise RecipeError(
            f"there is no set {name!r} of molecules; the sets are {', '.join(MOLECULE_SETS)}"
        )
    return MOLECULE_SETS[name]
