"""Settings of the scheduler inside vLLM: one YAML, or environment variables.

`$OOCO_GYM_VLLM` names the YAML; `$OOCO_GYM_VLLM_RULE`, `_BUNDLE`, `_BELIEF`, `_RETENTION`, `_TTFT_S`, `_TPOT_S`,
`_METRICS_PORT`, `_METRICS_ADDRESS`, `_SHADOW` and `_ANY_VERSION` override single keys. A changed
file is read again while the server runs: `rule: vllm` switches back to vLLM's own schedule.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.schema import Either, Model, Positive, Range, Seconds, at, demand
from ooco_gym.vllm.rules import RULES, make_rule

PREFIX = "OOCO_GYM_VLLM"
STOCK, LEARNED = "vllm", "learned"
RETENTIONS = LRU, OFFLINE_FIRST = "lru", "offline_first"  # of baselines/retention
THIS_MACHINE = "127.0.0.1"  # reachable from this machine only
LONGEST_S = {"ttft_s": 120.0, "tpot_s": 5.0}  # longest plausible SLO; beyond it milliseconds are suspected
_TEXTS, _NUMBERS = ("rule", "bundle", "belief", "retention", "metrics_address"), ("ttft_s", "tpot_s", "metrics_port")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Class(Model):
    """A class of requests: its name, lowest priority value, and SLO in seconds (none: offline)."""

    PLACE = "classes.{name}"

    name: str
    priority: int
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None

    @property
    def online(self) -> bool:
        """Whether its requests have an SLO."""
        return self.ttft_s is not None


@dataclass(frozen=True)
class Settings(Model):
    """All settings; see docs/vllm.md."""

    rule: str = "deadline"
    values: Mapping[str, Any] = field(default_factory=dict)
    bundle: Annotated[Any, Either((str, Path, NoneType), "the folder of an exported policy, or null")] = None
    classes: tuple[Class, ...] = (Class("online", 0, 2.0, 0.05), Class("offline", 1))  # in the order of priorities
    field: str | None = None
    belief: str = LEARNED
    retention: Literal["lru", "offline_first"] = LRU
    prior: Mapping[str, Any] | None = None
    violation_budget: Positive = 0.03
    shadow: bool = False
    metrics_port: Annotated[int, Range(0, 65_535)] | None = None
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
    classes = {"classes": _classes(values["classes"], where)} if "classes" in values else {}
    settings = Settings.read({**values, **classes}, where)
    if online:
        settings = replace(settings, classes=(replace(settings.classes[0], **online), *settings.classes[1:]))
    for name, fits, expected in (
            ("rule", settings.rule in (STOCK, *RULES) or ":" in settings.rule,
             f"{STOCK}, {', '.join(RULES)}, or module:name"),
            ("bundle", settings.bundle is None or Path(settings.bundle).is_dir(),
             "an existing folder of an exported policy"),
            ("prior", settings.prior is None or settings.belief == LEARNED,
             f"chip and model from which belief '{LEARNED}' begins, such as {{chip: h100, model: llama_3_1_8b}}"),
            ("metrics_address", settings.metrics_address,
             f"the address of an interface, such as {THIS_MACHINE} (this machine alone) or 0.0.0.0 (all of its "
             "interfaces)")):
        demand(fits, at(where, name), getattr(settings, name), expected)
    if settings.rule in RULES:
        make_rule(settings.rule, settings.values)
    return settings


def _classes(given: Any, where: str) -> tuple[Class, ...]:
    what = at(where, "classes")
    demand(isinstance(given, Mapping) and all(isinstance(one, Mapping) for one in given.values()), what, given,
           "a mapping such as {online: {priority: 0, ttft_s: 2, tpot_s: 0.05}, offline: {priority: 1}}")
    found = [Class.read({"name": str(name), **one}, at(what, str(name))) for name, one in given.items()]
    for one in found:
        demand((one.ttft_s is None) == (one.tpot_s is None), at(what, one.name), given[one.name],
               "ttft_s and tpot_s in seconds, or neither (offline)")
    demand(any(one.online for one in found), what, given, "classes of which at least one has ttft_s and tpot_s")
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
