"""Choosing an attention score: the function `regard.choose` (`api.py`) and the command `regard choose`.

- `cost` measures time, memory and error of every score at a shape; nothing is trained.
- `tasks` are the data that scores are compared on: built-in tasks and the user's files.
- `training` trains candidates under equal budgets and judges the results.
- `report` writes the HTML report.
- `rules.py` holds the rules of thumb, `claims.py` the claims that support or contradict them.
"""
