"""Plays a suite's tasks: `ooco-gym suite run` (docs/suite.md).

A simulated policy runs whole windows; a network or a function takes the decisions of the track's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from agents.environments import windows
from agents.evaluation.evaluate import depends_on, jobs_of, play_job
from agents.evaluation.players import function_of, load_learned
from agents.score.windows import arranged, outcomes, tracks_for
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import get_policy
from ooco_gym.resources import load_yaml
from ooco_gym.study.runs import in_processes


def _simulated(policy: str) -> bool:
    """Whether a policy runs whole windows, instead of taking an environment's decisions."""
    return not Path(policy).is_dir() and function_of(policy) is None


def tasks_of(config: Mapping[str, Any], policy: str) -> list[str]:
    """The tasks to run: those asked for, else all of the policy's track.

    Raises:
        UserError: an unknown task, or tasks of several tracks.
    """
    suite, known, track = config["suite"], config["suite"]["tasks"], config["track"]
    if track not in (None, *suite["tracks"]):
        raise unknown("track of the suite", track, suite["tracks"])
    if _simulated(policy):
        fit = tracks_for(suite, get_policy(policy).mixed)
    elif Path(policy).is_dir():
        env = load_learned(policy).env.get("id")
        fit = [name for name, one in suite["tracks"].items() if load_yaml("env", one["env"])["id"] == env] or ["pools"]
    elif track is None:
        raise UserError(f"policy={policy} does not say which track a function is for; add track=pools or track=mixed")
    else:
        fit = [track]
    if track not in (None, *fit):
        raise UserError(f"policy={policy} is for track {' or '.join(fit)}, not {track}")
    own = track or fit[0]
    names = [name for name, one in known.items() if one["track"] == own]
    asked = names if config["tasks"] is None else config["tasks"]
    for name in (chosen := [asked] if isinstance(asked, str) else list(asked)):
        if name not in known:
            raise unknown("task of the suite", name, known)
        if name not in names:
            raise UserError(f"task {name} is of track {known[name]['track']}; policy={policy} is for {own}: "
                            f"{', '.join(names)}")
    return chosen


def play(suite: Mapping[str, Any], task: str, policy: str, count: int, workers: int = 1, cache: bool = False
         ) -> dict[str, list[float]]:
    """Runs the first `count` windows of a task under a policy; returns `METRICS` of each window.

    Raises:
        UserError: the policy cannot run it.
    """
    env, changes, config = arranged(suite, task)
    if _simulated(policy):
        if get_policy(policy).prepare is None:
            get_policy(policy).vector()  # raises if a parameter has no value
        return outcomes(suite, [task], policy, list(suite["seeds"])[:count], cache)[task]
    if measure := suite["tracks"][suite["tasks"][task]["track"]].get("measure"):
        raise UserError(f"task {task} counts {measure}, a figure of whole windows; it takes a policy's name or rule")
    if changes:  # as a scenario, in which a share of the peak is a factor on the rate
        shift = {key: value for key, value in changes.items() if key != "load"}
        shift |= {"rate_scale": config.scenario.rate_scale} if "load" in changes else {}
        env |= {"shifts": {task: shift}, "shift": task, "vary": dict(config.vary)}
    jobs = jobs_of(env, policy, windows(suite["seeds"], count))
    records = list(chain.from_iterable(in_processes(play_job, jobs, workers, cache=cache, depends=depends_on)))
    found = [record["summary"] for record in records]
    return {"service": [one["offline_reference_gpu_s_per_s"] for one in found],
            "violated": [one["online_violated"] + one["online_undecided"] for one in found],
            "arrived": [one["online_arrived"] for one in found]}
