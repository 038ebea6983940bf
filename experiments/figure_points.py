"""The points of a figure: its axes multiplied out, each played on every seed, and its metrics in rows.

A point is a policy on a scenario. It is simulated as it is, or under what the figure holds: the highest offline rate
that is sustained, or the fewest instances that keep the SLOs. A figure of another kind names the function that
plays its points (`play: {function: MODULE:NAME, …}`), which may answer with rows, further axes in them.
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
from experiments.common.peaks import reference_policy
from experiments.common.rate_search import Limits, Plan, crossings, resamples
from experiments.common.runner import Jobs
from experiments.common.sustain import Bench, placed, sustain
from experiments.plan import Planner
from experiments.plays import profiled, simulated
from ooco_gym.errors import UserError, check_keys, finite
from ooco_gym.own_code import check
from ooco_gym.policy import get_policy, spelled
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario

Found = Sequence[Mapping[str, Any]]  # of each seed
_PEAKS = threading.Lock()


@dataclass(frozen=True)
class Point:
    """One combination of the axes: its labels, and what is played."""

    at: dict[str, Any]
    policy: str
    scenario: Scenario
    run: Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A point's labels by axis, and its metrics: of each of `seeds` an array of shape (seeds,), of all together
    (`sustained.…`) what resamples of them come to, shape (resamples,). Without `seeds` they are as many as there are
    values."""

    at: dict[str, Any]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    seeds: int = 0


# --- Axes -----------------------------------------------------------------------------------------------------------
def points_of(spec: Mapping[str, Any]) -> list[Point]:
    """All combinations of a figure's axes (CONTRIBUTING.md, A figure), each with its changes made.

    Raises:
        UserError: an unknown field, policy or function, or a parameter that none of the policies has.
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
        raise UserError(f"axis policy.{min(asked - known)}: none of its policies has that parameter")
    return points


def _changed(spec: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], at: Mapping[str, Any]
             ) -> tuple[Any, dict[str, Any], dict[str, dict[str, Any]]]:
    """The policy, the scenario's fields, and the settings of `policy` and `play` of one combination of labels."""
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
    """Labels of an axis, each with its changes."""
    pairs = given.items() if isinstance(given, Mapping) else [(value, value) for value in given]
    return [(label, value if isinstance(value, Mapping) else {axis: value}) for label, value in pairs]


def _by_label(value: Any, at: Mapping[str, Any]) -> Any:
    """A value, or of `{axis: {label: value}}` the one of a point's label on another axis."""
    if not isinstance(value, Mapping):
        return value
    axis, by_label = next(iter(value.items()))
    return by_label.get(at[axis])


def _player(play: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """The function that plays a point, its options given."""
    named = play.pop("function", None)
    if named is None:
        return partial(simulated, **play) if play else simulated
    module, _, name = str(named).partition(":")
    try:
        check(module, f"play.function={named}", data=True, called=True)
        function = getattr(importlib.import_module(module), name)
        if function.__module__ != module:  # what a module of ours has imported is none of ours
            check(function.__module__, f"play.function={named}", data=True, called=True)
    except (ImportError, AttributeError) as error:
        raise UserError(f"play.function={named} cannot be imported ({error}); expected MODULE:NAME") from error
    return partial(function, **play)


# --- Playing --------------------------------------------------------------------------------------------------------
def measure(points: Sequence[Point], seeds: Sequence[int], hold: Mapping[str, Any],
            jobs: Jobs) -> list[tuple[Point, Found]]:
    """The results of each point on each seed."""
    check_keys("hold", hold, ("sustained", "least"))
    if hold:
        held = _sustained if "sustained" in hold else _least
        play = partial(held, jobs, tuple(seeds), next(iter(hold.values())) or {})
        return list(zip(points, jobs.at_once(play, points), strict=True))
    first: list[Any] = []
    for one in points:  # what test runs find is the same for all seeds
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
    """The highest offline rate that holds: the summaries at the highest that held for all seeds, with what they cross.

    With `protocol` load, SLOs, limits and search are those of `ooco-gym capacity protocol=…`.
    """
    check_keys("hold.sustained", options, ("search", "limits", "tpot_from", "protocol"))
    tpot_from, scenario = options.get("tpot_from") or "first_token", point.scenario
    if "protocol" in options:
        given = by_protocol({**load_yaml("", "capacity"), "protocol": options["protocol"], "seeds": list(seeds)})
        with _PEAKS:  # found once for all policies
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
    """The rates that resamples of some seeds of `_sustained` sustain together, shape (resamples,)."""
    held, seeds = found[0]["sustained"], np.array([one["sustained"]["seed"] for one in found])
    rates, tokens = crossings(held["points"], held["limits"], seeds[resamples(len(seeds))])
    return {"rate": rates, "total_tokens_per_s": tokens}


def _least(jobs: Jobs, seeds: tuple[int, ...], options: Mapping[str, Any], point: Point) -> Found:
    """The fewest instances that keep the SLOs on each seed."""
    check_keys("hold.least", options, ("violations", "most"))
    limits = Limits(float(options.get("violations", 0.03)), kept_up=0.0, kept_up_service=0.0)
    found = [Planner(point.policy, point.scenario, Bench(jobs, point.scenario, (seed,), limits=limits))
             .fewest(0.0, int(options.get("most", 64)))[-1] for seed in seeds]
    return [{"instances": one.instances, "violation_rate": float(one.point.violations.mean())} for one in found]


# --- Metrics --------------------------------------------------------------------------------------------------------
def rows_of(measured: Sequence[tuple[Point, Found]], metrics: Mapping[str, Any]) -> list[Row]:
    """A row for each point, or for each row that its play answered with, with all metrics."""
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
            raise UserError(f"metrics.{name}: no point has {metric['value']}; name one of simulate's summary.json")
    for name, given in metrics.items():
        plain = {str(sorted(row.at.items(), key=str)): row.values[name] for row in rows}
        for key in {"over", "excess_over"} & set(given if isinstance(given, Mapping) else ()):
            for row in rows:
                other = plain[str(sorted({**row.at, **given[key]}.items(), key=str))]
                row.values[name] = row.values[name] / np.where(other > 0, other, np.nan) - (key == "excess_over")
    return rows


def _number(path: Any, figures: Mapping[str, Any], at: Mapping[str, Any]) -> float:
    """A figure by its dotted name, or the sum of several; one for each label of an axis where there is a mapping."""
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
