"""Attention inside other people's models; each module here needs the package it is named after.

What a foreign package expects is translated here; the library itself never imports this folder.
"""
