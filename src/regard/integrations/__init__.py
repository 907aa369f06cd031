"""Scores inside models of other packages; each folder needs the package it is named after.

This folder translates what such a package expects. `import regard` never imports it.
"""
