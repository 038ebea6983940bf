"""Writing files so that nothing half-written is ever seen under the final name. Apart: every package writes files."""

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

MOST_UNZIPPED = 1 << 26  # bytes of an archive of arrays
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a disk answers that takes no more: full, or over a quota, a limit on files, or read-only."""
_TOLD: set[Path] = set()  # folders of which a warning has said that they are not used


class DiskFullError(UserError):
    """The disk takes no more: no mistake in what was asked, so that what there is so far stays."""


def full_disk(error: OSError) -> str:
    """Message where a disk takes no more."""
    what = f" '{error.filename}'" if error.filename else ""
    return f"cannot write{what}: {os.strerror(error.errno or 0)}; make room, or choose another out"


def cache_folder() -> Path:
    """The user's folder for what can be computed again: `$OOCO_GYM_CACHE`, or `ooco-gym` in the usual cache folder."""
    own, usual = os.environ.get("OOCO_GYM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    return Path(usual) / "ooco-gym" if usual else user_folder()


def cache_path(name: str) -> Path | None:
    """A file or a folder in the cache folder, which is made where there is none, for this user alone.

    Returns:
        None where others could have written what is in it; the first time a warning says so.
    """
    folder = cache_folder()
    if why := made_private(folder):
        if folder not in _TOLD:
            _TOLD.add(folder)
            warnings.warn(f"nothing is kept for another time, and nothing that was kept is used: folder '{folder}' "
                          f"{why}; set OOCO_GYM_CACHE to a folder of your own", UserWarning, stacklevel=3)
        return None
    return folder / name


def made_private(folder: Path) -> str:
    """Makes a folder for this user alone where there is none; returns what `not_private` says of it."""
    with suppress(OSError):  # whoever writes into it says what is wrong
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not_private(folder)


def user_folder() -> Path:
    """`~/.cache/ooco-gym`; a user without a home, as in some containers, has a folder among the temporary files."""
    try:
        return Path.home() / ".cache" / "ooco-gym"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"ooco-gym-{os.getuid()}"


@contextmanager
def atomic_write(path: str | os.PathLike[str], kind: str = "") -> Iterator[Path]:
    """Yields a new file beside `path`, of a name that none foresees; on success it is renamed to `path`, on failure
    removed. `kind` stands before its name in a sentence about it, such as `trace `.

    Raises:
        UserError: the folder of `path` cannot be created, or a folder is in the file's place.
        DiskFullError: the disk takes no more.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create folder '{final.parent}': {error.strerror}") from error
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # it follows no link
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
    """A value as JSON gives it back: lists for arrays and tuples, text for keys and paths, null for NaN; numbers to so
    many significant `digits`, where more would only make differences of nothing in a file that is kept."""
    if isinstance(value, Mapping):
        return {str(key): as_json(one, digits) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one, digits) for one in value]
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
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


# --- What is packed: its size is read before it is unpacked ----------------------------------------------------------
def most_unpacked(size: int, times: int = 100) -> int:
    """Bytes that a packed file of `size` bytes may unpack to: `times` as many, a quarter of a GiB in any case."""
    return max(1 << 28, times * size)


def read_parquet(path: str | os.PathLike[str], **some: Any) -> pa.Table:
    """The table of a Parquet file, its checksums verified, or `some` of it, by arguments of pyarrow's `read_table`.

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
    """An archive (its path, or as a stream), which unpacks to a size that may be read.

    Raises:
        ValueError, zipfile.BadZipFile: it does not, or it is none.
    """
    archive = zipfile.ZipFile(file)
    unpacked = sum(one.file_size for one in archive.infolist())
    if unpacked > MOST_UNZIPPED:
        raise ValueError(f"it unpacks to {unpacked >> 20:,} MiB, more than {MOST_UNZIPPED >> 20}")
    return archive


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an archive by name, numbers or texts; none is longer than the bytes that it has there.

    Raises:
        Exception: it is no such archive, or damaged; of a dozen kinds.
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
