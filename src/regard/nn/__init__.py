"""Modules to build models with, all on `regard.attention`."""
