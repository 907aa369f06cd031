"""Attention inside other people's models; each module here needs the package it is named after."""
