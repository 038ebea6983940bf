"""Whether a file that can carry code was written by this user: policies and states of training runs are pickles.

What training writes is signed with a key of the user's own, made at the first run and kept where no other user reads
it (`~/.local/state/ooco-gym/key`, or below `$XDG_STATE_HOME`). What is not signed with it is not read, unless the user
says `trust=true` on the command line, `OOCO_GYM_TRUST=1`, or `trust=True` in Python: a run of another's may do whatever
its author likes on this machine. Exports (`ooco-gym export`) carry no code and need no trust.

The signature of a policy is the comment of its zip archive; that of a state stands before it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ooco_gym.errors import UserError
from ooco_gym.files import bounded_archive
from ooco_gym.private import not_private

VARIABLE = "OOCO_GYM_TRUST"
MARK = b"ooco-gym/signed/1:"
DIGEST_BYTES = 32
LARGEST_BYTES, CHUNK_BYTES = 2**31, 2**20  # of an archive, unpacked, and of what is read of it at once


def key_files() -> list[Path]:
    """Where the user's key may be, first first: a user without a home has it among the temporary files."""
    usual = os.environ.get("XDG_STATE_HOME")
    found = [Path(usual) / "ooco-gym"] if usual else []
    with suppress(RuntimeError):  # no home
        found.append(Path.home() / ".local" / "state" / "ooco-gym")
    return [folder / "key" for folder in (*found, Path(tempfile.gettempdir()) / f"ooco-gym-{os.getuid()}")]


@cache
def _key(path: Path) -> bytes | None:
    """The key, made where there is none; None where it cannot be kept, or may be another's."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():  # where two processes begin at once, both have the first one's
            temporary = path.with_name(f".key.{os.getpid()}")
            try:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(DIGEST_BYTES))
                with suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        if not_private(path) or not_private(path.parent):
            return None  # another may have put it there
        key = path.read_bytes()
        return key if len(key) == DIGEST_BYTES else None
    return None


def key() -> bytes | None:
    """The user's key; None where none can be kept: then what this user writes is as another's."""
    return next((one for path in key_files() if (one := _key(path)) is not None), None)


def trusted(given: bool = False) -> bool:
    """Whether the user trusts whoever wrote what is read now."""
    return given or os.environ.get(VARIABLE, "").lower() in ("1", "true", "yes")


def _refusal(path: Path) -> UserError:
    return UserError(f"'{path}' was not written by a training of this user on this machine, or has changed since, and "
                     "files of its kind can carry code: add trust=true if you trust who wrote it, or ask for its "
                     "export ('ooco-gym export'), which carries none")


def sign(content: bytes) -> bytes:
    """The content with its signature before it."""
    mine = key()
    return MARK + (hmac.digest(mine, content, "sha256") if mine else bytes(DIGEST_BYTES)) + content


def verify(path: Path, content: bytes, trust: bool = False) -> bytes:
    """The content without its signature.

    Raises:
        UserError: it is not signed with the user's key, and not trusted.
    """
    signed = content.startswith(MARK)
    end = len(MARK) + DIGEST_BYTES
    body = content[end:] if signed else content
    mine = key()
    own = signed and mine is not None and hmac.compare_digest(hmac.digest(mine, body, "sha256"), content[len(MARK):end])
    if not own and not trusted(trust):
        raise _refusal(path)
    return body


def sign_archive(path: Path) -> None:
    """Signs a zip archive of one's own, in its comment."""
    mine = key()
    if mine is not None:
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = MARK + hmac.digest(mine, _digest(archive), "sha256").hex().encode()


def check_archive(path: Path, trust: bool = False) -> None:
    """Refuses an archive that is not signed with the user's key, unless it is trusted.

    Raises:
        UserError: it is not, or is no archive.
    """
    if trusted(trust):
        return
    mine = key()
    try:
        with zipfile.ZipFile(bounded_archive(path, LARGEST_BYTES)) as archive:
            given = archive.comment
            expected = MARK + hmac.digest(mine, _digest(archive), "sha256").hex().encode() if mine else b""
    except Exception as error:  # zipfile and zlib raise a dozen kinds for damaged bytes; all mean that they are
        raise UserError(f"'{path}' cannot be read as a policy: {' '.join(str(error).split())}") from error
    if not expected or not hmac.compare_digest(given, expected):
        raise _refusal(path)


def _digest(archive: zipfile.ZipFile) -> bytes:
    """Digest of the names and contents of an archive, in their order."""
    found = hashlib.sha256()
    for info in archive.infolist():
        found.update(f"{len(info.filename)}:{info.filename}:{info.file_size}:".encode())
        with archive.open(info) as content:
            while part := content.read(CHUNK_BYTES):
                found.update(part)
    return found.digest()
