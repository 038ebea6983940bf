"""Whether a folder is only this user's, since results in it are trusted and compiled code from it
is run."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = 0  # may write everywhere


def not_private(folder: Path) -> str:
    """Why another user may have written a folder's content, in words that follow its name; '' if
    private or missing."""
    try:
        found = folder.stat()
    except OSError:
        return ""
    if found.st_uid not in (os.getuid(), ROOT):
        return "belongs to another user"
    return "can be written by others (chmod go-w, if what is in it is yours)" if found.st_mode & 0o022 else ""
