"""Properties of molecules by attention over bonds: ESOL, FreeSolv, BBBP, and activities inside RDKit.

`features.py` turns SMILES into graphs by RDKit, `packing.py` puts them on the device, `net.py` is the network,
`job.py` its training, `predictor.py` the estimator, `data.py` and `splits.py` the sets, `drawing.py` the attended
bonds, `ranking.py` ROC-AUC, `baselines.py` and `comparison.py` what it is compared with.
"""

from regard.recipes.molecules.data import load
from regard.recipes.molecules.drawing import draw
from regard.recipes.molecules.kit import KIT
from regard.recipes.molecules.predictor import AttendedMolecule, MoleculePredictor

__all__ = ["KIT", "AttendedMolecule", "MoleculePredictor", "draw", "load"]
