"""What a user can put right."""

from __future__ import annotations


class ChooseError(ValueError):
    """The comparison cannot be made; the message says why and what to do."""


class StorageError(ChooseError):
    """Trainings cannot be kept any more; those that are finished are."""
