"""Whether a folder is this user's alone: results that it keeps are believed, and compiled code from it is run."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = 0  # the user who may write everywhere


def not_private(folder: Path) -> str:
    """Why what is in a folder may be another's, in words that follow its name; empty where it is not, or not there."""
    try:
        found = folder.stat()
    except OSError:
        return ""
    if found.st_uid not in (os.getuid(), ROOT):
        return "belongs to another user"
    return "can be written by others (chmod go-w, if what is in it is yours)" if found.st_mode & 0o022 else ""
