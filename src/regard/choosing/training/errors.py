"""Errors that the user can fix."""

from __future__ import annotations


class ChooseError(ValueError):
    """The comparison cannot be made; the message says why and what to do."""


class StorageError(ChooseError):
    """The storage cannot be written any more; finished trainings are kept."""
