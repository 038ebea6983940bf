"""Writing files so that nothing half-written is ever seen under the final name. Apart: every package writes files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError


def cache_folder() -> Path:
    """The user's folder for what can be computed again: `$OOCO_GYM_CACHE`, or `ooco-gym` in the usual cache folder."""
    own, usual = os.environ.get("OOCO_GYM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    return Path(usual) / "ooco-gym" if usual else user_folder()


def user_folder() -> Path:
    """`~/.cache/ooco-gym`; a user without a home, as in some containers, has a folder among the temporary files."""
    try:
        return Path.home() / ".cache" / "ooco-gym"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"ooco-gym-{os.getuid()}"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is renamed to `path`, on failure removed.

    Raises:
        UserError: the folder of `path` cannot be created or written.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create folder '{final.parent}': {error.strerror}") from error
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def as_json(value: Any) -> Any:
    """A value as JSON gives it back: lists for arrays and tuples, text for keys and paths, null for NaN."""
    return json.loads(json.dumps(_finite(value), allow_nan=False, default=_plain))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON (NaN and infinity become null), atomically."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False, default=_plain)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Turns NumPy scalars and arrays and paths into what JSON knows."""
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value if not hasattr(value, "tolist") else _finite(value.tolist())
