"""The journal outlives a full disk, and a process that is killed while it writes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from regard.choosing.training.errors import ChooseError, StorageError
from regard.choosing.training.journal import mend

from .known import small, trials

FIRST, SECOND = b'{"op_code":0,"name":"{}"}\n', b'{"op_code":4,"x":[1,2]}\n'


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_is_one_error_and_resumes(jobs: int, tmp_path: Path) -> None:
    place = tmp_path / "a.journal"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot be written: .* resume=True") as caught:
            small(place, rates=(1e-2,), jobs=jobs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    done = [t.number for t in trials(place, "choose/search") if t.state.name == "COMPLETE"]
    verdict = small(place, rates=(1e-2,), resume=True)
    assert verdict.seeds == [1, 2]
    found = [t.number for t in trials(place, "choose/search") if t.state.name == "COMPLETE"]
    assert done and set(done) <= set(found)


@pytest.mark.parametrize("cut", [1, 10, len(SECOND) - 1])
def test_a_record_that_was_cut_off_is_taken_out(cut: int, tmp_path: Path) -> None:
    """At the end of the file, and where somebody wrote behind it."""
    path = tmp_path / "a.journal"
    for after in (b"", SECOND, SECOND + FIRST):
        path.write_bytes(FIRST + SECOND[:cut] + after)
        mend(path)
        assert path.read_bytes() == FIRST + after


def test_a_whole_journal_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(FIRST + SECOND)
    before = path.stat()
    mend(path)
    assert path.read_bytes() == FIRST + SECOND and path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(ChooseError, match="it is a file of something else"):
        small(path)
    assert path.read_text() == "my notes"
