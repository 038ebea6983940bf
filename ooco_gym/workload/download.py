"""Downloads that go on where they stopped, are verified, and appear under their name only when they are whole."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import write_json

CHUNK_BYTES = 1 << 18
TRIES = 5
TIMEOUT_S = 30.0
_NETWORK = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


class Unreachable(UserError):
    """The address cannot be reached, or does not give the file."""


@dataclass(frozen=True)
class Download:
    """A file that is there.

    Attributes:
        path: where.
        size_bytes: of the file.
        sha256: of the file, computed here.
        verified: `sha256`, `git_blob` or `size`: what it was checked against; "" where nothing is known of it.
        received_bytes: how much came over the network; 0 where the file was there already.
    """

    path: Path
    size_bytes: int
    sha256: str
    verified: str
    received_bytes: int


def download(address: str, path: Path, *, size_bytes: int | None = None, sha256: str | None = None,
             git_blob: str | None = None, tries: int = TRIES, pause_s: float = 1.0,
             report: Callable[[int, int | None], None] = lambda received, total: None) -> Download:
    """Downloads a file, or checks that it is there already.

    What has arrived is kept in `<path>.part` until it is whole and verified, then renamed. The next call, in this
    process or another, asks for the rest only (HTTP Range, on condition that the file is still the same one).

    Args:
        address: http or https.
        path: where the file goes; its folder is made.
        size_bytes: expected, or None.
        sha256: expected, 64 hexadecimal digits, or None.
        git_blob: Git's SHA-1 of the content, or None.
        tries: how often in a row nothing may arrive before giving up.
        pause_s: before the second try; doubled with each one after it.
        report: called with the bytes that are there and their total (None where unknown).

    Raises:
        Unreachable: no connection, or the server refuses.
        UserError: a wrong checksum, a full disk, or another process at it; the sentence says what to do.
    """
    if not address.startswith(("http://", "https://")):
        raise UserError(f"cannot download '{address}': expected an address that starts with https:// or http://")
    expected = {"size": size_bytes, "sha256": sha256, "git_blob": git_blob}
    if path.exists():
        return _verified(path, path, expected, 0)
    part = path.with_name(path.name + ".part")
    with _writing(part), _locked(part) as file:
        received = _fill(address, part, file, expected, tries, pause_s, report)
        file.flush()
        os.fsync(file.fileno())
        found = _verified(part, path, expected, received)
        os.replace(part, path)
        _validator_file(part).unlink(missing_ok=True)
    return found


def _fill(address: str, part: Path, file: IO[bytes], expected: Mapping[str, Any], tries: int, pause_s: float,
          report: Callable[[int, int | None], None]) -> int:
    """Brings the part to its full length, over as many connections as it takes; returns the bytes received."""
    received, failed = 0, 0
    while True:
        before = received
        try:
            for count, total in _receive(address, part, file, expected):
                received += count
                report(file.tell(), total)
            return received
        except _NETWORK as error:
            failed = 1 if received > before else failed + 1
            if failed >= tries or not _worth_trying(error) or (_unconnected(error) and failed > 1 and not received):
                file.flush()
                raise Unreachable(f"cannot download {address}: {_reason(error)}" + (
                    f"; {file.tell():,} bytes are kept in '{part}', the same command goes on from there"
                    if file.tell() else "")) from None
            time.sleep(pause_s * 2 ** (failed - 1))


def _receive(address: str, part: Path, file: IO[bytes],
             expected: Mapping[str, Any]) -> Iterator[tuple[int, int | None]]:
    """Receives what one connection gives; yields (bytes of each piece, total or None)."""
    start = file.seek(0, os.SEEK_END)
    validator = _validator(part, address) if start else None
    headers = {"User-Agent": "ooco-gym", "Accept-Encoding": "identity"}
    if start and start == expected["size"]:
        return
    if start and (validator or expected["sha256"] or expected["git_blob"]):
        headers["Range"] = f"bytes={start}-"
        if validator:
            headers["If-Range"] = validator
    try:
        # The address is the catalogue's, or what the user gave.
        request = urllib.request.Request(address, headers=headers)
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # nosec B310
    except urllib.error.HTTPError as error:
        with error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or "Range" not in headers:
                raise
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return                      # the part is the whole file already
        _restart(part, file)                # it is longer than the file, or of another one: begin anew
        yield from _receive(address, part, file, expected)
        return
    with response:
        if start and _first_byte(response) != start:
            _restart(part, file)
            start = 0
        _keep_validator(part, address, response)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        while chunk := _read(response):
            file.write(chunk)
            yield len(chunk), total
        if total is not None and file.tell() < total:
            raise http.client.IncompleteRead(b"", total - file.tell())


def _read(response: Any) -> bytes:
    """Reads a piece; whatever breaks here is the network's fault, not the disk's."""
    try:
        return response.read(CHUNK_BYTES)
    except OSError as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from None


def _first_byte(response: Any) -> int:
    """Where in the file the server's answer begins."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _restart(part: Path, file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()
    _validator_file(part).unlink(missing_ok=True)


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _keep_validator(part: Path, address: str, response: Any) -> None:
    """Remembers how the server tells one version of the file from another: a strong ETag, or else the date."""
    tag = response.headers.get("ETag", "")
    value = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
    write_json(_validator_file(part), {"address": address, "validator": value})


def _validator(part: Path, address: str) -> str | None:
    try:
        kept = read_mapping(_validator_file(part))
        return kept["validator"] if kept["address"] == address else None
    except (UserError, KeyError):
        return None


def _verified(file: Path, final: Path, expected: Mapping[str, Any], received: int) -> Download:
    """Checks a whole file against what is known of it; a part that fails is removed.

    Raises:
        UserError: it is another file than expected.
    """
    size = file.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with file.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            sha256.update(chunk)
            blob.update(chunk)
    found = {"size": size, "sha256": sha256.hexdigest(), "git_blob": blob.hexdigest()}
    for key, value in expected.items():
        if value is None or found[key] == value:
            continue
        what = {"size": "size in bytes", "sha256": "SHA-256", "git_blob": "git blob"}[key]
        if file == final:
            raise UserError(f"'{final}' is not the file expected: its {what} is {found[key]}, expected {value}; move "
                            "it away, then fetch again")
        file.unlink(missing_ok=True)
        _validator_file(file).unlink(missing_ok=True)
        raise UserError(f"the download for '{final}' is not the file expected, and was removed: its {what} is "
                        f"{found[key]}, expected {value}; fetch again, or bring the file yourself")
    strongest = next((key for key in ("sha256", "git_blob", "size") if expected[key] is not None), "")
    return Download(final, size, found["sha256"], strongest, received)


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Opens the part for appending, for one process at a time."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is downloading '{part}': let it end") from None
        if not part.exists() or os.fstat(file.fileno()).st_ino != part.stat().st_ino:
            raise UserError(f"another process has just downloaded '{part.with_suffix('')}': run the command again")
        try:
            yield file
        finally:
            if file.tell() == 0 and part.exists():
                part.unlink()
                _validator_file(part).unlink(missing_ok=True)


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Turns what the disk refuses into a sentence."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        kept = part.stat().st_size if part.exists() else 0
        then = f"; {kept:,} bytes are kept in '{part}', the same command goes on from there" if kept else ""
        raise UserError(f"cannot write '{part}': {error.strerror or error}{then}") from None


def _worth_trying(error: Exception) -> bool:
    return not isinstance(error, urllib.error.HTTPError) or error.code in _RETRIED


def _unconnected(error: Exception) -> bool:
    """Whether no connection came about at all, as on a machine without a network."""
    return isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection broke off, {error.expected:,} bytes are missing"
    reason = getattr(error, "reason", None) or error
    return " ".join(str(getattr(reason, "strerror", None) or reason).split()) or type(error).__name__
