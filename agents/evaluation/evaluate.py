"""`ooco-gym evaluate`: runs learned policies and heuristics on the same held-out windows and scores
them."""

from __future__ import annotations

import csv
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

from agents.environments import Window, check_ours, make_env, split_seeds, windows
from agents.evaluation.heuristics import BASE, RANDOM, Heuristic, as_base_policy, by_name, heuristics_of
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
from agents.settings import group, limit_torch_threads, number, plain, whole
from ooco_gym.cli.sweep import FILE as SWEEP_FILE
from ooco_gym.envs import imported
from ooco_gym.errors import UserError, is_whole, nearest, unknown
from ooco_gym.files import atomic_write, write_json
from ooco_gym.jobs import in_processes
from ooco_gym.render import write_report
from ooco_gym.render.reading import evaluated
from ooco_gym.report.terminal import track
from ooco_gym.resources import load_yaml, names
from ooco_gym.study.options import seeds_of

SIDE_BY_SIDE = 8  # windows of one job; fixed, so that results do not depend on the number of processes
SCHEMA = "ooco-gym/evaluation/1"
ALL_SHIFTS = ALL_HEURISTICS = "all"


class Entrant(NamedTuple):
    """A policy under evaluation: its label and, if it is learned, its training runs (name →
    folder). The policy that a search found is learned, too, but runs by a policy's name, as a
    heuristic does."""

    label: str
    policy: str
    runs: dict[str, str]
    searched: bool = False


class Job(NamedTuple):
    """Some windows of one policy: a heuristic's name, or a training run's folder (its name is
    `run`)."""

    label: str
    env: dict[str, Any]
    policy: str
    learned: bool
    run: str | None
    games: list[Window]


def main(cfg: Any) -> dict[str, Any]:
    """Evaluates `cfg.policies`: names of heuristics, run folders, export folders, folders of
    several runs.

    Writes evaluation.html, evaluation.json and episodes.csv.

    Raises:
        UserError: a policy is neither a heuristic nor a folder or does not fit the environment, a
            shift is unknown, or a count is out of range.
    """
    config = plain(cfg)
    started = time.monotonic()
    env = config["env"] = group(config, "env")
    env |= {key: number(config, key) for key in ("window_s", "warmup_s") if config.get(key) is not None}
    entrants = _entrants(_listed(env, config.get("policies")))
    asked = config.get("seeds")
    seeds = list(seeds_of(asked, known=split_seeds(env, "test") if asked is None or is_whole(asked) else None))
    games = windows(seeds, whole(config, "episodes", 1))
    suites = {shift: dict(env) if shift is None else {**env, "shift": shift}
              for shift in _shifts(env, config.get("shift"))}
    jobs = {shift: _jobs(suite, entrants, games) for shift, suite in suites.items()}
    notes = notes_of(env, entrants, seeds)
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    work = [job for some in jobs.values() for job in some]
    workers = whole({"workers": 1, **config}, "workers", 1)
    found = iter(track(in_processes(play_job, work, workers), "evaluating", len(work)))
    played: dict[str | None, dict[str, list[Any]]] = {shift: {} for shift in jobs}
    for shift, some in jobs.items():
        for job in some:
            played[shift].setdefault(job.label, []).extend(next(found))
    summary = {"command": "evaluate", "env": env["id"], "seeds": seeds, "episodes": len(games),
               "window_s": env.get("window_s"), "notes": notes,
               **_scored(env, entrants, played, len(games), notes), "wall_s": time.monotonic() - started}
    _write(out, summary, played)
    outcomes = evaluated(summary)
    for outcome in outcomes:
        outcome.show()
    write_report(out / "evaluation.html", outcomes)
    return summary


def notes_of(env: Mapping[str, Any], entrants: Sequence[Entrant], seeds: Sequence[int]) -> list[str]:
    """Returns notes on windows whose seeds a policy was trained on, on windows of the environment's
    training split (from which tuned policies are), and on learned policies that still equal their
    start."""
    def met(*environments: Mapping[str, Any]) -> list[int]:
        trained = [seed for one in environments for seed in (plain(one.get("splits") or {}).get("train") or [])]
        return sorted(set(seeds) & set(trained))

    def listed(seen: Sequence[int]) -> str:
        return f"seed{'s' if len(seen) > 1 else ''} {', '.join(map(str, seen))}"

    notes = []
    for one in entrants:
        folders = [str(Path(one.policy).parent)] if one.searched else one.runs.values()
        if seen := met(*map(environment_of, folders)):
            notes.append(f"policy '{one.label}' was trained on windows of {listed(seen)}, so they are not held out for "
                         "it")
    for one in entrants:
        begun = [start for folder in one.runs.values() if (start := start_of(folder))]
        if begun:
            runs = f"{len(begun)} of {len(one.runs)} runs" if len(one.runs) > 1 else "it"
            notes.append(f"policy '{one.label}': {runs} is still the initial policy, {begun[0]}, because validation "
                         "found nothing better")
    if seen := met(env):
        notes.append(f"{listed(seen)} {'are' if len(seen) > 1 else 'is'} of the training split, on which policies were "
                     "trained and tuned; seeds=null takes the held-out test split")
    return notes


def _shifts(env: Mapping[str, Any], value: Any) -> list[str | None]:
    """The suites to run; None is the environment without a shift. It comes first if `value` is
    `all`."""
    known = list(plain(env.get("shifts") or {}))
    if value is None:
        return [None]
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not given:
        raise UserError("shift=[] is empty; expected one, a list, all, or null for the environment as it is")
    chosen: list[str | None] = [None, *known] if given == [ALL_SHIFTS] else given
    for shift in chosen:
        if shift is not None and shift not in known:
            raise unknown("shift", shift, [*known, ALL_SHIFTS])
    return list(dict.fromkeys(chosen))


def _listed(env: Mapping[str, Any], policies: Any) -> Any:
    """The policies as given; `all` stands for random actions and every heuristic of the environment."""
    if policies not in (ALL_HEURISTICS, [ALL_HEURISTICS]):
        return policies
    check_ours(env, "policies=[all]")
    with closing(make_env(env)) as made:
        return [RANDOM, *(one.name for one in heuristics_of(made.unwrapped))]


def _entrants(policies: Any) -> list[Entrant]:
    """The policies as given; a folder's label is its last part unless that is ambiguous."""
    given = [str(policy) for policy in ([policies] if isinstance(policies, str) else list(policies or []))]
    if not given:
        raise UserError("policies is empty; expected names or run folders, such as policies=[ooco,always,never]")
    labels = [Path(policy).name if os.path.isdir(policy) else policy for policy in given]
    if len(set(labels)) < len(labels):
        labels = given
    entrants = [one for label, policy in zip(labels, given, strict=True) for one in _of_one(label, policy)]
    labels = [one.label for one in entrants]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UserError(f"policies names '{twice}' twice; each policy is evaluated once")
    return entrants


def _of_one(label: str, policy: str) -> list[Entrant]:
    """Returns one policy as given, or each point of a training sweep's folder, with its seeds as
    one policy."""
    if policy.endswith(".zip") and os.path.isfile(policy):
        return [Entrant(label, policy, {label: policy})]
    if not os.path.isdir(policy):
        return [Entrant(label, policy, {})]
    found = searched_policy(policy)
    if found is not None:
        return [Entrant(label, found, {}, searched=True)]
    if not (Path(policy) / SWEEP_FILE).is_file():
        return [Entrant(label, policy, runs_of(policy))]
    return [Entrant(name, policy, runs) for name, runs in groups_of(policy).items()]


def _jobs(config: Mapping[str, Any], entrants: Sequence[Entrant], games: Sequence[Window]) -> list[Job]:
    """Returns the jobs of one suite, after checking that each policy can run in its environment."""
    jobs = []
    with closing(make_env(config)) as env:
        for entrant in entrants:
            if entrant.runs:
                for folder in entrant.runs.values():
                    check_fit(entrant.label, folder, env)
                players = [(dict(config), folder, name) for name, folder in entrant.runs.items()]
            elif function_of(entrant.policy) is not None:
                players = [(dict(config), entrant.policy, None)]
            else:
                where, name = as_base_policy(config, entrant.policy, env)
                if name == entrant.policy:  # no rule of a file's policy that is the base policy is called here
                    check_heuristic(name, env)
                players = [(where, name, None)]
            for where, policy, run in players:
                chunks = (list(games[i : i + SIDE_BY_SIDE]) for i in range(0, len(games), SIDE_BY_SIDE))
                jobs += [Job(entrant.label, where, policy, bool(entrant.runs), run, chunk) for chunk in chunks]
    return jobs


def check_heuristic(policy: str, env: Any) -> None:
    """Refuses a name that no heuristic of an environment has.

    Raises:
        UserError: the name is unknown.
    """
    inside, known = env.unwrapped, getattr(env.unwrapped, "rules", ())
    if hasattr(inside, "episodes"):
        by_name(inside, policy)
    elif policy.partition(":")[0] not in known and policy not in (BASE, RANDOM):
        raise UserError(f"'{policy}' is neither a known policy{nearest(policy, known)} nor a run folder; "
                        f"known: {', '.join(known) or 'none in this environment'}")


def play_job(job: Job) -> list[dict[str, Any]]:
    """Runs one policy on one chunk of windows, in a worker process. Records of a training run name
    it as `run`."""
    records = play(job.env, player_of(job), job.games, side_by_side=SIDE_BY_SIDE)
    return [{**record, "run": job.run} for record in records] if job.learned else records


def player_of(job: Job) -> Player:
    """The player that takes the decisions of a job."""
    own = function_of(job.policy)
    if own is not None:
        return FunctionPlayer(job.label, own)
    if not job.learned:
        return Heuristic(job.policy)
    limit_torch_threads()
    return BatchPlayer(job.policy, load_learned(job.policy).decide)


def jobs_of(config: Mapping[str, Any], policy: str, games: Sequence[Window]) -> list[Job]:
    """Returns the jobs of one policy, given in any form that `evaluate` takes.

    Raises:
        UserError: the policy is unknown, is several runs, or does not fit the environment.
    """
    entrant, *others = _entrants(policy)
    if others or len(entrant.runs) > 1:
        raise UserError(f"policy={policy} holds several runs; expected the folder of one")
    return _jobs(config, [entrant], games)


def _scored(env: Mapping[str, Any], entrants: Sequence[Entrant], played: Mapping[str | None, Mapping[str, Any]],
            episodes: int, notes: list[str]) -> dict[str, Any]:
    """The scores of the first suite; with shifts, those of all suites as `suites`."""
    name = env.get("name") or str(env["id"]).rpartition(":")[2]  # without the module that registers it
    learned = {one.label: bool(one.runs) or one.searched or function_of(one.policy) is not None for one in entrants}
    suites = []
    for shift, records in played.items():
        suite = {"shift": shift, "episodes": episodes, "notes": notes, **score(records, name, learned)}
        suites.append({**suite, "budget": budget_words(suite)})
    return {**suites[0], **({"suites": suites} if suites[0]["shift"] or len(suites) > 1 else {})}


def _write(out: Path, summary: Mapping[str, Any], played: Mapping[str | None, Mapping[str, Any]]) -> None:
    """Writes evaluation.json (with every window), and episodes.csv: one row for each suite, policy,
    run and window, with all metrics of the environment."""
    records = {shift or "none": suite for shift, suite in played.items()}
    write_json(out / "evaluation.json", {"schema": SCHEMA, **summary, "records": records})
    keys = sorted(next(iter(next(iter(played.values())).values()))[0]["summary"])
    with atomic_write(out / "episodes.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["shift", "policy", "run", "seed", "window", "decisions", "reward", *keys])
        for shift, suite in played.items():
            for policy, records in suite.items():
                for record in records:
                    row = [record.get(key) for key in ("run", "seed", "window", "decisions", "reward")]
                    writer.writerow([shift, policy, *row, *(record["summary"].get(key) for key in keys)])


# --- From Python ----------------------------------------------------------------------------------------------------
def evaluate(act: Callable[[Any], Any], env: Any, split: str = "test", episodes: int | None = None,
             beside: Sequence[str] = ("base_policy",), name: str = "mine", **more: Any) -> dict[str, Any]:
    """Compares a function with heuristics on held-out windows, as `ooco-gym evaluate` does: paired,
    with intervals.

    Args:
        act: takes an observation of the environment (a vector if it was made with `flat=True`) and
            returns an action.
        env: a name of `conf/env` (`gating`), the path of a YAML file, a Gymnasium id, an
            environment that `gymnasium.make` made, or a mapping with `id`, `splits` and arguments.
        split: `test`, `validation` or `train`; or give `seeds`.
        episodes: windows, spread over the split's seeds; None: two of each seed.
        beside: heuristics, run folders and exports to compare with.
        name: the function's name in the table.
        **more: other keys of the command: `seeds`, `window_s`, `warmup_s`, `shift`, `out`.

    Returns:
        The summary of `ooco-gym evaluate`: `results`, `policies`, `paired`, and more
        (docs/evaluation.md).

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
    for known in names("env"):
        config = load_yaml("env", known)
        if env in (known, config["id"]):
            return {**config, **arguments}
    if imported(str(env)) in gym.registry:
        return {"id": env, **arguments}
    raise unknown("environment", env, [*names("env"), *(load_yaml("env", one)["id"] for one in names("env"))])
