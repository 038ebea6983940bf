"""Line on a run's clock, and on its measured error on that chip (docs/validity.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.resources import load_yaml, names

FILE = "validity"  # of conf: chips to forms to errors in percent, which `make validity` writes


def clock_line(deployments: Iterable[Deployment], clock: EngineClock, served: bool = True) -> str:
    """The timing form and the engine's clock in use, and how far off they are on each chip, in words: iterations, and
    what engines `served`."""
    measured, found = load_yaml("", FILE), list(deployments)
    forms = " and ".join(dict.fromkeys(one.timing for one in found))
    preset = _preset(clock)
    chips = dict.fromkeys(f"{one.chip.name}: {_errors(one, preset, measured, served)}" for one in found)
    return f"clock: timing={forms}, engine clock {clock.name}; {'; '.join(chips)} (docs/validity.md)"


def _preset(clock: EngineClock) -> str:
    """Name of the preset that has a clock's figures, whatever the clock is called; '' where none has."""
    for name in names("engine_clock"):
        if replace(EngineClock.load(name), name=clock.name, source=clock.source) == clock:
            return name
    return ""


def _errors(deployment: Deployment, clock: str, measured: Mapping[str, Any], quoted: bool) -> str:
    chip, form = deployment.chip, deployment.timing
    known = measured.get(chip.name, {}).get(form, {})
    alone = (f"iterations {known['iterations']:.1f} % off in the mean" if "iterations" in known else
             chip.sources.get(f"error.{form}") or "not held against measured iterations")
    if not quoted:
        return alone
    served = next((one for one in known.get("served", ()) if one["clock"] == clock), None)
    if served is None:
        return f"{alone}, not held against an engine with this clock"
    ends = ", ".join(f"{name} {served[key]:+.0f} %" for name, key in (("TTFT", "ttft"), ("TPOT", "tpot")))
    return f"{alone}, {served['engine']} served again {ends}".replace(" -", " −")
