"""Where Hydra finds a command's configuration: files of `conf`, and choices that are not files of `conf`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os.path import isdir, isfile  # false of what is no name of a file, where Path raises
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from ooco_gym.cli.commands import POLICY, PRESETS, Command, names, read_choice
from ooco_gym.documents import bounded_yaml, read_yaml
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml


def search_path_of(command: Command) -> str:
    """The address under which Hydra finds a command's configuration; it says all, so that workers find it too."""
    return "ooco://?" + urlencode({"root": [str(root) for root in command.roots],
                                   "plain": sorted(plain_keys(command))}, doseq=True)


def plain_keys(command: Command) -> set[str]:
    """Keys to which the command's own file gives a value, or a mapping of nothing but null: these are no groups."""
    raw = read_yaml(command.config) or {}
    groups = {key for entry in raw.get("defaults", ()) if isinstance(entry, Mapping) for key in entry}
    return {key for key, value in raw.items() if not isinstance(value, Mapping)
            or all(item is None for item in value.values())} - groups


class OocoSearchPath(SearchPathPlugin):
    """Adds the configuration of the command that runs to where Hydra looks."""

    command: Command | None = None  # while one runs

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.command is not None:
            search_path.prepend("main", search_path_of(self.command))


class OocoSource(ConfigSource):
    """Serves `<root>/<path>.yaml` of the first root that has it, and choices read by `choices.read_choice`."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        query = parse_qs(self.path.lstrip("?"))
        self.roots = [Path(root) for root in query["root"]]
        self.plain = set(query.get("plain", ()))

    @staticmethod
    def scheme() -> str:
        return "ooco"

    def available(self) -> bool:
        return all(root.is_dir() for root in self.roots)

    def is_group(self, config_path: str) -> bool:
        return config_path not in self.plain and any(isdir(root / config_path) for root in self.roots)

    def is_config(self, config_path: str) -> bool:
        if self._file(config_path) is not None:
            return True
        group, value = self._split(config_path)
        try:
            return bool(group) and read_choice(self.roots, group, value) is not None
        except UserError:
            return False

    def load_config(self, config_path: str) -> ConfigResult:
        path = self._file(config_path)
        if path is not None:
            config, header = _config_in(path), self._get_header_dict(path.read_text(encoding="utf-8"))
            group = config_path.rpartition("/")[0]
            if group == POLICY and "file" in config:
                config = OmegaConf.create(read_choice(self.roots, group, str(path)) or {})
            elif "extends" in config:
                config = OmegaConf.create(load_yaml(group, path))
        else:
            group, value = self._split(config_path)
            config = OmegaConf.create(read_choice(self.roots, group, value) or {})
            header = {"package": "_global_" if group in PRESETS else None}
        return ConfigResult(provider=self.provider, path=f"ooco://{config_path}", config=config, header=header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        found = [] if results_filter == ObjectType.GROUP else names(self.roots, config_path)
        if results_filter != ObjectType.CONFIG:
            found += [path.name for root in self.roots for path in (root / config_path).iterdir() if path.is_dir()]
        return sorted(set(found))

    def _file(self, config_path: str) -> Path | None:
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        if name.startswith("/"):
            return None
        return next((root / name for root in self.roots if isfile(root / name)), None)

    def _split(self, config_path: str) -> tuple[str, str]:
        """Splits `workload/ooc+azure_conv` into the group and what it is given; ("", …) where there is no group."""
        parts = config_path.split("/")
        for end in _prefixes(parts):
            group = "/".join(parts[:end])
            if self.is_group(group):
                return group, "/".join(parts[end:])
        return "", config_path


def _config_in(path: Path) -> Any:
    """What a file of settings holds.

    Raises:
        UserError: it is no YAML.
    """
    try:
        return OmegaConf.create(bounded_yaml(path.read_text(encoding="utf-8")))
    except Exception as error:  # beside YAMLError, of values and depths that cannot be: a dozen kinds
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"'{path}' is not valid YAML: {reason}") from error


def _prefixes(parts: list[str]) -> Iterable[int]:
    return range(1, len(parts)) if parts[0] else ()
