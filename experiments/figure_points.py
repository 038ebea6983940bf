"""The points of a figure: all combinations of its axes, simulated on every seed, and its metrics in
rows.

A point is a policy on a scenario. It is simulated directly, or under the figure's `hold`: at the
highest sustainable offline rate, or on the fewest instances within the SLOs. A figure may name
another function for its points (`play: {function: MODULE:NAME, …}`), which may return rows with
further axes.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from experiments.capacity import Condition, by_protocol, cell_of
from experiments.peaks import reference_policy
from experiments.plan import Planner
from experiments.plays import profiled, simulated
from ooco_gym.errors import UserError, check_keys, finite
from ooco_gym.own_code import check
from ooco_gym.policy import get_policy, spelled
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Limits, Plan, crossings, resamples
from ooco_gym.study.sustain import Bench, placed, sustain

Found = Sequence[Mapping[str, Any]]  # results by seed
_PEAKS = threading.Lock()


@dataclass(frozen=True)
class Point:
    """One combination of the axes: its labels, and what is simulated."""

    at: dict[str, Any]
    policy: str
    scenario: Scenario
    run: Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A point's labels by axis, and its metrics.

    A metric has one value per seed, shape (seeds,), or, for results of all seeds together
    (`sustained.…`), one per resample, shape (resamples,). Without `seeds` there are as many seeds
    as values.
    """

    at: dict[str, Any]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    seeds: int = 0


# --- Axes -----------------------------------------------------------------------------------------------------------
def points_of(spec: Mapping[str, Any]) -> list[Point]:
    """Returns all combinations of a figure's axes (CONTRIBUTING.md, A figure), with their changes
    applied.

    Raises:
        UserError: an unknown field, policy or function, or a parameter that no policy has.
    """
    everywhere = dict(spec.get("set") or {})
    axes = []
    for axis, given in spec["axes"].items():
        axes.append([(axis, label, changes) for label, changes in _options(axis, given)])
    points, asked, known = [], set(), set()
    for chosen in itertools.product(*axes):
        at = {axis: label for axis, label, _ in chosen}
        policy, given, parts = _changed(spec, [everywhere, *(changes for _, _, changes in chosen)], at)
        check_keys("scenario", given, Scenario.__dataclass_fields__)
        scenario = Scenario.from_config(given)
        policy = str(policy or reference_policy(scenario))
        named = {param.name for param in get_policy(policy).params}
        own = {name: value for name, value in parts["policy"].items() if name in named}
        asked, known = asked | set(parts["policy"]) - {key.partition(".")[2] for key in everywhere}, known | set(own)
        points.append(Point(at, spelled(policy, own), placed(scenario, policy), _player(parts["play"])))
    if asked - known:
        raise UserError(f"axis policy.{min(asked - known)}: no policy of the figure has that parameter")
    return points


def _changed(spec: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], at: Mapping[str, Any]
             ) -> tuple[Any, dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns policy, scenario fields, and options of `policy` and `play` for one combination of labels."""
    policy, given = spec.get("policy"), deepcopy(dict(spec.get("scenario") or {}))
    parts: dict[str, dict[str, Any]] = {"policy": {}, "play": dict(spec.get("play") or {})}
    for key, value in itertools.chain.from_iterable(one.items() for one in changes):
        head, _, rest = key.partition(".")
        if key == "policy":
            policy = _by_label(value, at)
        elif head in parts:
            parts[head][rest] = value
        else:
            given[head] = {**(given.get(head) or {}), rest: value} if rest else value
    return policy, given, parts


def _options(axis: str, given: Any) -> list[tuple[Any, Mapping[str, Any]]]:
    """Returns the labels of an axis, each with its changes."""
    pairs = given.items() if isinstance(given, Mapping) else [(value, value) for value in given]
    return [(label, value if isinstance(value, Mapping) else {axis: value}) for label, value in pairs]


def _by_label(value: Any, at: Mapping[str, Any]) -> Any:
    """Returns a value, or from `{axis: {label: value}}` the one for a point's label on another axis."""
    if not isinstance(value, Mapping):
        return value
    axis, by_label = next(iter(value.items()))
    return by_label.get(at[axis])


def _player(play: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Returns the function that evaluates a point, with its options."""
    named = play.pop("function", None)
    if named is None:
        return partial(simulated, **play) if play else simulated
    module, _, name = str(named).partition(":")
    try:
        check(module, f"play.function={named}", data=True, called=True)
        function = getattr(importlib.import_module(module), name)
        if function.__module__ != module:  # rejects what our modules only import
            check(function.__module__, f"play.function={named}", data=True, called=True)
    except (ImportError, AttributeError) as error:
        raise UserError(f"play.function={named} cannot be imported ({error}); expected MODULE:NAME") from error
    return partial(function, **play)


# --- Simulation-----------------------------------------------------------------------------------------------------
def measure(points: Sequence[Point], seeds: Sequence[int], hold: Mapping[str, Any],
            jobs: Jobs) -> list[tuple[Point, Found]]:
    """Returns the results of each point on each seed."""
    check_keys("hold", hold, ("sustained", "least"))
    if hold:
        held = _sustained if "sustained" in hold else _least
        play = partial(held, jobs, tuple(seeds), next(iter(hold.values())) or {})
        return list(zip(points, jobs.at_once(play, points), strict=True))
    first: list[Any] = []
    for one in points:  # profiling results are the same for all seeds
        profiles = get_policy(one.policy).profile is not None
        first.append(jobs.submit(one.scenario.with_(seed=seeds[0]), one.policy, profiled) if profiles else None)
    asked = []
    for one, found in zip(points, first, strict=True):
        policy = spelled(one.policy, found.result() if found else {})
        asked.append([jobs.submit(one.scenario.with_(seed=seed), policy, one.run) for seed in seeds])
    answers = []
    for one, mine in zip(points, asked, strict=True):
        answers.append((one, [answer.result() for answer in mine]))
    return answers


def _sustained(jobs: Jobs, seeds: tuple[int, ...], options: Mapping[str, Any], point: Point) -> Found:
    """Returns the summaries at the highest offline rate sustainable over all seeds, with the
    search's points.

    With `protocol`, load, SLOs, limits and search are those of `ooco-gym capacity protocol=…`.
    """
    check_keys("hold.sustained", options, ("search", "limits", "tpot_from", "protocol"))
    tpot_from, scenario = options.get("tpot_from") or "first_token", point.scenario
    if "protocol" in options:
        given = by_protocol({**load_yaml("", "capacity"), "protocol": options["protocol"], "seeds": list(seeds)})
        with _PEAKS:  # searched once for all policies
            condition = Condition("", scenario.with_(rate_scale=None), (), {})
            scenario = cell_of(condition, given, tpot_from, jobs)[0].scenario
        options = {key: {**given[key], **(options.get(key) or {})} for key in ("search", "limits")}
    limits = Limits(**options.get("limits") or {})
    bench = Bench(jobs, scenario, seeds, tpot_from, limits, Plan(**options.get("search") or {}))
    found = sustain(bench, point.policy)
    at = found.crossing.best or found.crossing.points[0]
    return [{**summary, "sustained": {"points": found.crossing.points, "limits": limits, "seed": seed}}
            for seed, summary in enumerate(at.summaries)]


def _crossed(found: Found) -> dict[str, np.ndarray]:
    """Returns the rates that resamples of some seeds of `_sustained` sustain, shape (resamples,)."""
    held, seeds = found[0]["sustained"], np.array([one["sustained"]["seed"] for one in found])
    rates, tokens = crossings(held["points"], held["limits"], seeds[resamples(len(seeds))])
    return {"rate": rates, "total_tokens_per_s": tokens}


def _least(jobs: Jobs, seeds: tuple[int, ...], options: Mapping[str, Any], point: Point) -> Found:
    """Returns the fewest instances within the SLOs on each seed."""
    check_keys("hold.least", options, ("violations", "most"))
    limits = Limits(float(options.get("violations", 0.03)), kept_up=0.0, kept_up_service=0.0)
    found = [Planner(point.policy, point.scenario, Bench(jobs, point.scenario, (seed,), limits=limits))
             .fewest(0.0, int(options.get("most", 64)))[-1] for seed in seeds]
    return [{"instances": one.instances, "violation_rate": float(one.point.violations.mean())} for one in found]


# --- Metrics --------------------------------------------------------------------------------------------------------
def rows_of(measured: Sequence[tuple[Point, Found]], metrics: Mapping[str, Any]) -> list[Row]:
    """Returns a row with all metrics for each point, or for each row that its function returned."""
    rows, figures = [], []
    for point, found in measured:
        listed = [one.get("rows", [one]) for one in found]
        for answers in zip(*listed, strict=True):
            rows.append(Row({**point.at, **answers[0].get("at", {})}, seeds=len(answers)))
            figures.append(answers)
    for name, given in metrics.items():
        metric = given if isinstance(given, Mapping) else {"value": given}
        check_keys(f"metrics.{name}", metric, ("value", "per", "over", "excess_over"))
        for row, answers in zip(rows, figures, strict=True):
            _, is_sustained, key = str(metric["value"]).partition("sustained.")
            row.values[name] = (_crossed(answers)[key] if is_sustained else
                                np.array([_number(metric["value"], one, row.at) for one in answers]))
            if "per" in metric:
                row.values[name] = row.values[name] / [_number(metric["per"], one, row.at) for one in answers]
        if all(np.isnan(row.values[name]).all() for row in rows):
            raise UserError(f"metrics.{name}: no point has {metric['value']}; expected a metric of simulate's "
                            "summary.json")
    for name, given in metrics.items():
        plain = {str(sorted(row.at.items(), key=str)): row.values[name] for row in rows}
        for key in {"over", "excess_over"} & set(given if isinstance(given, Mapping) else ()):
            for row in rows:
                other = plain[str(sorted({**row.at, **given[key]}.items(), key=str))]
                row.values[name] = row.values[name] / np.where(other > 0, other, np.nan) - (key == "excess_over")
    return rows


def _number(path: Any, figures: Mapping[str, Any], at: Mapping[str, Any]) -> float:
    """Returns a value by its dotted name, or the sum of several; a mapping has a name for each label of an axis."""
    if isinstance(path, Mapping):
        axis, by_label = next(iter(path.items()))
        path = by_label.get(at[axis], "")
    if isinstance(path, list):
        return sum(_number(one, figures, at) for one in path)
    value: Any = figures
    for part in str(path).split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, float):
        return float("nan" if value is None else value)
    return finite(f"the figure '{path}'", value)
