"""Public data: folders, the cache, and downloads from a real server on this machine, honest and otherwise."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.recipes import sources
from regard.recipes.sources import (
    VARIABLE,
    DataError,
    PublicSet,
    RemoteFile,
    cache_folder,
    download,
    how_to_get,
    obtained,
    read_file,
    unpacked,
)

TEXT = b"one line\nanother\n" * 500
SHA256 = hashlib.sha256(TEXT).hexdigest()
# Without the time of the day, so that every process makes the same bytes.
PACKED = gzip.compress(TEXT, mtime=0)


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers by the path alone."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        what, _, rest = self.path.lstrip("/").partition("/")
        if what == "redirect":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
            return
        content = {"plain": TEXT, "gzip": PACKED, "other": b"other", "cut": PACKED, "endless": b""}
        if what not in content:
            self.send_error(404)
            return
        self.send_response(200)
        if what == "endless":
            self.end_headers()
            while len(self.server.asked) == 1:  # until the next question, or a reader that leaves
                self.wfile.write(b"x" * 2**16)
            return
        body = content[what]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if what == "cut" else body)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Remembers what it was asked for; a client that leaves is no error."""

    daemon_threads = True
    asked: list[str]

    def handle_error(self, *arguments: object) -> None:
        pass

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(running: Server) -> Server:
    running.asked = []
    return running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Downloads go to the test's own folder, and no folder is named."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "cache" / "regard" / "data"


def public(address: str, name: str = "rows.tsv.gz", **more: str) -> PublicSet:
    return PublicSet("the_set", (RemoteFile(name, address, SHA256),), "none", **more)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("sent", ["plain", "gzip"])
@pytest.mark.parametrize("name", ["rows.tsv", "rows.tsv.gz"])
def test_download_is_checked_after_decompressing_and_kept_as_named(
    server: Server, home: Path, sent: str, name: str
) -> None:
    known = public(server.address(sent), name)
    folder = obtained(known, None, True)
    assert folder == home / "the_set"
    assert read_file(known, folder, name) == TEXT
    assert ((folder / name).read_bytes() == TEXT) == (name == "rows.tsv")
    assert len(files(home)) == 1, "nothing else is left"


def test_second_call_uses_the_cache_even_without_asking_to_download(server: Server) -> None:
    known = public(server.address("gzip"))
    first = obtained(known, None, True)
    assert obtained(known, None, True) == first
    assert obtained(known, None, False) == first
    assert download(known, cache_folder()) == first
    assert server.asked == ["/gzip"]


def test_damaged_cache_is_refused_not_used(server: Server) -> None:
    known = public(server.address("gzip"), "rows.tsv")
    folder = obtained(known, None, True)
    assert folder is not None
    (folder / "rows.tsv").write_bytes(TEXT[:-1])
    with pytest.raises(DataError, match=r"rows\.tsv has sha256 .*expected.*Remove it"):
        read_file(known, obtained(known, None, True), "rows.tsv")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("other", f"has sha256 {hashlib.sha256(b'other').hexdigest()}, expected {SHA256}"),
        ("cut", "it ended after .* bytes.*--data DIR or REGARD_DATA"),
        ("nothing", "could not be downloaded: Not Found"),
        ("redirect/ftp://127.0.0.1/x", "redirects to ftp://127.0.0.1/x, which is not followed"),
        ("redirect/file:///etc/hostname", "Redirection to url .* is not allowed"),
        ("redirect/http://192.0.2.1/x", "redirects to http://192.0.2.1/x, which is not followed"),
        ("redirect/https://192.0.2.1/x", "which is not followed"),
    ],
)
def test_bad_answer_is_refused_and_leaves_nothing(
    server: Server, home: Path, path: str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        download(public(server.address(path)), cache_folder())
    assert not files(home)


def test_redirect_on_the_same_scheme_is_followed(server: Server) -> None:
    known = public(server.address("redirect/" + server.address("gzip")))
    assert read_file(known, obtained(known, None, True), "rows.tsv.gz") == TEXT
    assert len(server.asked) == 2


def test_answer_without_end_is_cut_off(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LARGEST", 2**18)
    with pytest.raises(DataError, match="sends more than"):
        download(public(server.address("endless")), cache_folder())
    server.asked.append("stop")
    assert not files(home)


def test_archive_that_unpacks_to_anything_is_cut_off(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(PACKED) < 1000 < len(TEXT)
    monkeypatch.setattr(sources, "LARGEST", 1000)
    with pytest.raises(DataError, match="unpacks to more than"):
        download(public(server.address("gzip")), cache_folder())
    assert not files(home)


def test_full_disk_leaves_no_half_file(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        download(public(server.address("gzip")), cache_folder())
    assert not files(home)


def test_server_that_is_gone_is_named_with_what_helps() -> None:
    known = public("http://127.0.0.1:1/x")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:1/x could not be downloaded: .*--data DIR"):
        download(known, cache_folder())


@pytest.mark.parametrize("address", ["http://example.org/x", "ftp://x/y", "file:///etc/hostname"])
def test_other_schemes_are_never_opened(address: str) -> None:
    with pytest.raises(DataError, match="only https"):
        download(public(address), cache_folder())


@pytest.mark.parametrize(
    "content",
    [PACKED[:-4], PACKED[:50], b"\x1f\x8b", PACKED[:40] + b"\0" * 40],
    ids=["without its sum", "half", "two bytes", "zeros"],
)
def test_damaged_gzip_is_one_error(content: bytes) -> None:
    with pytest.raises(DataError, match="x is not a whole gzip file"):
        unpacked(content, "x")


def test_gzip_in_several_pieces_is_read_whole() -> None:
    """As `cat a.gz b.gz` makes it; only the first piece was read."""
    assert unpacked(gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]), "x") == TEXT


def folder_of(root: Path, content: bytes = PACKED) -> Path:
    (root / "the_set").mkdir(parents=True)
    (root / "the_set" / "rows.tsv.gz").write_bytes(content)
    return root


def test_data_goes_before_the_variable_and_both_before_the_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = public(server.address("gzip"))
    given, variable = folder_of(tmp_path / "given"), folder_of(tmp_path / "variable")
    cached = obtained(known, None, True)
    assert obtained(known, given, False) == given / "the_set"
    assert obtained(known, given / "the_set", False) == given / "the_set", "the set itself, too"
    monkeypatch.setenv(VARIABLE, str(variable))
    assert obtained(known, None, True) == variable / "the_set"
    assert obtained(known, given, True) == given / "the_set"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    assert obtained(known, None, False) == cached, "a variable for other sets does not hide it"


def test_what_is_missing_is_said_with_address_and_checksum(tmp_path: Path) -> None:
    known = public("https://example.org/rows.tsv")
    with pytest.raises(DataError, match=r"has no the_set: expected rows\.tsv\.gz in it"):
        obtained(known, tmp_path, False)
    assert obtained(known, None, False) is None
    with pytest.raises(DataError) as error:
        read_file(known, None, "rows.tsv.gz")
    for part in ("--download", "https://example.org/rows.tsv", SHA256, "--data DIR", VARIABLE):
        assert part in str(error.value)
    (tmp_path / "the_set").mkdir()
    with pytest.raises(DataError, match=r"rows\.tsv\.gz is missing"):
        read_file(known, tmp_path / "the_set", "rows.tsv.gz")


def test_variable_that_names_no_folder_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = PublicSet("the_set", (RemoteFile("a.txt", "https://example.org/a", SHA256),), "none")
    for given in (tmp_path / "none", Path(__file__)):
        monkeypatch.setenv(VARIABLE, str(given))
        folder = obtained(known, None, False)
        with pytest.raises(DataError, match=f"which is no folder now: REGARD_DATA={given}"):
            read_file(known, folder, "a.txt")


def test_of_several_files_the_missing_one_is_named(tmp_path: Path) -> None:
    second = RemoteFile("second.tsv", "https://example.org/second.tsv", "2" * 64)
    known = PublicSet("the_set", (*public("https://example.org/rows.tsv").files, second), "none")
    with pytest.raises(DataError, match=r"expected second\.tsv in it.*second\.tsv \(.* 2222"):
        obtained(known, tmp_path, False, ["second.tsv"])
    (tmp_path / "rows.tsv.gz").write_bytes(PACKED)
    folder = obtained(known, tmp_path, False, ["second.tsv"])
    for place in (None, folder):
        with pytest.raises(DataError, match=r"its 2 files, among them .*second\.tsv \(.* 2222"):
            read_file(known, place, "second.tsv")


def test_set_that_is_built_is_never_downloaded(server: Server) -> None:
    known = public(server.address("gzip"), build="benchmarks/pack.py makes it")
    assert "benchmarks/pack.py makes it; then name the folder" in how_to_get(known)
    with pytest.raises(DataError, match="cannot be downloaded"):
        obtained(known, None, True)
    assert not server.asked
