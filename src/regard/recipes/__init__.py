"""Real tasks on real data: each recipe is a small model of its kind that takes any score.

`regard.recipes.<name>` holds one recipe: its estimator in the manner of scikit-learn, its data and its
baselines. What recipes share is beside them: `estimator.py` (fit, predict, save, load), `kit.py` (what commands need
of a recipe), `training.py` (the one training loop), `recorded.py` (its steps as CUDA graphs), `checkpoint.py`,
`fingerprint.py` (which data it was), `evaluating.py` (one run of a comparison), `datasets.py` and `sources.py` (where
data come from), `metrics.py`, `equal.py` (the control of the recipes on graphs), and `comparing/` (every score and
baseline under equal tuning). `catalog.py` lists the recipes and imports no torch.

Needs `pip install "regard[recipes]"`.
"""
