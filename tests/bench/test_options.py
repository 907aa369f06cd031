"""The options of `regard bench`: whole names alone, and the nearest where one is misspelt."""

from __future__ import annotations

import pytest

from regard.bench.options import parser


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--suit", "bars"], "unrecognized arguments: --suit bars. Did you mean --suite? See"),
        (["--suit=bars"], "unrecognized arguments: --suit=bars. Did you mean --suite? See"),
        (["--quic"], "unrecognized arguments: --quic. Did you mean --quick? See"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate. See"),
        (["bars"], "unrecognized arguments: bars. See"),
    ],
)
def test_a_part_of_a_name_starts_no_measurement(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(given)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"Error: {said} regard bench --help\n"
