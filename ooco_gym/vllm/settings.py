"""Settings of the scheduler inside vLLM: one YAML, or environment variables.

`$OOCO_GYM_VLLM` names the YAML; `$OOCO_GYM_VLLM_RULE`, `_BUNDLE`, `_BELIEF`, `_RETENTION`, `_TTFT_S`, `_TPOT_S`,
`_METRICS_PORT`, `_METRICS_ADDRESS`, `_SHADOW` and `_ANY_VERSION` override single keys. A changed
file is read again while the server runs: `rule: vllm` switches back to vLLM's own schedule.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError, check_keys, is_number, is_whole
from ooco_gym.vllm.rules import RULES, make_rule

PREFIX = "OOCO_GYM_VLLM"
STOCK, LEARNED = "vllm", "learned"
RETENTIONS = LRU, OFFLINE_FIRST = "lru", "offline_first"  # of baselines/retention
THIS_MACHINE = "127.0.0.1"  # reachable from this machine only
LONGEST_S = {"ttft_s": 120.0, "tpot_s": 5.0}  # longest plausible SLO; beyond it milliseconds are suspected
_TEXTS, _NUMBERS = ("rule", "bundle", "belief", "retention", "metrics_address"), ("ttft_s", "tpot_s", "metrics_port")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Class:
    """A class of requests: its name, lowest priority value, and SLO in seconds (none: offline)."""

    name: str
    priority: int
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def online(self) -> bool:
        """Whether its requests have an SLO."""
        return self.ttft_s is not None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; see docs/vllm.md."""

    rule: str = "deadline"
    values: Mapping[str, Any] = field(default_factory=dict)
    bundle: str | None = None
    classes: tuple[Class, ...] = (Class("online", 0, 2.0, 0.05), Class("offline", 1))  # in the order of priorities
    field: str | None = None
    belief: str = LEARNED
    retention: str = LRU
    prior: Mapping[str, Any] | None = None
    violation_budget: float = 0.03
    shadow: bool = False
    metrics_port: int | None = None
    metrics_address: str = THIS_MACHINE
    any_version: bool = False

    def class_of(self, priority: int, name: Any = None) -> Class:
        """Returns a request's class: the one that its field names, if it exists, else by priority."""
        named = [one for one in self.classes if one.name == name]
        reached = [one for one in self.classes if priority >= one.priority]
        return (named or reached[-1:] or self.classes)[0]


def read_settings(environment: Mapping[str, str] | None = None) -> tuple[Settings, Path | None]:
    """Returns the settings in the environment, and the path of their YAML.

    Raises:
        UserError: the file is missing or no mapping, or a key or value is not an expected one.
    """
    given = os.environ if environment is None else environment
    path = Path(given[PREFIX]) if given.get(PREFIX) else None
    said: dict[str, Any] = {}
    for name in (*_TEXTS, *_NUMBERS, "shadow", "any_version"):
        text = given.get(f"{PREFIX}_{name.upper()}")
        if text and name in _NUMBERS:
            try:
                said[name] = int(text) if name == "metrics_port" else float(text)
            except ValueError:
                raise UserError(f"${PREFIX}_{name.upper()} is '{text}'; expected a number") from None
        elif text:
            said[name] = text if name in _TEXTS else _FLAGS.get(text.lower(), text)
    online = {name: said.pop(name) for name in ("ttft_s", "tpot_s") if name in said}
    values = {} if path is None else read_mapping(path, f"'{path}' (${PREFIX})")
    return parse_settings({**values, **said}, f"${PREFIX}_*" if path is None else f"'{path}'", online), path


def parse_settings(values: Mapping[str, Any], where: str = "settings",
                   online: Mapping[str, float] | None = None) -> Settings:
    """Parses settings from plain values; `online` replaces the SLO of the first class.

    Raises:
        UserError: a key or value is not an expected one.
    """
    check_keys(where, values, [one.name for one in fields(Settings)])
    settings = Settings(**values)
    if "classes" in values:
        settings = replace(settings, classes=_classes(values["classes"], where))
    if online:
        settings = replace(settings, classes=(replace(settings.classes[0], **online), *settings.classes[1:]))
    port = settings.metrics_port
    for name, fits, expected in (
            ("values", isinstance(settings.values, Mapping), "parameters by name"),
            ("rule", settings.rule in (STOCK, *RULES) or ":" in str(settings.rule),
             f"{STOCK}, {', '.join(RULES)}, or module:name"),
            ("bundle", settings.bundle is None or Path(str(settings.bundle)).is_dir(),
             "an existing folder of an exported policy"),
            ("prior", settings.prior is None or (isinstance(settings.prior, Mapping) and settings.belief == LEARNED),
             f"chip and model from which belief '{LEARNED}' begins, such as {{chip: h100, model: llama_3_1_8b}}"),
            ("violation_budget", is_number(settings.violation_budget) and settings.violation_budget > 0,
             "a number above 0"),
            ("retention", settings.retention in RETENTIONS, " or ".join(RETENTIONS)),
            ("shadow", isinstance(settings.shadow, bool), "true or false"),
            ("any_version", isinstance(settings.any_version, bool), "true or false"),
            ("metrics_port", port is None or (is_whole(port) and 0 <= port < 65536), "a port, or null"),
            ("metrics_address", isinstance(settings.metrics_address, str) and settings.metrics_address,
             f"the address of an interface, such as {THIS_MACHINE} (this machine alone) or 0.0.0.0 (all of its "
             "interfaces)"),
            ("belief", isinstance(settings.belief, str), f"'{LEARNED}', or the path of a measured chip")):
        if not fits:
            raise UserError(f"{where}: {name} is {getattr(settings, name)!r}; expected {expected}")
    if settings.rule in RULES:
        make_rule(settings.rule, settings.values)
    return settings


def _classes(given: Any, where: str) -> tuple[Class, ...]:
    if not isinstance(given, Mapping) or not all(isinstance(one, Mapping) for one in given.values()):
        raise UserError(f"{where}: classes is {given!r}; expected a mapping such as "
                        "{online: {priority: 0, ttft_s: 2, tpot_s: 0.05}, offline: {priority: 1}}")
    found = []
    for name, one in given.items():
        check_keys(f"{where}: classes.{name}", one, ("priority", "ttft_s", "tpot_s"))
        if not is_whole(one.get("priority")):
            raise UserError(f"{where}: classes.{name}.priority is {one.get('priority')!r}; expected a whole number")
        slo = [one.get("ttft_s"), one.get("tpot_s")]
        if slo != [None, None] and not all(is_number(value) and float(value or 0.0) > 0.0 for value in slo):
            raise UserError(f"{where}: classes.{name} has ttft_s {slo[0]!r} and tpot_s {slo[1]!r}; expected "
                            "both in seconds, above 0, or neither (offline)")
        found.append(Class(str(name), int(one["priority"]), *slo))
    if not any(one.online for one in found):
        raise UserError(f"{where}: none of the classes has ttft_s and tpot_s; expected at least one with SLOs")
    for line in _doubts(found):
        print(f"warning: {where}: {line}", file=sys.stderr, flush=True)
    return tuple(sorted(found, key=lambda one: one.priority))


def _doubts(classes: Sequence[Class]) -> list[str]:
    """Returns warnings on classes that are legal but look like a mistake, one sentence each."""
    lines = [f"classes.{one.name}.{key}={value:g} is in seconds, so long an SLO has no effect; {value:g} ms are "
             f"{value / 1000:g}" for one in classes for key, most in LONGEST_S.items()
             if (value := getattr(one, key)) is not None and value > most]
    first = min(classes, key=lambda one: one.priority)
    if not first.online:
        online = next(one.name for one in classes if one.online)
        lines.append(f"classes.{first.name} has no SLO and the lowest priority number, {first.priority}, which vLLM "
                     f"serves first, before '{online}'; swap the priorities")
    return lines
