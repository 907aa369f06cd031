"""Trains candidates under equal budgets by successive halving, and judges the results.

The search uses Optuna's storages, queue of trials and pruner. Needs optuna and scipy.
"""
