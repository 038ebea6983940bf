"""A sentence on a run's timing, and its measured error on the chip (docs/validity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.resources import load_yaml, names

FILE = "validity"  # in conf: maps chips to forms to errors in percent; `make validity` writes it


def clock_line(deployments: Iterable[Deployment], clock: EngineClock, served: bool = True) -> str:
    """Returns a sentence that names the timing form and the engine's clock, and their error on each
    chip: for iterations and, with `served`, for engines."""
    measured, found = load_yaml("", FILE), list(deployments)
    forms = " and ".join(dict.fromkeys(one.timing for one in found))
    preset = _preset(clock)
    chips = dict.fromkeys(f"{one.chip.name}: {_errors(one, preset, measured, served)}" for one in found)
    return f"clock: timing={forms}, engine clock {clock.name}; {'; '.join(chips)} (docs/validity.md)"


def _preset(clock: EngineClock) -> str:
    """Name of the preset with a clock's numbers, under any name; '' if there is none."""
    for name in names("engine_clock"):
        if replace(EngineClock.load(name), name=clock.name, source=clock.source) == clock:
            return name
    return ""


def _errors(deployment: Deployment, clock: str, measured: Mapping[str, Any], quoted: bool) -> str:
    chip, form = deployment.chip, deployment.timing
    known = measured.get(chip.name, {}).get(form, {})
    alone = (f"iterations {known['iterations']:.1f} % off on average" if "iterations" in known else
             chip.sources.get(f"error.{form}") or "not validated on measured iterations")
    if not quoted:
        return alone
    served = next((one for one in known.get("served", ()) if one["clock"] == clock), None)
    if served is None:
        return f"{alone}, not validated on an engine with this clock"
    ends = ", ".join(f"{name} {served[key]:+.0f} %" for name, key in (("TTFT", "ttft"), ("TPOT", "tpot")))
    return f"{alone}, replay of {served['engine']} {ends}".replace(" -", " −")
