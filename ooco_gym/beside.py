"""Imports `PACKAGES` beside a user's packages with these names, of which Python imports only the first on its path."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError

PACKAGES = ("agents", "baselines", "experiments")
ROOT = Path(__file__).resolve().parents[1]


class BesideFinder(MetaPathFinder):
    """Asked last: finds what the first package of a name lacks in our folder, and in others on Python's path."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        package = fullname.split(".")[:-1]
        places = [os.path.join(place, *package) for place in (str(ROOT), *sys.path)]
        return PathFinder.find_spec(fullname, places) if package and package[0] in PACKAGES else None


def load(name: str) -> Any:
    """Imports a module; UserError if it, or one that it imports, is hidden by a user's module of the same name."""
    failed, found = None, name
    try:
        import_module(name)
    except ImportError as error:
        failed, found = error, error.name or ""
    while found and found not in sys.modules:
        found = found.rpartition(".")[0]
    file = getattr(sys.modules.get(found), "__file__", None)
    if found.partition(".")[0] in PACKAGES and file and ROOT not in Path(file).resolve().parents:
        raise UserError(f"'{file}' hides ooco-gym's module '{found}'; rename it, or run from another folder or with "
                        "PYTHONSAFEPATH=1 (python -P)") from failed
    if failed is not None:
        raise failed
    return sys.modules[name]
