"""A suite's tasks as windows, and what windows are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agents.search.episodes import Field
from ooco_gym.metrics.crossed import iqm, probability_of_improvement
from ooco_gym.metrics.statistics import RESAMPLES, resampled_interval
from ooco_gym.policy import Policy
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.simulation import simulate
from ooco_gym.study.population import Candidate

# Of a window: offline service (reference GPU-s/s), online requests that violate, and all; by its key in a summary.
METRICS = {"service": "offline_reference_gpu_s_per_s", "violated": "online_violated", "arrived": "online_arrived"}
# What counts in a track instead of offline service, of a window's summary: more is better.
MEASURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "service_per_chip": lambda summary: summary["offline"]["reference_gpu_s_per_s"] / summary["fleet"]["chips"],
    "jobs": lambda summary: 1.0 / summary["jobs"]["completion_mean_s"]}


def arranged(suite: Mapping[str, Any], task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The environment of a task, and the changes to its scenario."""
    track, changes = suite["tracks"][suite["tasks"][task]["track"]], dict(suite["tasks"][task]["changes"])
    frozen = conf_root() / "suite" / "clusters" / f"{changes.get('cluster')}.yaml"
    if frozen.is_file():  # the suite's version of a cluster that has changed since
        changes["cluster"] = load_yaml("cluster", frozen)
    env = {"name": track["env"], **load_yaml("env", track["env"]), "warmup_s": float(suite["warmup_s"]),
           "window_s": float(suite["horizon_s"]) * track.get("times", 1)}
    return env, changes


def tracks_for(suite: Mapping[str, Any], kind: str) -> list[str]:
    """The tracks for policies of `pools` or of `mixed` instances, the usual one first."""
    return [name for name, track in suite["tracks"].items() if track.get("policies", name) == kind]


def field_of(suite: Mapping[str, Any], task: str, seeds: list[int]) -> Field:
    """A task's windows, one of each seed."""
    env, changes = arranged(suite, task)
    return Field(env, [changes], "suite.tasks", seeds, len(seeds))


def simulated(suite: Mapping[str, Any], task: str, policy: str | Policy, seeds: list[int],
              strict: bool = True) -> dict[str, list[float]]:
    """Simulates a task's windows under one policy, in threads; returns `METRICS` of each. `strict`: who is undecided
    when the drain ends violates, else a rule that starves all requests after their first token violates none."""
    field, measure = field_of(suite, task, seeds), suite["tracks"][suite["tasks"][task]["track"]].get("measure")
    if measure is not None:
        rule = field.policy(policy) if isinstance(policy, str) else policy
        found = [simulate(one.scenario, rule).summary for one in field.population.windows]
        return _measured(found, MEASURES[measure], "violation_rate_at_most" if strict else "violation_rate")
    outcome = field.population.play([Candidate(field.policy(policy) if isinstance(policy, str) else policy)])[0]
    outcome["violated"] += strict * outcome["undecided"]
    return {key: outcome[key].tolist() for key in METRICS}


def _measured(summaries: list[dict[str, Any]], measure: Callable[[Mapping[str, Any]], float],
              late: str) -> dict[str, list[Any]]:
    arrived = [int((one.get("jobs") or one["online"])["arrived"]) for one in summaries]  # calls depend on the policy
    rates = [summary["online"][late] or 0.0 for summary in summaries]
    return {"service": list(map(measure, summaries)), "arrived": arrived,
            "violated": [round(rate * count) for rate, count in zip(rates, arrived, strict=True)]}


def scores(suite: Mapping[str, Any], played: Mapping[str, Mapping[str, list[float]]],
           references: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """Returns the track, the interquartile mean of all windows with its 95 % interval, the probability that a window
    beats the reference's, and each task's mean score, violation rate and feasibility."""
    by_task, mine, others = {}, [], []
    for name, one in played.items():
        reference = np.asarray(references[name]["service"])
        rate = float(np.sum(one["violated"]) / max(np.sum(one["arrived"]), 1))
        feasible = rate <= float(suite["violation_limit"])
        mine.append(np.asarray(one["service"]) / reference.mean() * feasible)
        others.append(reference / reference.mean())
        by_task[name] = {"score": float(mine[-1].mean()), "violation_rate": rate, "feasible": feasible}
    found = {}
    for key, statistic in (("iqm", lambda a, _: iqm(a[..., None, :])),
                           ("improvement", lambda a, b: probability_of_improvement(a[..., None, :], b[..., None, :]))):
        generator, draws = np.random.Generator(np.random.Philox(key=0)), []
        for a, b in zip(mine, others, strict=True):  # windows within each task
            picks = generator.integers(len(a), size=(RESAMPLES, len(a)))
            draws.append((a[picks], b[picks]))
        low, high = resampled_interval(statistic(*(np.concatenate(part, axis=1) for part in zip(*draws, strict=True))),
                                       sum(map(len, mine)))
        found[key] = {"value": float(statistic(np.concatenate(mine), np.concatenate(others))), "ci_low": low,
                      "ci_high": high}
    return {"track": suite["tasks"][next(iter(played))]["track"], "by_task": by_task, **found}
