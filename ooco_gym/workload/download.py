"""Downloads by pooch: a file appears under its name only when it is whole and is the one that was expected."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30.0
_WORDS = {"size": "size in bytes", "sha256": "SHA-256", "git_blob": "git blob"}


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
        received: whether it came over the network; False where it was there already.
    """

    path: Path
    size_bytes: int
    sha256: str
    verified: str
    received: bool


def download(address: str, path: Path, *, size_bytes: int | None = None, sha256: str | None = None,
             git_blob: str | None = None, report: Callable[[int], None] = lambda count: None) -> Download:
    """Downloads a file, or checks that it is there already.

    Args:
        address: http or https.
        path: where the file goes; its folder is made.
        size_bytes: expected, or None.
        sha256: expected, 64 hexadecimal digits, or None.
        git_blob: Git's SHA-1 of the content, or None.
        report: called with the bytes of each piece that has arrived.

    Raises:
        Unreachable: no connection, or the server refuses.
        UserError: a wrong checksum, or a full disk; the sentence says what to do.
    """
    import pooch
    from requests import RequestException

    if not address.startswith(("http://", "https://")):
        raise UserError(f"cannot download '{address}': expected an address that starts with https:// or http://")
    expected = {"size": size_bytes, "sha256": sha256, "git_blob": git_blob}
    if path.exists():
        return _verified(path, expected, False)
    pooch.get_logger().setLevel(logging.ERROR)
    part = path.with_name(path.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        bar: Any = _Bar(report)
        receive: Any = pooch.HTTPDownloader(timeout=TIMEOUT_S, chunk_size=CHUNK_BYTES, progressbar=bar)
        pooch.retrieve(address, None, part.name, part.parent, downloader=receive)
        found = _verified(part, expected, True)
        part.replace(path)
    except RequestException as error:
        raise Unreachable(f"cannot download {address}: {_reason(error)}") from None
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return Download(path, found.size_bytes, found.sha256, found.verified, True)


class _Bar:
    """What pooch tells of its progress: each piece, then, after `reset`, the whole once more."""

    total = 0.0

    def __init__(self, report: Callable[[int], None]) -> None:
        self.update = report

    def reset(self) -> None:
        """All pieces have come."""
        self.update = lambda count: None

    def close(self) -> None:
        """It is over."""


def _verified(file: Path, expected: Mapping[str, Any], received: bool) -> Download:
    """Checks a whole file against what is known of it.

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
        if value is not None and found[key] != value:
            then = ("it was removed: fetch again, or bring the file yourself" if received else
                    "move it away, then fetch again")
            raise UserError(f"'{file}' is not the file expected: its {_WORDS[key]} is {found[key]}, expected {value}; "
                            f"{then}")
    strongest = next((key for key in ("sha256", "git_blob", "size") if expected[key] is not None), "")
    return Download(file, size, str(found["sha256"]), strongest, received)


def _reason(error: Any) -> str:
    if error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    cause = error.args[0] if error.args else error
    return " ".join(str(getattr(cause, "reason", None) or cause).split())
