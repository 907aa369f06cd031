"""One file for each claim. `regard.claims.registry` finds them by themselves."""
