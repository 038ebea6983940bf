"""A command's configuration: where Hydra finds it, and whether the words of a command line fit it.

Hydra itself would answer a mistyped key with several lines, take text where a number belongs, and silently keep the
last entry of a list given to a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, isdir, isfile  # false of what is no name of a file, where Path raises
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from ooco_gym.cli.commands import PLAIN, PRESETS, Command, names, read_choice
from ooco_gym.errors import UserError, nearest
from ooco_gym.resources import load_yaml

COUNT_OR_LIST = ("seeds",)  # keys of which 3 means 1, 2, 3
REQUIRED = "???"
_RELEASE = re.compile(r"\d+\.\d+\.\d+")  # such as 0.19.1, of which 0.19 is read as a number


# --- Where Hydra looks ----------------------------------------------------------------------------------------------
class OocoSearchPath(SearchPathPlugin):
    """Adds the configuration of the command that runs to where Hydra looks; its address says all, for workers too."""

    command: Command | None = None  # while one runs

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.command is not None:
            groups = {*self.command.groups, PRESETS}
            plain = [key for key, value in self.command.keys.items() if key not in groups and not (
                isinstance(value, Mapping) and any(item is not None for item in value.values()))]
            roots = [str(root) for root in self.command.roots]
            search_path.prepend("main", "ooco://?" + urlencode({"root": roots, "plain": plain}, doseq=True))


class OocoSource(ConfigSource):
    """Serves `<root>/<path>.yaml` of the first root that has it, and choices read by `commands.read_choice`.

    Keys to which a command gives a plain value, or a mapping of nothing but null, are no groups, whatever folders
    there are.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        query = parse_qs(self.path.lstrip("?"))
        self.roots = [Path(root) for root in query["root"]]
        self.plain = query.get("plain", [])

    @staticmethod
    def scheme() -> str:
        return "ooco"

    def available(self) -> bool:
        return all(root.is_dir() for root in self.roots)

    def is_group(self, config_path: str) -> bool:
        return config_path not in self.plain and any(isdir(root / config_path) for root in self.roots)

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path) is not None or bool(self._split(config_path)[0])

    def load_config(self, config_path: str) -> ConfigResult:
        path, (group, value) = self._file(config_path), self._split(config_path)
        header: dict[str, Any] = {"package": "_global_" if group == PRESETS else None}
        if path is None:
            config: Any = read_choice(self.roots, group, value)
        else:
            try:
                text = path.read_text(encoding="utf-8")
                config, header = OmegaConf.create(text), self._get_header_dict(text)
            except Exception as error:  # beside YAMLError, of values and depths that cannot be: a dozen kinds
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                raise UserError(f"'{path}' is not valid YAML: {reason}") from error
            if group == "policy" and "file" in config:
                config = read_choice(self.roots, group, str(path))
            elif "extends" in config:
                config = load_yaml(group, path)
        return ConfigResult(provider=self.provider, path=f"ooco://{config_path}", config=OmegaConf.create(config),
                            header=header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        found = [] if results_filter == ObjectType.GROUP else names(self.roots, config_path)
        if results_filter != ObjectType.CONFIG:
            found += [path.name for root in self.roots for path in (root / config_path).glob("*/")]
        return sorted(set(found))

    def _file(self, config_path: str) -> Path | None:
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        found = () if name.startswith("/") else (root / name for root in self.roots)
        return next((path for path in found if isfile(path)), None)

    def _split(self, config_path: str) -> tuple[str, str]:
        """Splits `workload/ooc+azure_conv` into the group and what it is given; ("", …) where there is no group."""
        group, _, value = config_path.partition("/")
        return (group, value) if value and group not in ("", "hydra") and self.is_group(group) else ("", config_path)


# --- The words of a command line ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Request:
    """What a command line asks for, read but not yet checked."""

    overrides: list[Override] = field(default_factory=list)
    out: str | None = None


def key_of(override: Override) -> str:
    """The key that an override sets, without a plus."""
    return override.get_key_element().lstrip("+~")


def read(command: Command, words: Iterable[str], multirun: bool) -> Request:
    """Reads the words of a command line; `out` is no business of Hydra's.

    Words without `=` are given to the keys that the command's configuration lists under `positional`, in that order.

    Raises:
        UserError: a word that is not key=value, or several values where no sweep was asked for.
    """
    words, unused, overrides = list(words), list(command.positional), {}
    given = {word.partition("=")[0]: word.partition("=")[2].strip().strip("'\"") for word in words if "=" in word}
    if "workload.path" in given and "workload" not in given:
        words.insert(0, "workload=trace")  # its keys are a trace file's, not those of the workload that is the default
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals and not word.startswith("~"):
            if not command.positional:
                raise UserError(f"'{word}' is not key=value; expected such as seed=1 or policies=[ooco,base_pd]")
            if not unused:
                raise UserError(f"{command.name} takes at most {len(command.positional)} words without '=' "
                                f"({', '.join(command.positional)}); '{word}' is one more")
            key, word = unused[0], f"{unused.pop(0)}='" + word.replace("'", "\\'") + "'"
        if key == "out":
            continue
        if key in ("hydra.run.dir", "hydra.sweep.dir"):
            raise UserError(f"'{word}': say where results go with out=DIR")
        override = _parse(f"{'+' if key == PRESETS else '++' if _left_out(key) else ''}{word}")
        if override.is_sweep_override() and not multirun:
            raise UserError(f"'{word}' gives {key} several values: add -m to run each, or write a list "
                            f"{key}=[{word.partition('=')[2]}] where a list is expected")
        if key_of(override) in overrides:
            raise UserError(f"{key} is given twice; expected it once, or a sweep: -m {key}=a,b")
        overrides[key_of(override)] = override
    out = given.get("out")
    if out in ("", "null"):
        raise UserError("out is empty; expected the folder for the results, such as out=results")
    if out is None and given.get("resume") not in (None, "", "null"):
        out = given["resume"]  # what is resumed goes on where it was
    return Request([*overrides.values()], out)


def _left_out(key: str) -> bool:
    """Whether it is a key of a cluster, which its YAML may leave at the default."""
    group, _, name = key.partition(".")
    if group != "cluster":
        return False
    from ooco_gym.cluster import Cluster  # not where a command needs none

    return name in Cluster.__dataclass_fields__


def _parse(word: str) -> Override:
    key, _, value = word.partition("=")
    if ("/" in value and exists(value)) or ("=" in value and "{" not in value):
        word = f"{key}={_quote(value)}"
    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError) as error:
        hint = " ".join(str(error).split())[:120]
        raise UserError(f"'{word[:200]}' cannot be read ({hint}): expected key=value; text with special characters "
                        f"needs quotes, such as {key}='\"a b\"'") from None


def _quote(value: str) -> str:
    """Quotes values that hold `=` or a path: `[ooco,ooco:a=1,b=2]` becomes `['ooco','ooco:a=1,b=2']`."""
    if value[:1] in "'\"":
        return value
    listed = value.startswith("[") and value.endswith("]")
    items: list[str] = []
    for item in [value] if exists(value) else (value[1:-1] if listed else value).split(","):
        if items and "=" in item and ":" not in item and ":" in items[-1]:
            items[-1] += f",{item}"  # one more parameter of the policy before it
        else:
            items.append(item)
    quoted = ",".join(item if item[:1] in "'\"" else "'" + item.replace("'", "\\'") + "'" for item in items)
    return f"[{quoted}]" if listed else quoted


# --- Whether they fit -----------------------------------------------------------------------------------------------
def check(command: Command, request: Request, words: Sequence[str] = ()) -> DictConfig:
    """Checks every override against the configuration composed once, with the first choice of each group and `words`.

    Hydra composes each point of a sweep before it runs the first of them, and refuses what other choices have not.

    Returns:
        The configuration, Hydra's own node included, with every value that is not swept.

    Raises:
        UserError: the first mistake found: an unknown key, a value of another kind, or what is required is missing.
    """
    chosen, values = [], []
    for override in request.overrides:
        key = override.key_or_group
        is_group = key in command.groups or key.startswith("hydra/") or (override.is_add() and key == PRESETS)
        if is_group and override.package is None and not isinstance(override.value(), Mapping):
            chosen += _choice(command, override)
        else:
            values.append(override)
    composed = hydra.compose(command.name, [*words, *chosen], return_hydra_config=True)
    known = dict(_flat(OmegaConf.to_container(composed)))
    for key in known:
        if "." not in key and key not in {"hydra", *command.keys, *command.groups}:
            presets = " and ".join(word.lstrip("+") for word in chosen if word.startswith("+"))
            raise UserError(f"{presets} sets '{key}', which {command.name} has not; is it for another command?")
    for override in values:
        _check_value(command, override, known)
    given = {key_of(override): override for override in values}
    for key, value in known.items():
        if value == REQUIRED and not key.startswith("hydra.") and not any(
                key == one or key.startswith(f"{one}.") for one in given):
            raise UserError(f"{key} is required: give {key}=…")
    if not any(key.startswith("env.vary") for key in given):
        for key, override in given.items():  # what a window draws anew would be lost without a word
            name = key.removeprefix("env.scenario.")
            if name != key and (drawn := known.get(f"env.vary.{name}")):
                raise UserError(f"{override.input_line}: this environment draws {name} anew for each window, from "
                                f"{drawn}; expected what it draws from: env.vary.{name}=[{override.value()}]")
    ConfigLoaderImpl._apply_overrides_to_config([one for one in values if not one.is_sweep_override()], composed)
    composed.hydra.overrides.task = [str(one.input_line) for one in request.overrides if not one.is_hydra_override()]
    return composed


def _choice(command: Command, override: Override) -> list[str]:
    """The override that chooses of a group; of a sweep with its first value, none of a glob, whose choices have the
    keys of the default."""
    key, value = override.key_or_group, override.value()
    if override.is_delete():
        raise UserError(f"{key} cannot be taken away; expected {key}=NAME, one of: "
                        f"{', '.join(names(command.roots, key))}")
    if override.is_sweep_override():
        if is_glob(override) or not override.is_discrete_sweep():
            return []
        return [f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()), '')}"]
    if isinstance(value, list):
        listed = ",".join(map(str, value))
        raise UserError(f"{key} takes one choice, not a list: use -m {key}={listed} to run each, or a command that "
                        f"takes several, such as 'ooco-gym compare policies=[{listed}]'")
    if not isinstance(value, str):
        raise UserError(f"{key}={_text(value)}: expected the name of one, such as {key}="
                        f"{next(iter(names(command.roots, key)), 'NAME')}")
    return [str(override.input_line)]


def is_glob(override: Override) -> bool:
    """Whether it sweeps over the names of a group that fit a pattern."""
    return override.value_type is ValueType.GLOB_CHOICE_SWEEP


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key below a node with its value, those that hold others as well."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{prefix}{key}", value
            yield from _flat(value, f"{prefix}{key}.")


def _check_value(command: Command, override: Override, known: Mapping[str, Any]) -> None:
    key = key_of(override)
    parent, _, last = key.rpartition(".")
    above = known.get(parent)
    if isinstance(above, Mapping) and PLAIN in above:
        raise UserError(f"{key} cannot be set: {parent}={above[PLAIN]} is read as it stands, it has no keys here")
    if key not in known:
        if (override.is_add() or override.is_force_add()) and isinstance(above, Mapping):
            return
        keys = [one for one in known if one.startswith("hydra.") == key.startswith("hydra.") and one != "hydra"]
        close = nearest(key, [one for one in keys if not parent and one.rpartition(".")[2] == last] or keys)
        top = ", ".join(sorted(one for one in keys if "." not in one))
        raise UserError(f"{command.name} has no key '{key}'{close or f'; its keys: {top}'}")
    if key.startswith("hydra.") or override.is_delete():
        return
    swept = override.is_sweep_override()
    words = override.sweep_string_iterator() if swept and override.is_discrete_sweep() else ()
    for value in (_parse(f"key={word}").value() for word in words) if swept else [override.value()]:
        check_value(key, value, known[key])


def check_value(key: str, value: Any, default: Any) -> None:
    """Checks that a value is of the kind of the key's default; null is always allowed, and null allows all.

    Raises:
        UserError: it is of another kind, or a mapping has a key that the default has not.
    """
    if value is None or default in (None, REQUIRED) or any("${" in one for one in (value, default)
                                                           if isinstance(one, str)):
        return
    of_several = key.rpartition(".")[2] in COUNT_OR_LIST
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    expected = ""
    if isinstance(default, Mapping):
        if isinstance(value, Mapping):
            for name, item in value.items():
                if name not in default:
                    raise UserError(f"{key} has no key '{name}'{nearest(str(name), map(str, default))}")
                check_value(f"{key}.{name}", item, default[name])
        elif not isinstance(value, str) or any(one is not None for one in default.values()):  # a whole by its name
            raise UserError(f"{key}={_text(value)}: {key} is a group of keys; expected such as "
                            f"{key}.{next(iter(default), 'key')}=…")
    elif isinstance(default, list):
        if not isinstance(value, list) and not (of_several and is_number):
            raise UserError(f"{key}={_text(value)}: expected a list, such as {key}=[{_text(value)}]")
    elif isinstance(default, bool):
        expected = "" if isinstance(value, bool) else "true or false"
    elif isinstance(default, str):
        expected = "one value, not a list" if isinstance(value, list) else "text" if isinstance(value, bool) or (
            is_number and not _RELEASE.fullmatch(default)) else ""
    elif not is_number and not (of_several and isinstance(value, list)):
        expected = "a number"
    if expected:
        raise UserError(f"{key}={_text(value)}: expected {expected}, such as {key}={_text(default)}")


def _text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def one_line(error: BaseException) -> str:
    """The text of an error, or of what it came of, without line breaks."""
    return re.sub(r"\s+", " ", str(error) or str(error.__cause__ or type(error).__name__)).strip()
