"""What a group may be given: the names in its folder, and what only the library can read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError, unknown
from ooco_gym.resources import load_yaml

EXPERIMENT = "experiment"  # the group of files that set many keys of a command at once, `+experiment=NAME`
PLAIN = "_plain_"       # under this key a group's node holds a string that the library reads
_YAML = (".yaml", ".yml")
_WEIGHT = re.compile(r"^\s*[0-9.eE+-]+\s*\*\s*")


def names(roots: Iterable[Path], group: str) -> list[str]:
    """The names that a group's folders hold."""
    return sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})


def experiments(roots: Iterable[Path], command: str) -> dict[str, str]:
    """The experiments of a command and what their files say of them: those whose comment begins with its name."""
    found = {}
    for root in roots:
        for path in sorted((root / EXPERIMENT).glob("*.yaml")):
            said = re.search(rf"^# *ooco-gym +{re.escape(command)} +\+{EXPERIMENT}={re.escape(path.stem)} *: *(.*)$",
                             path.read_text(encoding="utf-8"), re.MULTILINE)
            if said:
                found.setdefault(path.stem, said[1].rstrip("."))
    return found


def read_choice(roots: Iterable[Path], group: str, value: str) -> dict[str, Any] | None:
    """Reads a choice of `group` that is not one of its names: a node for Hydra to merge, or None where it is a name.

    Returns:
        The content of a YAML file, or `{PLAIN: value}` for a mix, a folder, another file, or a name with parameters.

    Raises:
        UserError: nothing of the kind; the sentence has the nearest name.
    """
    known = names(roots, group)
    if value in known:
        return None
    if value.endswith(_YAML):
        return load_yaml(group, value)
    if _exists(value):
        return {PLAIN: value}
    parts = [_WEIGHT.sub("", part).strip() for part in value.split("+")]
    if len(parts) > 1 or "*" in value:
        for part in parts:
            if not _exists(part):
                if not (group == "workload" and _is_dataset(roots, part)):
                    _check(group, part, known)
        return {PLAIN: value}
    if group == "workload" and _is_dataset(roots, value):
        raise UserError(f"workload '{value}' is an offline dataset, and nothing is online: give an online workload "
                        f"besides, such as workload=azure_conv_2023+{value}")
    _check(group, value.partition(":")[0], known)
    return {PLAIN: value}


def _is_dataset(roots: Iterable[Path], name: str) -> bool:
    """Tells whether a workload's part is offline work: NAME or NAME_offline of the group `offline`."""
    return any(name in (known, f"{known}_offline") for known in names(roots, "offline"))


def _check(group: str, name: str, known: list[str]) -> None:
    if name in known:
        return
    if "/" in name or Path(name).suffix:
        raise UserError(f"{group}: file '{name}' does not exist; expected a path, or one of: {', '.join(known)}")
    raise unknown(group, name, known)


def _exists(text: str) -> bool:
    try:
        return text != "" and Path(text).exists()
    except OSError:     # for example a name too long for the file system
        return False
