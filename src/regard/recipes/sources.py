"""Where a recipe's public data come from: a folder that the user names, or a download with a checksum.

A folder is named by the argument `data=` (the option `--data`) or by the environment variable `REGARD_DATA`,
whose sub-folders have the names of the sets. A download is asked for by the user, never made unasked. The checksum
is that of the decompressed content, since the same text is packed differently in different places.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from regard.measuring.files import write_atomic

VARIABLE = "REGARD_DATA"
LARGEST = 256 * 2**20  # bytes of one decompressed file: a stranger's archive may unpack to anything
TIMEOUT = 60  # seconds without an answer after which a download is given up


class DataError(ValueError):
    """Data that are missing, damaged or not what they should be; the message says what helps."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a public set.

    Attributes:
        name: its name in the set's folder; gzip-compressed where it ends in `.gz`.
        address: the public address of the file, compressed or not.
        sha256: of the decompressed content.
    """

    name: str
    address: str
    sha256: str


@dataclass(frozen=True)
class PublicSet:
    """A public set: the name of its folder and its files.

    Attributes:
        folder: name of the folder inside `REGARD_DATA`.
        files: all of its files.
        licence: the licence, or what the source says in place of one.
        build: for sets that are in no single public place in this form: the command or script that makes the
            folder. Such a set is not downloaded.
    """

    folder: str
    files: tuple[RemoteFile, ...]
    licence: str
    build: str = ""

    def file(self, name: str) -> RemoteFile:
        """The file of that name."""
        return next(one for one in self.files if one.name == name)


def obtained(
    public: PublicSet,
    data: str | os.PathLike[str] | None,
    download_it: bool,
    names: Iterable[str] | None = None,
) -> Path | None:
    """The folder that has these files of a set: the user's, or that of downloads; None if there is none.

    Args:
        public: the set.
        data: the user's folder; None for `REGARD_DATA`.
        download_it: get files that no folder has from their public addresses.
        names: the files wanted; None for all.

    Raises:
        DataError: a folder is named that does not have the set, or a download failed.
    """
    wanted = [one.name for one in public.files] if names is None else list(names)
    found = find_folder(public, data, wanted)
    if found is not None and (data is not None or has_all(found, wanted)):
        return found
    kept = cache_folder() / public.folder
    if has_all(kept, wanted):
        return kept
    return download(public, cache_folder(), wanted) if download_it else found


def has_all(folder: Path, names: Iterable[str]) -> bool:
    """Whether the folder has all of these files."""
    return all((folder / name).is_file() for name in names)


def find_folder(
    public: PublicSet, data: str | os.PathLike[str] | None, names: Sequence[str] = ()
) -> Path | None:
    """The set's folder: `data` itself, `data/<folder>` or `$REGARD_DATA/<folder>`; None if nothing is named.

    Args:
        public: the set.
        data: the user's folder; None for `REGARD_DATA`.
        names: the files wanted, for the message; any file of the set tells its folder.

    Raises:
        DataError: a folder is named, and the set is not there.
    """
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        return None
    root = Path(given).expanduser()
    for place in (root, root / public.folder):
        if any((place / one.name).is_file() for one in public.files):
            return place
    if data is None:  # the variable may name a folder that has other sets only
        return None
    name = names[0] if names else public.files[0].name
    raise DataError(
        f"{root} has no {public.folder}: expected {name} in it. {how_to_get(public, name)}"
    )


def how_to_get(public: PublicSet, name: str | None = None) -> str:
    """How to get the set: the address, the checksum and the option for a folder.

    Args:
        public: the set.
        name: the file whose address and checksum are given; None for the first one.
    """
    named = f"name the folder that holds {public.folder}/ by --data DIR or {VARIABLE}"
    given = os.environ.get(VARIABLE)
    if given and not Path(given).expanduser().is_dir():
        named += f", which is no folder now: {VARIABLE}={given}"
    if public.build:
        return f"This set is not downloaded: {public.build}; then {named}."
    shown = public.files[0] if name is None else public.file(name)
    count = len(public.files)
    files = shown.address if count == 1 else f"its {count} files, among them {shown.address}"
    return f"Download it with --download, or get {files} (sha256 of the decompressed content {shown.sha256}), and {named}."


def read_file(public: PublicSet, folder: Path | None, name: str) -> bytes:
    """The decompressed content of one file of the set, with its checksum checked.

    Raises:
        DataError: the file is missing, too large, damaged, or has another checksum.
    """
    known = public.file(name)
    if folder is None:
        raise DataError(f"{public.folder} is not on this machine. {how_to_get(public, name)}")
    try:
        content = unpacked((folder / name).read_bytes(), name)
    except FileNotFoundError:
        raise DataError(f"{folder / name} is missing. {how_to_get(public, name)}") from None
    check(content, known, str(folder / name))
    return content


def unpacked(content: bytes, name: str) -> bytes:
    """The content, decompressed if it is gzip, at most `LARGEST` bytes of it.

    Raises:
        DataError: the gzip stream is damaged, or unpacks to more than `LARGEST` bytes.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            found = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
        raise DataError(f"{name} is not a whole gzip file: {error}") from None
    if len(found) > LARGEST:
        raise DataError(f"{name} unpacks to more than {LARGEST // 2**20} MiB")
    return found


def check(content: bytes, known: RemoteFile, place: str) -> None:
    """Raise a `DataError` if the checksum of the decompressed content is not the known one."""
    found = hashlib.sha256(content).hexdigest()
    if found != known.sha256:
        raise DataError(
            f"{place} has sha256 {found}, expected {known.sha256}: it is damaged or another version. "
            "Remove it and get it again"
        )


def download(public: PublicSet, into: Path, names: Iterable[str] | None = None) -> Path:
    """Download files of a set into `into/<folder>` and return that folder; files already there are kept.

    A file is written only after its checksum is right, and atomically: an interrupted download leaves nothing.

    Args:
        public: the set.
        into: the folder for sets, such as a cache folder.
        names: the files wanted; None for all.

    Raises:
        DataError: an address does not answer, or the content has another checksum.
    """
    if public.build:
        raise DataError(f"{public.folder} cannot be downloaded. {how_to_get(public)}")
    folder = into / public.folder
    for known in public.files if names is None else map(public.file, names):
        place = folder / known.name
        if place.is_file():
            check(unpacked(place.read_bytes(), known.name), known, str(place))
            continue
        content = unpacked(fetched(known.address), known.address)
        check(content, known, known.address)
        packed = gzip.compress(content, mtime=0) if known.name.endswith(".gz") else content
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(place, packed)
    return folder


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to addresses of the same scheme alone: one from https to http could be read and changed."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request for the new address."""
        if not allowed(newurl) or urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise DataError(f"{req.full_url} redirects to {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def allowed(address: str) -> bool:
    """Whether the address is one of https, or of this machine."""
    return address.startswith(("https://", "http://127.0.0.1:", "http://localhost:"))


def fetched(address: str) -> bytes:
    """What the address answers, at most `LARGEST` bytes.

    Raises:
        DataError: it does not answer, answers an error, sends too much, or stops early.
    """
    if not allowed(address):
        raise DataError(f"{address}: only https addresses are downloaded")
    try:
        with urllib.request.build_opener(SafeRedirects).open(address, timeout=TIMEOUT) as answer:
            found, promised = answer.read(LARGEST + 1), answer.headers["Content-Length"]
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise DataError(unreachable(address, getattr(error, "reason", error))) from None
    if len(found) > LARGEST:
        raise DataError(f"{address} sends more than {LARGEST // 2**20} MiB")
    # Python notices an early end only where an answer is read without a limit.
    if promised is not None and len(found) != int(promised):
        raise DataError(unreachable(address, f"it ended after {len(found)} of {promised} bytes"))
    return found


def unreachable(address: str, reason: object) -> str:
    """The message for a download that failed."""
    return (
        f"{address} could not be downloaded: {reason}. Get it another way and name its folder by "
        f"--data DIR or {VARIABLE}"
    )


def cache_folder() -> Path:
    """Where downloads are kept: the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "regard" / "data"
