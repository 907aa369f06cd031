"""The playground: a page that compares every score on vectors that the reader drags.

This package builds and serves the page, with the standard library alone. The command `regard play` is in
`regard.cli`, the shared parts of all pages are in `regard.page`.
"""

from __future__ import annotations

from regard.play.build import build, write_page

__all__ = ["build", "write_page"]
