"""Reads the `key=value` words of a command line and checks each against the configuration, before Hydra acts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os.path import exists
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

from ooco_gym.cli.commands import PLAIN, PRESET, PRESETS, Command, names, read_choice
from ooco_gym.documents import bounded_yaml
from ooco_gym.errors import VERSION, UserError, nearest, unknown

Compose = Callable[[list[str]], DictConfig]
MOST_COMBINATIONS = 64      # of swept group choices, each of which is composed to check keys against


@dataclass(frozen=True)
class Request:
    """What a command line asks for, read but not yet checked."""

    overrides: list[Override]
    out: str | None = None
    swept: list[str] = field(default_factory=list)
    trust: bool | None = None  # whether runs that others trained may be read; None: as the environment says

    @property
    def words(self) -> list[str]:
        """The overrides as Hydra reads them."""
        return [str(override.input_line) for override in self.overrides]

    @property
    def fixed_words(self) -> list[str]:
        """Those that are the same in every run of a sweep."""
        return [str(override.input_line) for override in self.overrides if not override.is_sweep_override()]


def read(words: Iterable[str], multirun: bool) -> Request:
    """Reads the words of a command line; `out` and `trust` are taken out, they are no business of
    Hydra's.

    Raises:
        UserError: a word that is not key=value, or several values where no sweep was asked for.
    """
    parser, overrides, out, trust, words = OverridesParser.create(), [], None, None, list(words)
    given = {word.partition("=")[0] for word in words}
    if "workload.path" in given and "workload" not in given:
        words.insert(0, "workload=trace")  # its keys are a trace file's, not those of the workload that is the default
    for word in words:
        if word.startswith("out="):
            out = word[4:].strip().strip("'\"")
            if not out or out == "null":
                raise UserError("out is empty; expected the folder for the results, such as out=results")
            continue
        if word.startswith("trust="):
            if word[6:] not in ("true", "false"):
                raise UserError(f"'{word}' must be trust=true (runs that others trained may be read: their files can "
                                "carry code) or trust=false")
            trust = word == "trust=true"
            continue
        if word.lstrip("+").startswith(("hydra.run.dir=", "hydra.sweep.dir=")):
            raise UserError(f"'{word}': say where results go with out=DIR")
        overrides.append(_parse(parser, word))
    resumed = [word[7:].strip("'\"") for word in words if word.startswith("resume=")]
    if out is None and resumed and resumed[0] not in ("", "null"):
        out = resumed[0]  # what is resumed goes on where it was
    keys = [override.get_key_element() for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is given twice; expected it once" + (", or a sweep: -m " + key + "=a,b"))
    swept = [o.get_key_element().lstrip("+") for o in overrides if o.is_sweep_override()]
    if swept and not multirun:
        word = next(str(o.input_line) for o in overrides if o.is_sweep_override())
        key, _, value = word.partition("=")
        raise UserError(f"'{word}' gives {key} several values: add -m to run each, or write a list {key}=[{value}] "
                        "where a list is expected")
    return Request(overrides, out, swept, trust)


def name_words(command: Command, words: Iterable[str]) -> list[str]:
    """Gives words without `=` the keys that the command's configuration lists for them under `positional`.

    With `positional: [action, target]`, `fetch azure` becomes `action='fetch' target='azure'`. A command without that
    list takes no such words.

    Raises:
        UserError: more words than the list has keys.
    """
    keys = command.positional
    if not keys:
        return list(words)
    named: list[str] = []
    unused = iter(keys)
    for word in words:
        if "=" in word or word.startswith("~"):
            named.append(word)
            continue
        key = next(unused, None)
        if key is None:
            raise UserError(f"{command.name} takes at most {len(keys)} words without '=' ({', '.join(keys)}); "
                            f"'{word}' is one more")
        text = word.replace("'", "\\'")
        named.append(f"{key}='{text}'")
    return named


def _parse(parser: OverridesParser, word: str) -> Override:
    key, equals, value = word.partition("=")
    if not equals and not word.startswith("~"):
        raise UserError(f"'{word}' is not key=value; expected such as seed=1 or policies=[ooco,base_pd]")
    if ("/" in value and exists(value)) or ("=" in value and "{" not in value):
        word = f"{key}={_quote(value)}"
    try:
        return parser.parse_override(word)
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
    for item in (value[1:-1] if listed else value).split(","):
        if items and "=" in item and ":" not in item and ":" in items[-1]:
            items[-1] += f",{item}"         # one more parameter of the policy before it
        else:
            items.append(item)
    if not listed and exists(value):
        items = [value]
    quoted = ",".join(item if item[:1] in "'\"" else "'" + item.replace("'", "\\'") + "'" for item in items)
    return f"[{quoted}]" if listed else quoted


def check(command: Command, request: Request, compose: Compose, options: Callable[[str], list[str]]) -> None:
    """Checks every override: keys, choices of groups, kinds of values, and that what is required is there.

    Args:
        command: whose configuration it is.
        request: what the user asks for.
        compose: composes the configuration, Hydra's own part included, with the overrides it is given.
        options: the choices of one of Hydra's own groups, such as `hydra/launcher`.

    Raises:
        UserError: the first mistake found.
    """
    base = compose([])
    groups = set(base.hydra.runtime.choices)
    chosen = [o for o in request.overrides if _is_group(o, groups) or _is_preset(command, o)]
    for override in chosen:
        _check_choice(command, override, options)
    values = [o for o in request.overrides if o not in chosen]
    words = [[f"{o.get_key_element()}={one}" for one in _each(o)]
             for o in chosen if not o.is_delete() and not is_glob(o)]  # a glob's choices have the keys of the default
    for combination in itertools.islice(itertools.product(*words), MOST_COMBINATIONS):
        config = compose(list(combination)) if combination else base
        _check_added(command, base, config, combination)
        for override in values:
            _check_value(command, override, config, groups)
        _check_varied(config, values)
        _check_complete(config, values)


def _check_varied(config: DictConfig, values: Iterable[Override]) -> None:
    """Refuses a scenario's field that each window draws anew: what is given would be lost without a word."""
    varied, given = OmegaConf.select(config, "env.vary") or {}, {o.get_key_element().lstrip("+~"): o for o in values}
    if any(key == "env.vary" or key.startswith("env.vary.") for key in given):
        return
    for key, override in given.items():
        name = key.removeprefix("env.scenario.")
        if name != key and name in varied:
            raise UserError(f"{override.input_line}: this environment draws {name} anew for each window, from "
                            f"{list(varied[name])}; expected what it draws from: env.vary.{name}=[{override.value()}]")


def _is_group(override: Override, groups: set[str]) -> bool:
    key = override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"
    return key in groups and not isinstance(override.value(), Mapping)


def _is_preset(command: Command, override: Override) -> bool:
    """Whether it adds a file of settings, `+preset=NAME`: no group of the command's own, any may be given it."""
    return override.is_add() and override.key_or_group in PRESETS and any(
        (root / str(override.key_or_group)).is_dir() for root in command.roots)


def _check_added(command: Command, base: DictConfig, config: DictConfig, words: Iterable[str]) -> None:
    """A preset sets keys of the command, nothing else."""
    known = set(base.keys())  # `in` says no to what is required
    for key in config:
        if key not in known:
            given = " and ".join(word.lstrip("+") for word in words)
            raise UserError(f"{given} sets '{key}', which {command.name} has not; is it for another command?")


def _each(override: Override) -> list[str]:
    """The values of an override as Hydra words, several for a sweep."""
    return list(override.sweep_string_iterator() if override.is_discrete_sweep() else [
        override.get_value_element_as_str()])


def is_glob(override: Override) -> bool:
    return override.value_type is ValueType.GLOB_CHOICE_SWEEP


def _check_choice(command: Command, override: Override, options: Callable[[str], list[str]]) -> None:
    group = override.key_or_group
    value = override.value()
    if override.is_delete():
        raise UserError(f"{group} cannot be taken away; expected {group}=NAME, one of: "
                        f"{', '.join(names(command.roots, group))}")
    if isinstance(value, list):
        given = ",".join(str(item) for item in value)
        raise UserError(f"{group} takes one choice, not a list: use -m {group}={given} to run each, or a command that "
                        f"takes several, such as 'ooco-gym compare policies=[{given}]'")
    if is_glob(override):
        return
    for word in _each(override):
        one = _unquote(word)
        if group.startswith("hydra/"):
            known = options(group)
            if one not in known:
                extra = "; installing ooco-gym[sweep] adds joblib, ray and submitit_local"
                raise UserError(str(unknown(group, one, known)) + (extra if group == "hydra/launcher" else ""))
        else:
            read_choice(command.roots, group, one)


def _unquote(word: str) -> str:
    """The text that a value of Hydra's grammar stands for: without its quotes or its escapes."""
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1].replace("\\'", "'")
    return re.sub(r"\\(.)", r"\1", word)


def _check_value(command: Command, override: Override, config: DictConfig, groups: set[str]) -> None:
    key = override.key_or_group
    if override.package is not None:
        raise UserError(f"'{override.input_line}': '{key}' is no group of {command.name}; expected one of: "
                        f"{', '.join(sorted(g for g in groups if not g.startswith('hydra/')))}")
    ours = not key.startswith(("hydra.", "hydra/"))
    parent, _, last = key.rpartition(".")
    above = default_of(config, parent) if parent else config
    if isinstance(above, DictConfig) and PLAIN in above:
        raise UserError(f"{key} cannot be set: {parent}={above[PLAIN]} is read as it stands, it has no keys here")
    exists = isinstance(above, DictConfig) and last in above.keys()  # noqa: SIM118 - `in` says no to what is required
    if override.is_delete():
        if not exists:
            raise _unknown_key(command, key, config, ours)
        return
    adds_below = (override.is_add() or override.is_force_add()) and bool(parent) and isinstance(above, DictConfig)
    if not exists and not adds_below:
        raise _unknown_key(command, key, config, ours)
    if not exists or not ours:
        return
    default = default_of(config, key)
    if default is None:
        default = _kind_elsewhere(command, key, groups)
    for value in _python_values(override):
        check_value(key, value, default)


def _python_values(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    parser = OverridesParser.create()
    return [parser.parse_override(f"key={word}").value() for word in _each(override)
            ] if override.is_discrete_sweep() else []


def _kind_elsewhere(command: Command, key: str, groups: set[str]) -> Any:
    """What other choices of the group give a key that is null in this one: its kind is known from them."""
    group, _, rest = key.partition(".")
    if not rest or not any((root / group).is_dir() for root in command.roots):
        return None
    for root in command.roots:
        for path in sorted((root / group).glob("*.yaml")):
            try:
                node = OmegaConf.create(bounded_yaml(path.read_text(encoding="utf-8")))
            except Exception:  # nosec B112 (whatever is wrong with it is said where it is chosen)
                continue
            value = default_of(node, rest) if isinstance(node, DictConfig) else None
            if value is not None:
                return value
    return None


def _check_complete(config: DictConfig, values: list[Override]) -> None:
    given = {override.key_or_group for override in values}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    for key in sorted(OmegaConf.missing_keys(own)):
        if key not in given and not any(key.startswith(f"{one}.") for one in given):
            raise UserError(f"{key} is required: give {key}=…")


# What is no key, but looks like one: where it belongs.
_ELSEWHERE = {**dict.fromkeys(PRESETS, f"a file of settings is added, +{PRESET}=NAME"),
              "env.flat": "it is an argument of gym.make; a network flattens what it sees (agent.network=mlp)"}


def _unknown_key(command: Command, key: str, config: DictConfig, ours: bool) -> UserError:
    keys = known_keys(config, "" if ours else "hydra")
    close = nearest(key, keys)
    if not close:       # the user may have left the first part away, or added one
        last = re.split(r"[./]", key)[-1]
        close = nearest(last, {known.rpartition(".")[2] for known in keys})
    top = sorted({known for known in keys if "." not in known})
    listed = "" if close else f"; its keys: {', '.join(top)}"
    if key in _ELSEWHERE:
        close, listed = f": {_ELSEWHERE[key]}", ""
    return UserError(f"{command.name} has no key '{key}'{close}{listed}")


# --- Kinds of values: what a default says about what its key may be given -------------------------------------------
COUNT_OR_LIST = ("seeds",)      # 3 means 1, 2, 3


def default_of(config: Any, key: str) -> Any:
    """The value at a dotted key as it stands; None for null, for what is required, and for what is not there."""
    node = config
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node or OmegaConf.is_missing(node, part):
            return None
        if OmegaConf.is_interpolation(node, part):
            return None         # of whatever kind
        node = node[part]
    return node


def known_keys(config: DictConfig, below: str = "") -> list[str]:
    """Every dotted key of a configuration, Hydra's own left out unless `below` names them."""
    found: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key in node:
            name = f"{prefix}{key}"
            if name == "hydra" and not below:
                continue
            found.append(name)
            child = default_of(node, str(key))
            if isinstance(child, DictConfig):
                walk(child, f"{name}.")

    walk(config[below] if below else config, f"{below}." if below else "")
    return found


def check_value(key: str, value: Any, default: Any) -> None:
    """Checks that a value is of the kind of the key's default; null is always allowed, and null allows all.

    Raises:
        UserError: it is of another kind, or a mapping has a key that the default has not.
    """
    if value is None or default is None or (isinstance(value, str) and "${" in value):
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false", default)
    elif isinstance(default, int | float):
        listed = key.rpartition(".")[2] in COUNT_OR_LIST and isinstance(value, list)
        if not listed and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _wrong(key, value, "a number", default)
    elif isinstance(default, str):
        if isinstance(value, list):
            raise _wrong(key, value, "one value, not a list", default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, bool) or (number and not VERSION.fullmatch(default)):  # 0.19 is told with them
            raise _wrong(key, value, "text", default)
    elif isinstance(default, ListConfig):
        counted = key.rpartition(".")[2] in COUNT_OR_LIST and isinstance(value, int)
        if not isinstance(value, list) and not counted:
            raise UserError(f"{key}={_text(value)}: expected a list, such as {key}=[{_text(value)}]")
    elif isinstance(default, DictConfig):
        _check_mapping(key, value, default)


def _check_mapping(key: str, value: Any, default: DictConfig) -> None:
    """A group of keys takes a mapping; one of nothing but null, which stand in for a whole by its name, a name too."""
    if isinstance(value, str) and all(default_of(default, str(name)) is None for name in default):
        return
    if not isinstance(value, Mapping):
        first = next(iter(default), "key")
        raise UserError(f"{key}={_text(value)}: {key} is a group of keys; expected such as {key}.{first}=…")
    for name, item in value.items():
        if name not in default:
            raise UserError(f"{key} has no key '{name}'{nearest(str(name), [str(known) for known in default])}")
        check_value(f"{key}.{name}", item, default_of(default, str(name)))


def _wrong(key: str, value: Any, expected: str, default: Any) -> UserError:
    return UserError(f"{key}={_text(value)}: expected {expected}, such as {key}={_text(default)}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value)
