"""Writes files atomically, and reads packed files within size limits."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError
from ooco_gym.private import not_private

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MOST_UNZIPPED = 1 << 26  # size limit of an unpacked archive of arrays
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes no more: full, over a quota or file limit, or read-only."""
_TOLD: set[Path] = set()  # unused folders already warned about


class DiskFullError(UserError):
    """The disk takes no more. This is no user mistake, so results so far stay."""


def full_disk(error: OSError) -> str:
    """Error message for a full disk."""
    what = f" '{error.filename}'" if error.filename else ""
    return f"cannot write{what}: {os.strerror(error.errno or 0)}; make room, or choose another out"


def cache_folder() -> Path:
    """The user's cache folder: `$OOCO_GYM_CACHE`, or `ooco-gym` in the usual cache folder."""
    own, usual = os.environ.get("OOCO_GYM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    return Path(usual) / "ooco-gym" if usual else user_folder()


def cache_path(name: str) -> Path | None:
    """Returns a path in the cache folder, which is created for only this user if missing.

    Returns:
        None if others could have written its content, with a warning the first time.
    """
    folder = cache_folder()
    if why := made_private(folder):
        if folder not in _TOLD:
            _TOLD.add(folder)
            warnings.warn(f"the cache is neither read nor written: folder '{folder}' {why}; set OOCO_GYM_CACHE to a "
                          "folder of your own", UserWarning, stacklevel=3)
        return None
    return folder / name


def made_private(folder: Path) -> str:
    """Creates a folder for only this user if missing; returns the result of `not_private`."""
    with suppress(OSError):  # a later write reports the error
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not_private(folder)


def user_folder() -> Path:
    """`~/.cache/ooco-gym`; for a user without a home, as in some containers, a temporary folder (there
    platformdirs would make a folder `~` in the working directory)."""
    try:
        return Path.home() / ".cache" / "ooco-gym"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"ooco-gym-{os.getuid()}"


@contextmanager
def atomic_write(path: str | os.PathLike[str], kind: str = "") -> Iterator[Path]:
    """Yields a new file beside `path` with a random name; on success it is renamed to `path`, on
    failure removed. `kind` precedes its name in error messages, such as `trace `.

    Raises:
        UserError: the folder of `path` cannot be created, or `path` is a folder.
        DiskFullError: the disk takes no more.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create folder '{final.parent}': {error.strerror}") from error
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # follows no link
        yield temporary
        os.replace(temporary, final)
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(f"cannot write {kind}'{final}': {os.strerror(error.errno)}") from error
        if error.errno == errno.EISDIR:
            raise UserError(f"cannot write {kind}'{final}': a folder is in its place") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def as_json(value: Any, digits: int | None = None) -> Any:
    """Returns a value as JSON reads it back: lists for arrays and tuples, text for keys and paths,
    null for NaN, and floats rounded to `digits` significant digits, if given."""
    if isinstance(value, Mapping):
        return {str(key): as_json(one, digits) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one, digits) for one in value]
    if hasattr(value, "tolist"):  # NumPy arrays and numbers
        return as_json(value.tolist(), digits)
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, float):
        return value
    return None if not math.isfinite(value) else value if digits is None else float(f"{value:.{digits}g}")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON (`as_json`), atomically."""
    text = json.dumps(as_json(value), indent=2, allow_nan=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


# --- Packed files: the size is checked before unpacking ----------------------------------------------------------
def most_unpacked(size: int, times: int = 100) -> int:
    """Bytes that a packed file of `size` bytes may unpack to: `times` as many, at least a quarter
    GiB."""
    return max(1 << 28, times * size)


def read_parquet(path: str | os.PathLike[str], **some: Any) -> pa.Table:
    """Reads a Parquet file, verifying checksums; `some` are arguments of pyarrow's `read_table`.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    told = parquet.read_metadata(path)
    if 8 * told.num_rows * told.num_columns > most_unpacked(os.path.getsize(path)):
        raise ValueError(f"it says that it has {told.num_rows:,} rows, which cannot be in a file of its size")
    return parquet.read_table(pa.OSFile(os.fspath(path)), page_checksum_verification=True, **some)


def bounded_zip(file: Any) -> zipfile.ZipFile:
    """Opens a zip archive (a path or a stream), if it unpacks to an allowed size.

    Raises:
        ValueError, zipfile.BadZipFile: it is too large, or no archive.
    """
    archive = zipfile.ZipFile(file)
    unpacked = sum(one.file_size for one in archive.infolist())
    if unpacked > MOST_UNZIPPED:
        raise ValueError(f"it unpacks to {unpacked >> 20:,} MiB, more than {MOST_UNZIPPED >> 20}")
    return archive


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive by name, numbers or texts; none may exceed its bytes in the
    file.

    Raises:
        Exception: no such archive, or damaged; a dozen kinds.
    """
    import numpy as np

    found = {}
    with bounded_zip(path) as archive:
        for one in archive.infolist():
            with archive.open(one) as member:
                header = getattr(np.lib.format, f"read_array_header_{np.lib.format.read_magic(member)[0]}_0")
                shape, _, dtype = header(member)
            if dtype.kind not in "biufU" or math.prod(shape) * max(1, dtype.itemsize) > one.file_size:
                raise ValueError(f"'{one.filename}' is {dtype}{list(shape)}; expected numbers, as many as are there")
            with archive.open(one) as member:
                found[one.filename.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    return found
