"""A suite's tasks as windows, and what windows are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.envs.config import NOT_ARGUMENTS, EpisodeConfig, episode_config, under
from ooco_gym.errors import UserError
from ooco_gym.metrics.crossed import iqm, probability_of_improvement
from ooco_gym.metrics.statistics import RESAMPLES, resampled_interval
from ooco_gym.peak import file_stamps
from ooco_gym.policy import get_policy
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.simulation import simulate
from ooco_gym.study.population import Candidate, Population
from ooco_gym.study.runs import in_processes, policy_identity

# Of a window: offline service (reference GPU-s/s), online requests that violate, and all. Who is undecided at the end
# of the drain violates: else a policy that starves all requests after their first token violates none.
METRICS = ("service", "violated", "arrived")
# What counts in a track instead of offline service, of a window's summary: more is better.
MEASURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "service_per_chip": lambda summary: summary["offline"]["reference_gpu_s_per_s"] / summary["fleet"]["chips"],
    "jobs": lambda summary: 1.0 / summary["jobs"]["completion_mean_s"]}


def arranged(suite: Mapping[str, Any], task: str) -> tuple[dict[str, Any], dict[str, Any], EpisodeConfig]:
    """The environment of a task, the changes to its scenario, and what both make."""
    track, changes = suite["tracks"][suite["tasks"][task]["track"]], dict(suite["tasks"][task]["changes"])
    frozen = conf_root() / "suite" / "clusters" / f"{changes.get('cluster')}.yaml"
    if frozen.is_file():  # the suite's version of a cluster that has changed since
        changes["cluster"] = load_yaml("cluster", frozen)
    env = {"name": track["env"], **load_yaml("env", track["env"]), "warmup_s": float(suite["warmup_s"]),
           "window_s": float(suite["horizon_s"]) * track.get("times", 1)}
    given: dict[str, Any] = {**{key: value for key, value in env.items() if key not in NOT_ARGUMENTS}, "reward": {}}
    return env, changes, under(episode_config(track["env"], **given), changes, f"suite.tasks.{task}")


def tracks_for(suite: Mapping[str, Any], mixed: bool) -> list[str]:
    """The tracks for policies of mixed instances or of pools, the usual one first."""
    kind = "mixed" if mixed else "pools"
    return [name for name, track in suite["tracks"].items() if track.get("policies", name) == kind]


def scenarios_of(suite: Mapping[str, Any], task: str, seeds: Sequence[int]) -> list[ResolvedScenario]:
    """A task's windows, one of each seed."""
    config, found = arranged(suite, task)[2], list[ResolvedScenario]()
    for seed in seeds:
        found.append(config.window(seed, 0).resolve(like=found[-1] if found else None))
    return found


def outcomes(suite: Mapping[str, Any], tasks: Sequence[str], policy: str, seeds: list[int], cache: bool = False
             ) -> dict[str, dict[str, list[float]]]:
    """Simulates windows of tasks under a policy by its name; returns `METRICS` of each window, by task. `cache`: keeps
    them on disk."""
    asked = [(suite, task, policy, seeds) for task in tasks]
    found = in_processes(simulated, asked, 1, cache=cache, depends=lambda one: [
        *one, file_stamps(list(arranged(suite, one[1])[:2])), policy_identity(policy)])
    return dict(zip(tasks, found, strict=True))


def simulated(asked: tuple[Mapping[str, Any], str, str | Candidate, list[int]]) -> dict[str, list[float]]:
    """Simulates a task's windows under one policy, in threads; returns `METRICS` of each."""
    suite, task, given, seeds = asked
    scenarios, measure = scenarios_of(suite, task, seeds), suite["tracks"][suite["tasks"][task]["track"]].get("measure")
    mine = Candidate(get_policy(given)) if isinstance(given, str) else given
    if measure is not None:
        if mine.composer or mine.weights is not None:
            raise UserError(f"task {task} counts {measure}, of whole runs: it takes a compiled rule or a policy's name")
        return _measured([simulate(one, mine.policy).summary for one in scenarios], MEASURES[measure])
    outcome = Population(scenarios).play([mine])[0]
    outcome["violated"] += outcome["undecided"]
    return {key: outcome[key].tolist() for key in METRICS}


def _measured(summaries: list[dict[str, Any]], measure: Callable[[Mapping[str, Any]], float]) -> dict[str, list[Any]]:
    arrived = [int((one.get("jobs") or one["online"])["arrived"]) for one in summaries]  # calls depend on the policy
    rates = [summary["online"]["violation_rate_at_most"] or 0.0 for summary in summaries]
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
