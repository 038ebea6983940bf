"""Imports this package's other folders beside folders of the user with the same names, such as
`agents`.

Of two packages with one name Python imports the first on its path. What only the other one has is
then found here, so that both work; only modules with equal names exclude each other.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ooco_gym.errors import UserError

PACKAGES = ("agents", "baselines", "experiments")
ROOT = Path(__file__).resolve().parents[1]


class Beside(MetaPathFinder):
    """Asked last: finds a module of `PACKAGES` in all folders of its package's name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds a module in our folder, or in one on Python's path."""
        package = fullname.rpartition(".")[0]
        if package.partition(".")[0] not in PACKAGES:
            return None
        places = (os.path.join(place, *package.split(".")) for place in (str(ROOT), *sys.path))
        return PathFinder.find_spec(fullname, list(places))


def load(name: str) -> ModuleType:
    """Imports a module, which may be one of `PACKAGES`.

    Raises:
        UserError: a module of the user has the name of it, or of one that it imports.
    """
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
