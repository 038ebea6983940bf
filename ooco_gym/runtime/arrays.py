"""Reads and writes `weights.npz`, distrusting every byte: no pickle, no file larger than it may be, no claim believed.

A `.npz` is a zip archive of `.npy` arrays. NumPy makes room for the shape that a header claims before it looks at what
is there; here a claim is first compared with the bytes, and names, kinds of numbers and sizes are bounded.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError

LARGEST_BYTES = 16 * 1024 * 1024  # of what a file unpacks to: the networks here have thousands of weights
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\.npy")
_KINDS = ("<f4", "<f8", "<i8", "|i1", "|b1")
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays under their names, uncompressed, and the same bytes for the same arrays."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            held = io.BytesIO()
            np.lib.format.write_array(held, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), held.getvalue())


def bounded_archive(path: str | Path, largest_bytes: int = LARGEST_BYTES) -> Path:
    """The path of a zip archive, for whichever library unpacks it.

    Raises:
        ValueError: it unpacks to more than `largest_bytes`; or what `zipfile` raises for what is none.
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())  # no more is ever unpacked than an entry claims
    if size > largest_bytes:
        raise ValueError(f"it unpacks to {size:,} bytes, more than the {largest_bytes:,} that it may have")
    return Path(path)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name.

    Raises:
        UserError: it is no such archive, is damaged or larger than it may be, or an array has a name, a kind of number
            or a size that it may not have, or a value that is not finite.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(bounded_archive(path)) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if not _NAME.fullmatch(entry.filename) or name in found:
                    raise ValueError(f"it names an array {entry.filename[:60]!r}: no plain name, or there twice")
                found[name] = _array(name, archive.read(entry))
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except Exception as error:  # zipfile and numpy raise a dozen kinds for damaged bytes; all mean that it is damaged
        raise _wrong(path, f"is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error
    return found


def _array(name: str, content: bytes) -> np.ndarray:
    held = io.BytesIO(content)
    shape, by_columns, kind = _HEADERS[np.lib.format.read_magic(held)](held)
    if kind.str not in _KINDS:
        raise ValueError(f"array '{name}' is of {kind}; expected one of {', '.join(_KINDS)}")
    count, brought = math.prod(shape), len(content) - held.tell()
    if min(shape, default=0) < 0 or count * kind.itemsize != brought:
        raise ValueError(f"array '{name}' claims {shape}, {count * kind.itemsize:,} bytes, and brings {brought:,}")
    array = np.frombuffer(content, kind, count, held.tell()).reshape(shape, order="F" if by_columns else "C").copy()
    if not np.isfinite(array).all():
        raise ValueError(f"array '{name}' has a number that is not finite")
    return array


def _wrong(file: str | Path, what: str) -> UserError:
    return UserError(f"'{file}' {what}; export the policy again")


def taken(file: Path, arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array `name`, which must have this shape.

    Raises:
        UserError: it is not there, or has another shape.
    """
    if name not in arrays:
        raise _wrong(file, f"lacks the array '{name}' of shape {shape}")
    if arrays[name].shape != shape:
        raise _wrong(file, f"has an array '{name}' of shape {arrays[name].shape}; expected {shape}, as its manifest "
                           "says")
    return arrays[name]


def check_names(file: Path, arrays: Mapping[str, Any], known: set[str]) -> None:
    """Refuses an array that the network does not have.

    Raises:
        UserError: there is one.
    """
    others = sorted(set(arrays) - known)
    if others:
        raise _wrong(file, f"has an array '{others[0]}' that its manifest's network does not have")
