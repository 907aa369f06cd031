"""Which changes of the code make a result old."""

from __future__ import annotations

from regard.claims.running.version import bare

CODE = '''
"""A module."""
def f(x):
    """A function."""
    return x + 1  # why
'''


def test_words_do_not_count() -> None:
    assert bare(CODE) == bare(CODE.replace("A function.", "Another word.").replace("why", "since"))


def test_code_and_strings_count() -> None:
    assert bare(CODE) != bare(CODE.replace("x + 1", "x + 2"))
    assert bare('x = "a"') != bare('x = "b"')
