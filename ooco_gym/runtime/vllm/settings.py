"""How the scheduler inside vLLM is set: one YAML, or environment variables.

`$OOCO_GYM_VLLM` names the YAML; `$OOCO_GYM_VLLM_RULE`, `_BUNDLE`, `_BELIEF`, `_TTFT_S`, `_TPOT_S`, `_METRICS_PORT`,
`_METRICS_ADDRESS`, `_SHADOW` and `_ANY_VERSION` set single keys, over it or without it. The file is read again when it
changes, while the server runs: `rule: vllm` switches back to vLLM's own schedule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, check_keys, is_number, is_whole
from ooco_gym.runtime.rules import RULES, make_rule
from ooco_gym.runtime.vllm.watching import THIS_MACHINE

PREFIX = "OOCO_GYM_VLLM"
STOCK = "vllm"
LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class Class:
    """A class of requests: a name, from which priority on, and what it is promised (nothing: offline)."""

    name: str
    priority: int
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def online(self) -> bool:
        """Whether its requests have a promise."""
        return self.ttft_s is not None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; docs/vllm.md says what each does."""

    rule: str = "deadline"
    values: Mapping[str, Any] = field(default_factory=dict)
    bundle: str | None = None
    classes: tuple[Class, ...] = (Class("online", 0, 2.0, 0.05), Class("offline", 1))
    field: str | None = None
    belief: str = LEARNED
    violation_budget: float = 0.03
    time_budget_s: float = 0.05
    shadow: bool = False
    metrics_port: int | None = None
    metrics_address: str = THIS_MACHINE
    any_version: bool = False

    def class_of(self, priority: int, name: Any = None) -> Class:
        """The class of a request by its priority, or by the name that its field says, where there is such a class."""
        if name is not None:
            for one in self.classes:
                if one.name == name:
                    return one
        found = self.classes[0]
        for one in self.classes:  # in the order of priorities
            if priority >= one.priority:
                found = one
        return found


_NAMES = [one.name for one in fields(Settings)]
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_settings(environment: Mapping[str, str] | None = None) -> tuple[Settings, Path | None]:
    """The settings that the environment says, and the YAML that they come from.

    Raises:
        UserError: the file is missing, is no mapping, or a key or a value is not one of those expected.
    """
    given = os.environ if environment is None else environment
    path = Path(given[PREFIX]) if given.get(PREFIX) else None
    values = {} if path is None else _read(path)
    where = f"'{path}'" if path is not None else f"${PREFIX}_*"
    online = {name: _number(f"${PREFIX}_{name.upper()}", given[f"{PREFIX}_{name.upper()}"])
              for name in ("ttft_s", "tpot_s") if given.get(f"{PREFIX}_{name.upper()}")}
    for name in ("rule", "bundle", "belief", "metrics_address"):
        if given.get(f"{PREFIX}_{name.upper()}"):
            values[name] = given[f"{PREFIX}_{name.upper()}"]
    for name in ("shadow", "any_version"):
        if given.get(f"{PREFIX}_{name.upper()}"):
            values[name] = _FLAGS.get(given[f"{PREFIX}_{name.upper()}"].lower(), given[f"{PREFIX}_{name.upper()}"])
    if given.get(f"{PREFIX}_METRICS_PORT"):
        port = _number(f"${PREFIX}_METRICS_PORT", given[f"{PREFIX}_METRICS_PORT"])
        values["metrics_port"] = int(port) if port.is_integer() else port
    return parse_settings(values, where, online), path


def parse_settings(values: Mapping[str, Any], where: str = "settings",
                   online: Mapping[str, float] | None = None) -> Settings:
    """Settings from plain values; `online` replaces promises of the first class.

    Raises:
        UserError: a key or a value is not one of those expected.
    """
    check_keys(where, values, _NAMES)
    found: dict[str, Any] = dict(values)
    if "classes" in values:
        found["classes"] = _classes(values["classes"], where)
    settings = Settings(**found)
    if online:
        first = settings.classes[0]
        both = {"ttft_s": first.ttft_s, "tpot_s": first.tpot_s, **online}
        changed = Class(first.name, first.priority, both["ttft_s"], both["tpot_s"])
        settings = Settings(**{**found, "classes": (changed, *settings.classes[1:])})
    _check(settings, where)
    return settings


def _check(settings: Settings, where: str) -> None:
    if not isinstance(settings.values, Mapping):
        raise UserError(f"{where}: values is {settings.values!r}; expected parameters by name")
    if settings.rule in RULES:
        make_rule(settings.rule, settings.values)
    elif settings.rule != STOCK and ":" not in str(settings.rule):
        raise UserError(f"{where}: rule is '{settings.rule}'; expected {STOCK}, {', '.join(RULES)}, or module:name")
    if settings.bundle is not None and not Path(str(settings.bundle)).is_dir():
        raise UserError(f"{where}: bundle '{settings.bundle}' does not exist; expected a folder of an exported policy")
    for name, low in (("violation_budget", 0.0), ("time_budget_s", 0.0)):
        if not is_number(getattr(settings, name)) or getattr(settings, name) <= low:
            raise UserError(f"{where}: {name} is {getattr(settings, name)!r}; expected a number above {low:g}")
    for name in ("shadow", "any_version"):
        if not isinstance(getattr(settings, name), bool):
            raise UserError(f"{where}: {name} is {getattr(settings, name)!r}; expected true or false")
    port = settings.metrics_port
    if port is not None and not (is_whole(port) and 0 <= port < 65536):
        raise UserError(f"{where}: metrics_port is {settings.metrics_port!r}; expected a port, or null")
    address = settings.metrics_address
    if not (isinstance(address, str) and address):
        raise UserError(f"{where}: metrics_address is {address!r}; expected the address of an interface, such as "
                        f"{THIS_MACHINE} (this machine alone) or 0.0.0.0 (all of its interfaces)")
    if not isinstance(settings.belief, str):
        raise UserError(f"{where}: belief is {settings.belief!r}; expected '{LEARNED}', or the path of a measured chip")


def _classes(given: Any, where: str) -> tuple[Class, ...]:
    if not isinstance(given, Mapping) or not given:
        raise UserError(f"{where}: classes is {given!r}; expected a mapping such as "
                        "{online: {priority: 0, ttft_s: 2, tpot_s: 0.05}, offline: {priority: 1}}")
    found = []
    for name, one in given.items():
        if not isinstance(one, Mapping):
            raise UserError(f"{where}: classes.{name} is {one!r}; expected priority and, promised, ttft_s and tpot_s")
        check_keys(f"{where}: classes.{name}", one, ("priority", "ttft_s", "tpot_s"))
        if not is_whole(one.get("priority")):
            raise UserError(f"{where}: classes.{name}.priority is {one.get('priority')!r}; expected a whole number")
        promises = [one.get("ttft_s"), one.get("tpot_s")]
        if promises != [None, None] and not all(is_number(value) and float(value or 0.0) > 0.0 for value in promises):
            raise UserError(f"{where}: classes.{name} has ttft_s {promises[0]!r} and tpot_s {promises[1]!r}; expected "
                            "both in seconds, above 0, or neither (offline)")
        found.append(Class(str(name), int(one["priority"]), *promises))
    found.sort(key=lambda one: one.priority)
    if not any(one.online for one in found):
        raise UserError(f"{where}: none of the classes has ttft_s and tpot_s; expected at least one with a promise")
    return tuple(found)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"'{path}' (${PREFIX}) does not exist; expected the YAML of the scheduler's settings")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"'{path}' must hold a mapping such as 'rule: deadline'")
    return {str(key): value for key, value in values.items()}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name} is '{text}'; expected a number") from None
