"""The commands, found as entry points and imported only when run, and what their groups may be given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata, util
from os.path import exists
from pathlib import Path
from typing import Any

from ooco_gym import __file__ as _package_file
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, unknown
from ooco_gym.resources import RENAMED, conf_root, load_yaml

GROUP = "ooco_gym.commands"  # of entry points
OURS = ("agents", "baselines", "conf", "experiments")
# The group of files that set many keys of a command at once, `+preset=NAME`; then its earlier name.
PRESETS = ("preset", "experiment")
PRESET = PRESETS[0]
OPEN = "open"  # the folder of choices that stand for what is not said: defaults, and a trace file's keys
POLICY = "policy"  # the group whose choices may be Python files
LEARNED = "learned:"  # before the folders of learned policies, which take their seats beside a partner
EXAMPLE = "#$ "  # how the lines of a command's configuration begin that show it in use
PLAIN = "_plain_"  # under this key a group's node holds a string that the library reads
_WEIGHT = re.compile(r"^\s*[0-9.eE+-]+\s*\*\s*")


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, its function as `module:function`, and the folders of its configuration, first first."""

    name: str
    function: str
    roots: tuple[Path, ...]

    @property
    def config(self) -> Path:
        """The YAML file of its keys and their defaults.

        Raises:
            UserError: there is none.
        """
        for root in self.roots:
            if (root / f"{self.name}.yaml").is_file():
                return root / f"{self.name}.yaml"
        raise UserError(f"command '{self.name}' has no configuration: expected '{self.roots[0] / self.name}.yaml'")

    @property
    def positional(self) -> tuple[str, ...]:
        """The keys that words without `=` set, in their order: the configuration's list `positional`."""
        values = read_yaml(self.config) or {}
        return tuple(str(key) for key in values.get("positional") or ())

    @property
    def description(self) -> str:
        """One line: the first comment of its configuration."""
        try:
            with self.config.open(encoding="utf-8", errors="replace") as lines:
                first = next(lines, "")
        except UserError:
            return "(no configuration)"
        return re.sub(rf"^# *(ooco-gym +{re.escape(self.name)} *: *)?", "", first.strip()).rstrip(".")


def commands() -> dict[str, str]:
    """Every known command by name, each with its function as `module:function`."""
    return {point.name: point.value for point in sorted(metadata.entry_points(group=GROUP))}


def find(name: str, extra_root: Path | None = None) -> Command:
    """Finds a command by name; `extra_root` is a folder of the user's own whose files come first.

    Raises:
        UserError: no such command, or its package is shadowed by another of the same name.
    """
    known = commands()
    if name not in known:
        raise unknown("command", name, known)
    function = known[name]
    top = function.split(":")[0].split(".")[0]
    own = _package_folder(top)
    roots = [extra_root] if extra_root else []
    if own and (own / "conf").is_dir():
        roots.append(own / "conf")
    return Command(name, function, (*roots, conf_root()))


def examples(command: Command) -> list[str]:
    """The command in use, a line each: what its configuration has after `#$`."""
    lines = command.config.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]


def _package_folder(top: str) -> Path | None:
    """The folder of a top-level package, not imported; None where it has none.

    Raises:
        UserError: one of our packages is shadowed by another project's.
    """
    spec = util.find_spec(top)
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = Path(places[0]).resolve() if places else None
    if top in OURS:
        expected = Path(_package_file).resolve().parent.parent
        if folder is None or folder.parent != expected:
            raise UserError(f"the package '{top}' found at '{folder}' is not ooco-gym's, which is in '{expected}': "
                            "another package shadows it; use an environment without that package")
    return folder


# --- Choices of groups -----------------------------------------------------------------------------------------------
def names(roots: Iterable[Path], group: str) -> list[str]:
    """The names that a group's folders hold."""
    return sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})


def presets(roots: Iterable[Path], command: str) -> dict[str, str]:
    """The presets of a command and what their files say of them: those whose comment begins with its name."""
    found = {}
    for root in roots:
        for path in sorted((root / PRESET).glob("*.yaml")):
            match = re.search(rf"^# *ooco-gym +{re.escape(command)} +\+{PRESET}={re.escape(path.stem)} *: *(.*)$",
                             path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            if match:
                found.setdefault(path.stem, match[1].rstrip("."))
    return found


def read_choice(roots: Iterable[Path], group: str, value: str) -> dict[str, Any] | None:
    """Reads a choice of `group` that is not one of its names: a node for Hydra to merge, or None where it is a name.

    Returns:
        The content of a YAML file, or `{PLAIN: value}` for a mix, a folder, another file, `FILE.py:NAME`, or a name
        with parameters.

    Raises:
        UserError: nothing of the kind; the sentence has the nearest name.
    """
    known = names(roots, group)
    if value in known:
        return None
    if (conf_root() / OPEN / group / f"{value}.yaml").is_file():
        return load_yaml(f"{OPEN}/{group}", value)
    if group == POLICY and value.partition(":")[0].endswith((".py", ".yaml", ".yml")):
        from ooco_gym.policy.registry import as_mapping  # takes a second, and few have a policy of their own

        return as_mapping(value)
    if group == POLICY and value.startswith(LEARNED):
        return {PLAIN: value}
    if group == POLICY and value.partition(":")[0] not in known:
        from ooco_gym.policy.registry import as_mapping, list_policies

        if value.partition(":")[0] in list_policies():
            return as_mapping(value)  # of another installed package, which needs no YAML here
    if value.endswith((".yaml", ".yml")) or (group, value) in RENAMED:
        return load_yaml(group, value)
    if exists(value) or _is_code(value):
        return {PLAIN: value}
    parts = [_WEIGHT.sub("", part).strip() for part in value.split("+")]
    of_classes = group == "workload" and "@" in value
    if of_classes:
        from ooco_gym.workload.classes import split_class  # takes a moment, and few loads name classes

        parts = [split_class(part)[0] for part in parts]
    if len(parts) > 1 or "*" in value or of_classes:
        for part in parts:
            if not exists(part) and not (group == "workload" and _is_dataset(roots, part)):
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


def _is_code(value: str) -> bool:
    """Tells whether a value names something in a Python file that exists: `FILE.py:NAME`, parameters after it."""
    file = value.partition(":")[0]
    return file.endswith(".py") and exists(file)
