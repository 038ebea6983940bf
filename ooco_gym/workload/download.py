"""Downloads by pooch: a file appears under its name only when it is complete and its checksum is right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooco_gym.documents import file_digest
from ooco_gym.errors import UserError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30.0


class Unreachable(UserError):
    """The address cannot be reached, or does not give the file."""


def download(address: str, path: Path, sha256: str | None = None,
             report: Callable[[int], None] = lambda count: None) -> tuple[bool, str]:
    """Downloads a file, or checks the one that is already there.

    Args:
        address: http or https.
        path: where the file goes; its folder is created.
        sha256: expected, 64 hexadecimal digits; None if unknown.
        report: called with the number of bytes of each piece that arrives.

    Returns:
        Whether the file was downloaded (rather than already there), and its SHA-256.

    Raises:
        Unreachable: no connection, or the server refuses.
        UserError: a wrong checksum, or a full disk; the message says what to do.
    """
    import pooch
    from requests import RequestException

    if not address.startswith(("http://", "https://")):
        raise UserError(f"cannot download '{address}': expected an address that starts with https:// or http://")
    if path.exists():
        found = file_digest(path)
        if sha256 not in (None, found):
            raise UserError(f"'{path}' is not the file expected: its SHA-256 is {found}, expected {sha256}; move it "
                            "away, then fetch again")
        return False, found
    pooch.get_logger().setLevel(logging.ERROR)
    bar: Any = _Bar(report)
    receive: Any = pooch.HTTPDownloader(timeout=TIMEOUT_S, chunk_size=CHUNK_BYTES, progressbar=bar)
    try:
        pooch.retrieve(address, sha256 and f"sha256:{sha256}", path.name, path.parent, downloader=receive)
        return True, file_digest(path)
    except RequestException as error:
        raise Unreachable(f"cannot download {address}: {_reason(error)}") from None
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{address} is not the file expected: its SHA-256 is not {sha256}; it was removed: fetch "
                        "again, or download the file yourself") from None


class _Bar:
    """Progress bar for pooch, which reports each piece and then, after `reset`, the whole file once more."""

    total = 0.0

    def __init__(self, report: Callable[[int], None]) -> None:
        self.update = report

    def reset(self) -> None:
        """Stops counting; pooch calls it when all pieces have arrived."""
        self.update = lambda count: None

    def close(self) -> None:
        """Does nothing: the caller's progress bar closes itself."""


def _reason(error: Any) -> str:
    if error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    cause = error.args[0] if error.args else error
    return " ".join(str(getattr(cause, "reason", None) or cause).split())
