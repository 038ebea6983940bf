"""A command's configuration: how Hydra finds it, and the check of a command line against it.

Without this check Hydra would report a mistyped key in several lines, accept text for a number, and
silently keep the last entry of a list given to a group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import exists, isfile  # return False for an invalid name, where Path raises
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict

from ooco_gym.cli.commands import PLAIN, PRESETS, Command, names, read_choice
from ooco_gym.errors import UserError, former, nearest, printable
from ooco_gym.own_code import WORD
from ooco_gym.resources import load_yaml

MOST_POINTS = 100_000  # most points of a sweep
COUNT_OR_LIST = ("seeds",)  # keys for which 3 means 1, 2, 3
NUMBER, TEXT, LIST, MAPPING = "a number", "text", "a list", "a group of keys"
KINDS = ((bool, "true or false"), ((int, float), NUMBER), (str, TEXT), (list, LIST), (Mapping, MAPPING))
_RELEASE = re.compile(r"\d+\.\d+\.\d+")  # such as 0.19.1, whereas 0.19 is read as a number


# --- Hydra's search path --------------------------------------------------------------------------------------------
class OocoSearchPath(SearchPathPlugin):
    """Adds the command's configuration to Hydra's search path, by an address that workers can use, too."""

    command: Command | None = None  # while one runs

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.command is not None:
            query = {"root": [*map(str, self.command.roots)], "group": [*self.command.groups, PRESETS]}
            search_path.prepend("main", "ooco://?" + urlencode(query, doseq=True))


class OocoSource(ConfigSource):
    """Serves `<root>/<path>.yaml` of the first root that has it, and choices read by `commands.read_choice`."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        query = parse_qs(self.path.lstrip("?"))
        self.roots, self.groups = [Path(root) for root in query["root"]], query.get("group", ())

    @staticmethod
    def scheme() -> str:
        return "ooco"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in self.groups

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path) is not None or config_path.partition("/")[0] in self.groups

    def load_config(self, config_path: str) -> ConfigResult:
        path, (group, _, value) = self._file(config_path), config_path.partition("/")
        config = None if path is None else load_yaml(group if value else "", path)
        if config is None or (group == "policy" and "file" in config):
            config = read_choice(self.roots, group, str(path or value))
        with_header = path is not None and path.read_text(encoding="utf-8").startswith("# @package _global_")
        header: dict[str, Any] = {"package": "_global_" if group == PRESETS or with_header else None}
        return ConfigResult(provider=self.provider, path=f"ooco://{config_path}", config=OmegaConf.create(config),
                            header=header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return [] if results_filter == ObjectType.GROUP else names(self.roots, config_path)

    def _file(self, config_path: str) -> Path | None:
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        return next((root / name for root in self.roots if isfile(root / name)), None)


# --- The words of a command line ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CommandLine:
    """A parsed, unchecked command line."""

    overrides: list[Override]
    out: str | None = None


def key_of(override: Override) -> str:
    """Returns the key that an override sets, without a plus."""
    return override.get_key_element().lstrip("+~")


def read(command: Command, words: Iterable[str], multirun: bool) -> CommandLine:
    """Parses a command line; `out` is not passed to Hydra.

    Words without `=` are given to the keys that the command's configuration lists under
    `positional`, in that order.

    Raises:
        UserError: a word that is not key=value, or several values without a sweep.
    """
    words, unused, overrides = list(words), list(command.positional), {}
    given = {word.partition("=")[0]: word.partition("=")[2].strip().strip("'\"") for word in words if "=" in word}
    if "workload.path" in given and "workload" not in given:
        words.insert(0, "workload=trace")  # uses a trace file's keys, not the default workload's
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not word.startswith("~"):
            if not unused:
                raise UserError(f"'{word}' is not key=value; expected such as seed=1" + (
                    f", or at most {len(command.positional)} words without '=' ({', '.join(command.positional)})"
                    if command.positional else " or policies=[ooco,base_pd]"))
            key = unused.pop(0)
            word = f"{key}={_quoted(word)}"
        if key in ("out", WORD):
            continue
        if key in ("hydra.run.dir", "hydra.sweep.dir"):
            raise UserError(f"'{word}': say where results go with out=DIR")
        override = parse(f"+{word}" if key == PRESETS else word)
        if override.is_sweep_override() and not multirun:
            raise UserError(f"'{word}' gives {key} several values: add -m to run each, or write a list "
                            f"{key}=[{value}] where a list is expected")
        if key_of(override) in overrides:
            raise UserError(f"{key} is given twice; expected it once, or a sweep: -m {key}=a,b")
        overrides[key_of(override)] = override
    out = given.get("out", given.get("resume", "outputs"))  # a resumed run continues in its folder
    if out in ("", "null"):
        raise UserError("out is empty; expected the folder for the results, such as out=results")
    return CommandLine([*overrides.values()], None if out == "outputs" else out)


def parse(word: str) -> Override:
    """Parses `key=value`; paths and policy parameters need no quotes.

    Raises:
        UserError: Hydra cannot read it.
    """
    key, _, value = word.partition("=")
    if printable(word) != word:
        raise UserError(f"'{word}' has a control character in it; expected words, and names of files, without any")
    if value[:1] not in ("'", '"') and "{" not in value:
        if "/" in value and exists(value):
            word = f"{key}={_quoted(value)}"
        elif "=" in value or not value.isascii():
            word = f"{key}={_quoted_items(value)}"
    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError) as error:
        raise UserError(f"'{word[:200]}' cannot be read ({one_line(error)[:120]}): expected key=value; text with "
                        f"special characters needs quotes, such as {key}='\"a b\"'") from None


def _quoted(value: str) -> str:
    return value if value[:1] in ("'", '"') else "'" + value.replace("'", "\\'") + "'"


def _quoted_items(value: str) -> str:
    """Quotes each value between commas: `[ooco,ooco:a=1,b=2]` becomes `['ooco','ooco:a=1,b=2']`."""
    listed = value.startswith("[") and value.endswith("]")
    items: list[str] = []
    for item in (value[1:-1] if listed else value).split(","):
        if items and "=" in item and ":" not in item and ":" in items[-1]:
            items[-1] += f",{item}"  # another parameter of the previous policy
        else:
            items.append(item)
    text = ",".join(map(_quoted, items))
    return f"[{text}]" if listed else text


# --- Checks -------------------------------------------------------------------------------------------------------
def check(command: Command, request: CommandLine) -> DictConfig:
    """Composes the configuration with the chosen groups, and sets the checked values.

    For a sweep it is the first point's, and all values are checked. Hydra composes each point
    before it runs the first, and rejects keys that other choices lack.

    Returns:
        The configuration, including Hydra's own node.

    Raises:
        UserError: the first mistake: an unknown key, a value of the wrong type, or a missing
            required one.
    """
    chosen, given = [], {}
    if math.prod(len(values_of(one)) for one in request.overrides if one.is_sweep_override()) > MOST_POINTS:
        raise UserError(f"a sweep has at most {MOST_POINTS:,} points, all values of a key with all of the others")
    for override in request.overrides:
        key = override.key_or_group
        is_group = key in command.groups or key.startswith("hydra/") or (override.is_add() and key == PRESETS)
        if is_group and override.package is None and not isinstance(override.value(), Mapping):
            chosen.append(_choice(command, override))
        else:
            given[key_of(override)] = override
    composed = hydra.compose(command.name, chosen, return_hydra_config=True)
    whole: Any = OmegaConf.to_container(composed)
    known = _known(whole)
    for key in known:
        if "." not in key and key not in {"hydra", *command.keys, *command.groups}:
            presets = " and ".join(word.lstrip("+") for word in chosen if word.startswith("+"))
            raise UserError(f"{presets} sets '{key}', which {command.name} does not have; is the preset for another "
                            "command?")
    for key, override in given.items():
        _check_drawn(key, override, given, known)
        _set(composed, key, override, _checked(command, key, override, known))
    for key in (key for key, value in known.items() if value == "???" and not key.startswith("hydra.")):
        if not any(f"{key}.".startswith(f"{one}.") for one in given):
            raise UserError(f"{key} is required: give {key}=…")
    composed.hydra.overrides.task = [one.input_line for one in request.overrides if not one.is_hydra_override()]
    return composed


def _check_drawn(key: str, override: Override, given: Mapping[str, Override], known: Mapping[str, Any]) -> None:
    """Raises UserError for a field of an environment's scenario that is drawn for each window."""
    if not key.startswith("env.scenario."):
        return
    varied = key.replace("env.scenario.", "env.vary.", 1)
    if known.get(varied) and not any(one.startswith("env.vary") for one in given):
        raise UserError(f"{override.input_line}: this environment draws it for each episode, from {known[varied]}; "
                        f"expected a range to draw from: {varied}=[{override.value()}]")
    field = key.removeprefix("env.scenario.").partition(".")[0]
    if any(field in one for one in known.get("env.vary.condition") or ()) and "env.vary" not in given:
        raise UserError(f"{override.input_line}: this environment draws whole conditions for each episode, "
                        f"{field} included; add env.vary={{}} to draw none")


def _choice(command: Command, override: Override) -> str:
    """Returns the override that chooses from a group; for a sweep with its first value."""
    key, value = override.key_or_group, override.value()
    known = names(command.roots, key)
    if override.is_delete():
        raise UserError(f"{key} cannot be removed; expected {key}=NAME, one of: {', '.join(known)}")
    if override.is_sweep_override():
        return f"{override.get_key_element()}={values_of(override)[0]}"
    if not isinstance(value, str):
        raise UserError(f"{override.input_line}: expected the name of one, such as {key}={[*known, 'NAME'][0]}; "
                        f"-m {key}=a,b runs each, and compare takes several, policies=[a,b]")
    return str(override.input_line)


def values_of(override: Override) -> list[str]:
    """Returns the values of an override as texts: one, or several in a sweep.

    Raises:
        UserError: a range without steps, or a pattern that matches no choice.
    """
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    override.config_loader = GlobalHydra.instance().config_loader()
    ends: Any = override.value()
    if isinstance(ends, RangeSweep) and abs((ends.stop or 0) - (ends.start or 0)) > MOST_POINTS * abs(ends.step):
        raise UserError(f"{override.input_line}: a sweep has at most {MOST_POINTS:,} points")
    found = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    if not found:
        raise UserError(f"{override.input_line}: a sweep runs all values of lists, such as a,b or range(0,10); "
                        "'ooco-gym train agent=cma' searches")
    return found


def _known(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns every dotted key below a node with its value, including keys of mappings."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        found[f"{prefix}{key}"] = value
        if isinstance(value, Mapping):
            found |= _known(value, f"{prefix}{key}.")
    return found


def _checked(command: Command, key: str, override: Override, known: Mapping[str, Any]) -> list[Any]:
    """Returns the values of an override, checked against the key."""
    parent, _, last = key.rpartition(".")
    above, is_hydra = known.get(parent), key.startswith("hydra.")
    if isinstance(above, Mapping) and PLAIN in above:
        raise UserError(f"{key} cannot be set: {parent}={above[PLAIN]} is a file that is read whole and has no keys "
                        "here")
    plus = override.is_add() or override.is_force_add()
    columns = ".only." in f".{parent}."  # columns of a file
    if key not in known and (columns or parent == "cluster") and not plus:  # a cluster's YAML omits defaults
        override.input_line, plus, above = f"++{override.input_line}", True, {}
    if key not in known and (now := former(f"key of {command.name}", key) or former("key", last)):
        raise UserError(now)
    if key not in known and not (plus and isinstance(above, Mapping)):
        keys = [one for one in known if one.startswith("hydra.") == is_hydra and one not in ("hydra", "positional")]
        alike = [one for one in keys if not parent and one.rpartition(".")[2] == last]
        shortest = min(alike, key=lambda one: one.count("."), default="")
        group = parent if isinstance(above, Mapping) else ""
        here = [one for one in keys if one.rpartition(".")[0] == group]
        close = f" (did you mean '{shortest}'?)" if shortest else nearest(key, here if group else keys)
        listed = f"; its keys: {', '.join(sorted(here))}"
        if f"{parent}.time_unit" in known and last in load_yaml("workload", "ooc"):  # of a generator, for a trace file
            close = ": a trace file has its own load; online_rate=… or rate_scale=… sets its rate, start_s=… its window"
        raise UserError(f"{group or command.name} has no key '{key}'{close or listed}")
    values = [] if override.is_delete() else [parse(f"key={text}").value() for text in values_of(override)]
    for value in values:
        if not is_hydra:
            check_value(key, value, known.get(key))
    return values


def _set(cfg: DictConfig, key: str, override: Override, values: Sequence[Any]) -> None:
    """Sets a value as Hydra does (of a sweep the first), or deletes the key."""
    parent, _, last = key.rpartition(".")
    if override.is_delete():
        with open_dict(cfg):
            del (OmegaConf.select(cfg, parent) if parent else cfg)[last]
    else:
        OmegaConf.update(cfg, key, values[0], merge=True, force_add=True)


def check_value(key: str, value: Any, default: Any) -> None:
    """Checks that a value has the type of the key's default; a null on either side matches
    everything.

    Raises:
        UserError: the type differs, or a mapping has a key that the default lacks.
    """
    texts = [one for one in (value, default) if isinstance(one, str)]
    if value is None or default in (None, "???") or any("${" in text for text in texts):
        return
    kind, expected = _kind_of(value), _kind_of(default)
    if kind == expected == MAPPING:
        for name, item in value.items():
            if name not in default:
                raise UserError(f"{key} has no key '{name}'{nearest(str(name), map(str, default))}")
            check_value(f"{key}.{name}", item, default[name])
    allowed = {expected}
    if key.rpartition(".")[2] in COUNT_OR_LIST:
        allowed |= {NUMBER, LIST}
    if expected == TEXT:
        allowed |= {MAPPING} | ({NUMBER} if _RELEASE.fullmatch(default) else set())
    if expected == MAPPING and not any(one is not None for one in default.values()):
        allowed |= {TEXT}  # a mapping may be given by name
    if kind not in allowed:
        like = f"[{value}]" if expected == LIST else "{…}" if expected == MAPPING else default
        raise UserError(f"{key}={value}: expected {expected}, such as {key}={like}")


def _kind_of(value: Any) -> str:
    return next(name for one, name in KINDS if isinstance(value, one))


def one_line(error: BaseException) -> str:
    """Returns the text of an error, or of its cause, without line breaks."""
    return re.sub(r"\s+", " ", str(error) or str(error.__cause__ or type(error).__name__)).strip()
