"""`ooco-gym evaluate`: runs learned policies and heuristics on the same held-out windows and scores them."""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agents.environments import Window, check_ours, env_of, make_env, split_seeds, windows
from agents.evaluation.heuristics import RANDOM, Heuristic, as_base_policy, by_name, heuristics_of
from agents.evaluation.players import (
    BatchPlayer,
    FunctionPlayer,
    Player,
    check_fit,
    environment_of,
    function_of,
    given,
    groups_of,
    load_learned,
    play,
    runs_of,
    start_of,
)
from agents.evaluation.scoring import budget_words, score
from agents.policies.runs import searched_policy
from agents.settings import Episodes, limit_torch_threads
from ooco_gym.cli.sweep import FILE as SWEEP_FILE
from ooco_gym.envs import ENVIRONMENTS, imported
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, write_json
from ooco_gym.peak import file_stamps
from ooco_gym.policy import is_policy
from ooco_gym.policy.registry import RETENTION
from ooco_gym.render import write_report
from ooco_gym.render.reading import evaluated
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import check, is_whole, plain, whole
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import in_processes, policy_identity

SIDE_BY_SIDE = 8  # windows of one job; fixed, so that results do not depend on the number of processes
SCHEMA = "ooco-gym/evaluation/1"
ALL = "all"


class Entrant(NamedTuple):
    """A policy under evaluation: its label, and the policies that play for it: of a network, the folders of its
    training runs by name, else one without a name (None). What a search found is learned, but a policy's name."""

    label: str
    runs: dict[Any, str]
    learned: bool = True


class Assignment(NamedTuple):
    """Some windows of one policy: a heuristic's or function's name, or the folder of a training run called `run`."""

    label: str
    env: dict[str, Any]
    policy: str
    run: str | None
    games: list[Window]


def main(cfg: Any) -> dict[str, Any]:
    """Evaluates `cfg.policies`: names of heuristics, run folders, export folders, folders of several runs.

    Writes evaluation.html, evaluation.json and episodes.csv.

    Raises:
        UserError: a policy is neither a heuristic nor a folder or does not fit the environment, a
            shift is unknown, or a count is out of range.
    """
    config, started = plain(cfg), time.monotonic()
    env = env_of(config)
    entrants = _entrants(_listed(env, config.get("policies")))
    asked = config.get("seeds")
    seeds = list(seeds_of(asked, known=split_seeds(env, "test") if asked is None or is_whole(asked) else None))
    games = windows(seeds, check(Episodes, "episodes", config["episodes"]))
    shifts, jobs = _shifts(env, config.get("shift")), list[tuple[str | None, Assignment]]()
    for shift in shifts:
        here = env if shift is None else {**env, "shift": shift}
        jobs += [(shift, job) for job in _jobs(here, entrants, games)]
    notes = notes_of(env, entrants, seeds)
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    found = in_processes(play_job, [job for _, job in jobs], whole("workers", config.get("workers", 1), 1),
                         "evaluating", bool(config.get("cache")), depends_on)
    played: dict[str | None, dict[str, list[Any]]] = {shift: {} for shift in shifts}
    for (shift, job), records in zip(jobs, found, strict=True):
        played[shift].setdefault(job.label, []).extend(records)
    summary = {"command": "evaluate", "env": env["id"], "seeds": seeds, "episodes": len(games),
               "window_s": env.get("window_s"), "notes": notes,
               **_scored(env, entrants, played, len(games), notes), "wall_s": time.monotonic() - started}
    _write(Path(config["out"]), summary, played)
    outcomes = evaluated(summary)
    for outcome in outcomes:
        outcome.show()
    write_report(Path(config["out"]) / "evaluation.html", outcomes)
    return summary


def notes_of(env: Mapping[str, Any], entrants: Sequence[Entrant], seeds: Sequence[int]) -> list[str]:
    """Returns notes on windows whose seeds a policy was trained on, on windows of the environment's training split
    (from which tuned policies are), and on learned policies that still equal their start."""
    def met(*environments: Mapping[str, Any]) -> list[int]:
        trained = [seed for one in environments for seed in (plain(one.get("splits") or {}).get("train") or [])]
        return sorted(set(seeds) & set(trained))

    def listed(seen: Sequence[int]) -> str:
        return f"seed{'s' if len(seen) > 1 else ''} {', '.join(map(str, seen))}"

    trained, started = [], []
    for one in entrants:
        folders = [str(Path(policy.removeprefix(RETENTION)).parent) if run is None else policy
                   for run, policy in one.runs.items()] if one.learned else []
        if seen := met(*map(environment_of, folders)):
            trained.append(f"policy '{one.label}' was trained on windows of {listed(seen)}, so they are not held out "
                           "for it")
        if begun := [start for run, folder in one.runs.items() if run is not None and (start := start_of(folder))]:
            runs = f"{len(begun)} of {len(one.runs)} runs" if len(one.runs) > 1 else "it"
            started.append(f"policy '{one.label}': {runs} is still the initial policy, {begun[0]}, because validation "
                           "found nothing better")
    if seen := met(env):
        started.append(f"{listed(seen)} {'are' if len(seen) > 1 else 'is'} of the training split, on which policies "
                       "were trained and tuned; seeds=null takes the held-out test split")
    return trained + started


def _shifts(env: Mapping[str, Any], value: Any) -> list[str | None]:
    """The suites to run; None is the environment without a shift. It comes first if `value` is `all`."""
    known = list(plain(env.get("shifts") or {}))
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not given:
        raise UserError("shift=[] is empty; expected one, a list, all, or null for the environment as it is")
    chosen: list[str | None] = [None, *known] if given == [ALL] else given
    for shift in chosen:
        if shift is not None and shift not in known:
            raise unknown("shift", shift, [*known, ALL])
    return list(dict.fromkeys(chosen))


def _listed(env: Mapping[str, Any], policies: Any) -> list[str]:
    """The policies as given; `all` stands for random actions and every heuristic of the environment."""
    given = [str(policy) for policy in ([policies] if isinstance(policies, str) else list(policies or []))]
    if given != [ALL]:
        return given
    check_ours(env, "policies=[all]")
    with closing(make_env(env)) as made:
        return [RANDOM, *(one.name for one in heuristics_of(made.unwrapped))]


def _entrants(given: Sequence[str]) -> list[Entrant]:
    """The policies as given; a folder's label is its last part unless that is ambiguous."""
    if not given:
        raise UserError("policies is empty; expected names or run folders, such as policies=[ooco,always,never]")
    labels = [Path(policy).name if os.path.isdir(policy) else policy for policy in given]
    if len(set(labels)) < len(labels):
        labels = given
    entrants = [one for label, policy in zip(labels, given, strict=True) for one in _of_one(label, policy)]
    labels = [entrant.label for entrant in entrants]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UserError(f"policies names '{twice}' twice; each policy is evaluated once")
    return entrants


def _of_one(label: str, policy: str) -> list[Entrant]:
    """Returns one policy as given, or each point of a training sweep's folder, with its seeds as one policy."""
    if policy.endswith(".zip") and os.path.isfile(policy):
        return [Entrant(label, {label: policy})]
    if not os.path.isdir(policy):
        return [Entrant(label, {None: policy}, function_of(policy) is not None)]
    if (found := searched_policy(policy)) is not None:
        return [Entrant(label, {None: found})]
    groups = groups_of(policy) if (Path(policy) / SWEEP_FILE).is_file() else {label: runs_of(policy)}
    return [Entrant(name, runs) for name, runs in groups.items()]


def _jobs(config: Mapping[str, Any], entrants: Sequence[Entrant], games: Sequence[Window]) -> list[Assignment]:
    """Returns the jobs of one suite, after checking that each policy can run in its environment."""
    jobs = []
    with closing(make_env(config)) as env:
        for label, runs, _ in entrants:
            for run, policy in runs.items():
                where, name = dict(config), policy
                if run is not None:
                    check_fit(label, policy, env)
                elif function_of(policy) is None:
                    where, name = as_base_policy(config, policy, env)
                    by_name(env.unwrapped, name)  # raises if it is unknown here
                chunks = (list(games[i : i + SIDE_BY_SIDE]) for i in range(0, len(games), SIDE_BY_SIDE))
                jobs += [Assignment(label, where, name, run, chunk) for chunk in chunks]
    return jobs


def play_job(job: Assignment) -> list[dict[str, Any]]:
    """Runs one policy on one chunk of windows, in a worker process. Records of a training run name it as `run`."""
    records = play(job.env, player_of(job), job.games, side_by_side=SIDE_BY_SIDE)
    return records if job.run is None else [{**record, "run": job.run} for record in records]


def depends_on(job: Assignment) -> Any:
    """What the records of a job depend on, beside our code; None if a user's Python is part of it, of whose imports
    nothing is known."""
    if str(job.env["id"]) not in ENVIRONMENTS or ".py" in repr(job) or function_of(job.policy) is not None:
        return None
    rules = [job.policy] * (job.run is None) + [str(job.env["base_policy"])] * ("base_policy" in job.env)
    rules = [rule for rule in rules if is_policy(rule) or rule.startswith(RETENTION)]
    path = Path(job.policy)
    files = [] if job.run is None else sorted(one for one in (path if path.is_dir() else path.parent).iterdir())
    return [*job[1:], file_stamps(job.env), [policy_identity(rule) for rule in rules],
            [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]]


def player_of(job: Assignment) -> Player:
    """The player that takes the decisions of a job."""
    if job.run is not None:
        limit_torch_threads()
        return BatchPlayer(load_learned(job.policy).decide)
    own = function_of(job.policy)
    return Heuristic(job.policy) if own is None else FunctionPlayer(job.label, own)


def jobs_of(config: Mapping[str, Any], policy: str, games: Sequence[Window]) -> list[Assignment]:
    """Returns the jobs of one policy, given in any form that `evaluate` takes.

    Raises:
        UserError: the policy is unknown, is several runs, or does not fit the environment.
    """
    entrant, *others = _entrants([policy])
    if others or len(entrant.runs) > 1:
        raise UserError(f"policy={policy} holds several runs; expected the folder of one")
    return _jobs(config, [entrant], games)


def _scored(env: Mapping[str, Any], entrants: Sequence[Entrant], played: Mapping[str | None, Mapping[str, Any]],
            episodes: int, notes: list[str]) -> dict[str, Any]:
    """The scores of the first suite; with shifts, those of all suites as `suites`."""
    name = env.get("name") or str(env["id"]).rpartition(":")[2]  # without the module that registers it
    learned, suites = {entrant.label: entrant.learned for entrant in entrants}, []
    for shift, records in played.items():
        suite = {"shift": shift, "episodes": episodes, "notes": notes, **score(records, name, learned)}
        suites.append({**suite, "budget": budget_words(suite)})
    return {**suites[0], **({"suites": suites} if suites[0]["shift"] or len(suites) > 1 else {})}


def _write(out: Path, summary: Mapping[str, Any], played: Mapping[str | None, Mapping[str, Any]]) -> None:
    """Writes evaluation.json (with every window), and episodes.csv: one row for each suite, policy, run and window,
    with all metrics of the environment."""
    write_json(out / "evaluation.json", {"schema": SCHEMA, **summary, "records": {
        shift or "none": suite for shift, suite in played.items()}})
    keys = sorted(next(iter(next(iter(played.values())).values()))[0]["summary"])
    with atomic_write(out / "episodes.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["shift", "policy", *(own := ["run", "seed", "window", "decisions", "reward"]), *keys])
        for shift, suite in played.items():
            for policy, records in suite.items():
                writer.writerows([shift, policy, *map(record.get, own), *map(record["summary"].get, keys)]
                                 for record in records)


# --- From Python ----------------------------------------------------------------------------------------------------
def evaluate(act: Callable[[Any], Any], env: Any, split: str = "test", episodes: int | None = None,
             beside: Sequence[str] = ("base_policy",), name: str = "mine", **more: Any) -> dict[str, Any]:
    """Compares a function with heuristics on held-out windows, as `ooco-gym evaluate` does: paired, with intervals.

    Args:
        act: takes an observation of the environment (a vector if it was made with `flat=True`) and returns an action.
        env: a name of `conf/env` (`gating`), the path of a YAML file, a Gymnasium id, an environment that
            `gymnasium.make` made, or a mapping with `id`, `splits` and arguments.
        split: `test`, `validation` or `train`; or give `seeds`.
        episodes: windows, spread over the split's seeds; None: two of each seed.
        beside: heuristics, run folders and exports to compare with.
        name: the function's name in the table.
        **more: other keys of the command: `seeds`, `window_s`, `warmup_s`, `shift`, `out`.

    Returns:
        The summary of `ooco-gym evaluate`: `results`, `policies`, `paired`, and more (docs/evaluation.md).

    Raises:
        UserError: as the command; or an action is illegal.
    """
    config, seeds = _config_of(env), more.pop("seeds", None)
    if not seeds and not config.get("splits"):
        raise UserError(f"evaluate: no file gives the held-out seeds of '{config.get('id')}'; expected seeds=[...], "
                        "or a YAML path with id and splits as env")
    seeds = seeds_of(seeds, known=split_seeds(config, split) if config.get("splits") else None)
    if name in beside:
        raise UserError(f"evaluate(name={name!r}): another policy has this name; choose a different one")
    flat = config.pop("flat", False)

    def by_parts(observation: Mapping[str, Any]) -> Any:
        return act(np.concatenate([observation[key] for key in sorted(observation)]) if flat else observation)

    with given(name, by_parts), tempfile.TemporaryDirectory() as folder:
        return main({"env": config, "policies": [name, *beside], "seeds": list(seeds), "workers": 1,
                     "episodes": 2 * len(seeds) if episodes is None else episodes, "out": folder, **more})


_PASSIVE = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.RecordEpisodeStatistics,
            gym.wrappers.RecordVideo, gym.wrappers.HumanRendering)  # wrappers that change no behaviour


def _config_of(env: Any) -> dict[str, Any]:
    if isinstance(env, Mapping):
        return dict(env)
    arguments: dict[str, Any] = {}
    if isinstance(env, gym.Env):
        inner: gym.Env[Any, Any] = env
        while isinstance(inner, gym.Wrapper):
            if not isinstance(inner, _PASSIVE):
                raise UserError(f"evaluate: the environment is wrapped in {type(inner).__name__}, which evaluation "
                                "would not apply; expected the unwrapped environment and a policy function that does "
                                "what the wrapper does (flat=True of ooco_gym.make needs none)")
            inner = inner.env
        if env.spec is None:
            raise UserError("evaluate: the environment has no spec; expected one of gymnasium.make, a name or a "
                            "mapping with id and splits")
        env, arguments = env.spec.id, dict(env.spec.kwargs)
    arguments.pop("render_mode", None)
    if str(env).endswith((".yaml", ".yml")):
        return load_yaml("env", env)
    shipped = {known: load_yaml("env", known) for known in names("env")}
    for known, config in shipped.items():
        if env in (known, config["id"]):
            return {**config, **arguments}
    if imported(str(env)) in gym.registry:
        return {"id": env, **arguments}
    raise unknown("environment", env, [*shipped, *(config["id"] for config in shipped.values())])
