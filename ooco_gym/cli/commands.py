"""The commands: found as entry points, described by their configuration, imported only when run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from ooco_gym import __file__ as _package_file
from ooco_gym.errors import UserError, unknown
from ooco_gym.resources import conf_root

GROUP = "ooco_gym.commands"
OURS = ("agents", "baselines", "conf", "experiments")


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
        import yaml

        values = yaml.safe_load(self.config.read_text(encoding="utf-8")) or {}
        return tuple(str(key) for key in values.get("positional") or ())

    @property
    def description(self) -> str:
        """One line: the first comment of its configuration."""
        try:
            with self.config.open(encoding="utf-8") as lines:
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
