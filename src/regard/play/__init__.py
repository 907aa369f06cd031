"""The playground: every score on vectors that a reader drags. Needs the standard library alone."""

from __future__ import annotations

from regard.play.build import build, write_page

__all__ = ["build", "write_page"]
