"""Which attention score to use: `cost` measures them, `training` trains them, `tasks` are tried on.

`regard.choose` is the function (`api.py`), `regard choose` the command.
"""
