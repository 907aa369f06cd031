"""Candidates trained under equal budget by successive halving, and what follows from it.

The search is Optuna's: its storages, queue of trials and pruner. Needs optuna and scipy.
"""
