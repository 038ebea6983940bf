"""Plays the points of a figure or a claim: all combinations of its axes, on every seed, as metrics.

A point is a policy on a scenario. It is simulated directly, or with `hold` at the highest
sustainable offline rate, or on the fewest instances within the SLOs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.capacity import at_load, by_protocol
from experiments.peaks import reference_policy
from experiments.plays import profiled, simulated
from experiments.registry import Figure, Test
from experiments.sizes import Planner
from ooco_gym import schema
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy, spelled
from ooco_gym.report import Section, Table, curve, errors, number, plot, with_interval
from ooco_gym.report.pages import Plot
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Limits, SearchPlan, resamples
from ooco_gym.study.sustain import Bench, placed
from ooco_gym.study.table import Answer, Metric

Found = Sequence[Mapping[str, Any]]  # results by seed
Play = Callable[..., dict[str, Any]]
_PEAKS = threading.Lock()


@dataclass(frozen=True)
class Combination:
    """One combination of the axes: its labels, and what is simulated."""

    at: dict[str, Any]
    policy: str
    scenario: Scenario
    run: Play


class Study:
    """What a figure's function plays with.

    Attributes:
        figure: the figure or claim.
        quick: whether the figure's quick settings are used.
        shown: metrics of the page's table, by title.
        drawn: its plot; None: none.
    """

    def __init__(self, figure: Figure, jobs: Jobs, seeds: tuple[int, ...], quick: bool = False) -> None:
        self.figure, self.quick, self._jobs, self._seeds = figure, quick, jobs, seeds
        self.shown: dict[str, Metric] = {}
        self.drawn: Mapping[str, Any] | None = None
        self._kept: list[list[tuple[Combination, Found]]] = []  # by call of `play`
        self._plays, self._block = 0, slice(None)

    def play(self, axes: Mapping[str, Any], *, scenario: Mapping[str, Any] | None = None, policy: Any = None,
             change: Mapping[str, Any] | None = None, hold: Mapping[str, Any] | None = None,
             play: Play = simulated) -> Runs:
        """Simulates all combinations of the axes on every seed.

        Args:
            axes: for each key a list of values, or labels with a value or with changes:
                `online_rate: [1, 2]`, `policy: {"OOCO": "ooco"}`, `slo: {"lax": {"slo.ttft_s": 5}}`.
                A key is a field of the scenario, `policy`, or `policy.PARAMETER`. A policy may be a
                function of the point's other labels.
            scenario: fields of all points, instead of the paper's.
            policy: of all points, if no axis has one.
            change: changes for all points, as those of the axes.
            hold: None: as it is; `{"sustained": {search, limits}}`: at the highest offline rate that
                holds, with `protocol` by `ooco-gym capacity`'s load and limits;
                `{"least": {violations, most}}`: on the fewest instances.
            play: simulates a point, given scenario and policy (`experiments.plays`).

        Raises:
            UserError: an unknown field, policy, or parameter that no policy has.
        """
        quick = self.figure.changes if self.quick else {}
        fields = {**self.figure.paper.scenario, **(scenario or {}), **quick.get("scenario", {})}
        change = {**(change or {}), **quick.get("change", {})}
        if self._plays == len(self._kept):  # other blocks of the seeds use the same runs
            points = points_of(axes, fields, policy, change, play)
            self._kept.append(measure(points, self._seeds, hold or {}, self._jobs))
        found = [(point, list(mine)[self._block]) for point, mine in self._kept[self._plays]]
        self._plays += 1
        return Runs(found, len(self._seeds[self._block]))

    def either(self, whole: Any, quick: Any) -> Any:
        """Returns `whole`, or `quick` with `quick=true`."""
        return quick if self.quick else whole

    def show(self, metrics: Mapping[str, Metric], **plot: Any) -> None:
        """Shows metrics in the page's table, and a plot: `kind` (bars or lines), `x`, `y` (names of metrics; default:
        the first), `series`, `panels`, `log`, `line`."""
        self.shown, self.drawn = dict(metrics), {"y": next(iter(metrics)), **plot} if plot else None

    def tests(self, block: slice = slice(None)) -> list[Test]:
        """Returns the figure's tests on a block of the seeds, by index; all are simulated in any case."""
        self._block, self._plays = block, 0
        return list(self.figure.run(self))


def by(axis: str, policies: Mapping[Any, str]) -> Callable[[Mapping[str, Any]], str | None]:
    """Returns a policy by the label of another axis, such as one that was tuned for each workload."""
    return lambda at: policies.get(at[axis])


# --- Points ---------------------------------------------------------------------------------------------------------
def points_of(axes: Mapping[str, Any], fields: Mapping[str, Any], policy: Any, change: Mapping[str, Any],
              play: Play) -> list[Combination]:
    """Returns all combinations of the axes, with their changes applied; arguments and errors as of `Study.play`."""
    options = []
    for axis, given in axes.items():
        pairs = given.items() if isinstance(given, Mapping) else [(value, value) for value in given]
        options.append([(axis, label, one if isinstance(one, Mapping) else {axis: one}) for label, one in pairs])
    points, asked, known = [], set(), set()
    for chosen in itertools.product(*options):
        at = {axis: label for axis, label, _ in chosen}
        named, given, params = _changed(policy, fields, [change, *(changes for _, _, changes in chosen)], at)
        schema.check_keys("scenario", given, Scenario.__dataclass_fields__)
        scenario = Scenario.from_config(given)
        name = str(named or reference_policy(scenario))
        own = {param.name for param in get_policy(name).params} & set(params)
        asked, known = asked | set(params) - {key.partition(".")[2] for key in change}, known | own
        points.append(Combination(at, spelled(name, {key: params[key] for key in params if key in own}),
                            placed(scenario, name), play))
    if asked - known:
        raise UserError(f"axis policy.{min(asked - known)}: no policy of the figure has that parameter")
    return points


def _changed(policy: Any, fields: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], at: Mapping[str, Any]
             ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Returns policy, scenario fields and policy parameters for one combination of labels."""
    given, params = deepcopy(dict(fields)), {}
    for key, value in itertools.chain.from_iterable(change.items() for change in changes):
        head, _, rest = key.partition(".")
        if key == "policy":
            policy = value
        elif head == "policy":
            params[rest] = value
        else:
            given[head] = {**(given.get(head) or {}), rest: value} if rest else value
    return (policy(at) if callable(policy) else policy), given, params


# --- Simulation -----------------------------------------------------------------------------------------------------
def measure(points: Sequence[Combination], seeds: Sequence[int], hold: Mapping[str, Any],
            jobs: Jobs) -> list[tuple[Combination, Found]]:
    """Returns the results of each point on each seed."""
    schema.check_keys("hold", hold, ("sustained", "least"))
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
    return [(point, list(map(Future.result, mine))) for point, mine in zip(points, asked, strict=True)]


def _sustained(jobs: Jobs, seeds: tuple[int, ...], options: Mapping[str, Any], point: Combination) -> Found:
    """Returns the summaries at the highest offline rate sustainable over all seeds, with the search's results.

    With `protocol`, load, SLOs, limits and search are those of `ooco-gym capacity protocol=…`.
    """
    schema.check_keys("hold.sustained", options, ("search", "limits", "tpot_from", "protocol"))
    tpot_from, scenario = options.get("tpot_from") or "first_token", point.scenario
    if "protocol" in options:
        given = by_protocol({**load_yaml("", "capacity"), "protocol": options["protocol"], "seeds": list(seeds)})
        with _PEAKS:  # searched once for all policies
            scenario, _ = at_load(scenario.with_(rate_scale=None), {**given, "tpot_from": tpot_from}, jobs)
        options = {key: {**given[key], **(options.get(key) or {})} for key in ("search", "limits")}
    limits, plan = Limits(**options.get("limits") or {}), SearchPlan(**options.get("search") or {})
    found = Bench(jobs, scenario, seeds, tpot_from, limits, plan).search(point.policy)
    runs = (found.best or found.points[0]).summaries
    return [{**run, "sustained": {"crossing": found, "seed": seed}} for seed, run in enumerate(runs)]


def _least(jobs: Jobs, seeds: tuple[int, ...], options: Mapping[str, Any], point: Combination) -> Found:
    """Returns the fewest instances within the SLOs on each seed."""
    schema.check_keys("hold.least", options, ("violations", "most"))
    limits = Limits(float(options.get("violations", 0.03)), kept_up=0.0, kept_up_service=0.0)
    found = []
    for seed in seeds:
        planner = Planner(point.policy, Bench(jobs, point.scenario, (seed,), limits=limits))
        least = planner.fewest(0.0, int(options.get("most", 64)))[-1]
        found.append({"instances": least.instances, "violation_rate": float(least.point.violations.mean())})
    return found


# --- Metrics --------------------------------------------------------------------------------------------------------
class Runs:
    """The results of a study's points; `runs["online.ttft_p99_s"]` is a metric of `summary.json` at each."""

    def __init__(self, found: Sequence[tuple[Combination, Found]], seeds: int) -> None:
        self._seeds, self._points, self._answers = seeds, [], []
        for point, mine in found:
            for answers in zip(*(one.get("rows", [one]) for one in mine), strict=True):
                self._points.append({**point.at, **answers[0].get("at", {})})
                self._answers.append(answers)

    def __getitem__(self, name: str) -> Metric:
        return self._metric([name] * len(self._points))

    def by(self, axis: str, names: Mapping[Any, str]) -> Metric:
        """Returns the metric that each label of an axis names."""
        return self._metric([names[point[axis]] for point in self._points])

    def _metric(self, names: Sequence[str]) -> Metric:
        values = []
        for name, answers in zip(names, self._answers, strict=True):
            _, is_sustained, key = name.partition("sustained.")
            values.append(_crossed(answers)[key] if is_sustained else [_number(name, answer) for answer in answers])
        if np.isnan(table := np.array(values, float)).all():
            raise UserError(f"no point has {names[0]}; expected a metric of simulate's summary.json")
        return Metric(self._points, table, self._seeds)


def _crossed(found: Found) -> dict[str, np.ndarray]:
    """Returns the rates that resamples of some seeds of `_sustained` sustain, shape (resamples,)."""
    seeds = np.array([one["sustained"]["seed"] for one in found])
    rates, tokens = found[0]["sustained"]["crossing"].of(seeds[resamples(len(seeds))])
    return {"rate": rates, "total_tokens_per_s": tokens}


def _number(path: str, figures: Mapping[str, Any]) -> float:
    """Returns a value by its dotted name; NaN if there is none."""
    value: Any = figures
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, float):
        return float("nan" if value is None else value)
    return schema.number(f"the figure '{path}'", value)


# --- The page -------------------------------------------------------------------------------------------------------
def section_of(study: Study, sentences: Sequence[str], command: str) -> Section:
    """Returns a study's section: sentences, its plots, and its table of all points."""
    return Section(f"{study.figure.name}: {study.figure.title}", sentences, [table_of(study.shown)],
                   list(plots_of(study.shown, study.drawn or {})), [command])


def written(found: Mapping[str, Any], *keys: str) -> str:
    """Returns a number with its interval."""
    mean, low, high = (found[key] for key in keys or ("mean", "low", "high"))
    return with_interval(mean, low, high, number)


def table_of(metrics: Mapping[str, Metric]) -> Table:
    """Returns a table of all points: axes, then metrics as means with intervals over seeds."""
    points = next(iter(metrics.values())).points
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    rows = []
    for place, point in enumerate(points):
        cells = [written(Answer(metric.values[place], metric.seeds).estimate()) for metric in metrics.values()]
        rows.append([*(str(point.get(axis, "")) for axis in axes), *cells])
    return Table("", [*axes, *metrics], rows)


def plots_of(metrics: Mapping[str, Metric], how: Mapping[str, Any]) -> Iterator[Plot]:
    """Yields the figure in the original's style: bars or lines of each metric `y` along the axis `x`, a plot for each
    label of `panels`, a colour for each of `series`, and a dashed `line`."""
    for name in [how["y"]] if isinstance(how.get("y"), str) else how.get("y", ()):
        metric = metrics[name]
        for panel in _labels(metric, how.get("panels")):
            inside = metric if panel is None else metric.where({how["panels"]: panel})
            traces = []
            for colour, series in enumerate(_labels(inside, how.get("series"))):
                mine = inside if series is None else inside.where({how["series"]: series})
                traces.append(_trace(name if series is None else str(series), mine, how, colour))
            if how.get("line") is not None:
                ends = [trace["x"][place] for trace in traces for place in (0, -1) if trace["x"]]
                traces.append(curve("", ends, [float(how["line"])] * len(ends), -1, "dashes"))
            title = name if panel is None else f"{panel} · {name}"
            yield plot(title, traces, str(how["x"]), log=str(how.get("log", "")))


def _trace(name: str, metric: Metric, how: Mapping[str, Any], colour: int) -> dict[str, Any]:
    """Returns bars or a line of one metric, with its intervals."""
    found = [Answer(values, metric.seeds).estimate() for values in metric.values]
    mean, low, high = zip(*(map(one.get, ("mean", "low", "high")) for one in found), strict=True)
    x, kind = [point[how["x"]] for point in metric.points], "lines+markers"
    if how["kind"] == "bars":
        x, kind = list(map(str, x)), "bars"
    return curve(name, x, mean, colour, kind, error_y=errors(mean, low, high))


def _labels(metric: Metric, axis: str | None) -> list[Any]:
    return metric.labels(axis) if axis else [None]
