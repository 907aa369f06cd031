"""The playground: every score on vectors that a reader drags. Needs the standard library alone.

Here belong building and serving its page. The command `regard play` is in `regard.cli`, what all pages
share in `regard.page`.
"""

from __future__ import annotations

from regard.play.build import build, write_page

__all__ = ["build", "write_page"]
