"""The command behind `ooco-gym train agent=cma`: checks, runs, shows the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from agents.environments import make_env
from agents.policies.runs import SEARCHED_FILE, clear, searched_policy, write_config
from agents.search.episodes import Search
from agents.search.judging import Score, format_score
from agents.settings import ItsOwn, NoLimit, Population, Seed, Windows, group, require
from ooco_gym.errors import UserError
from ooco_gym.policy.registry import policy_named, spelling_of
from ooco_gym.resources import load_yaml, merged
from ooco_gym.schema import Count, Model, Positive, Range, Share, check_all, demand, plain


@dataclass(frozen=True)
class Halving(Model):
    """After `first` windows the share `keep` of the candidates goes on to twice as many; 1: all do."""

    first: Windows
    keep: Annotated[float, Range(0.1, 1)]


@dataclass(frozen=True)
class ValidationKeys(Model):
    """Windows of a validation, the generations between two, and how many without gain end the search."""

    windows: Annotated[int, Range(2, 1 << 16)]
    every: Count
    patience: Count


@dataclass(frozen=True)
class CmaAgent(Model):
    """A search over whole episodes; conf/agent/cma.yaml has what each key means, and the defaults."""

    PLACE = "agent"

    name: Literal["cma"]
    policy: Any
    weights: Any
    params: Any
    space: Mapping[str, Any] | None
    spread: Annotated[float, Range(1)]
    weight_scale: Positive
    sigma: Positive
    population: Population
    generations: Annotated[int, Range(1, null="no limit")]
    restarts: Annotated[int, Range(0)]
    windows: Annotated[int, Range(2, 1 << 16)]
    warmup_s: Annotated[float, Range(0, null="the environment's")]
    conditions: tuple[Mapping[str, Any], ...] | None
    reference: Any
    score: Score
    training_limit: Annotated[float, Range(0, 1, above=True)]
    halving: Halving
    validation: ValidationKeys
    threads: Annotated[int, Range(1, null="one for each core")]

    def validate(self, where: str) -> None:
        keep = self.halving.keep
        demand(keep <= 0.9 or keep == 1, f"{where}.halving.keep", keep, "a share from 0.1 to 0.9, or 1 (no halving)")
        if self.windows % len(self.conditions or (None,)):
            raise UserError(f"{where}.windows={self.windows} must be a multiple of the {len(self.conditions or ())} "
                            "conditions, which get equally many windows")


def search(config: dict[str, Any], resumed: bool = False, tracked: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Runs a search with a configuration like `conf/train.yaml`, and returns the summary; `resumed` continues that in
    `config["out"]`, `tracked` makes a further tracker from the folder and the number of candidates so far.

    Raises:
        UserError: a value is out of range, or a policy has nothing to search or cannot run here.
    """
    started, out = time.monotonic(), Path(config["out"])
    agent = checked(config)
    require("search")
    found = Search({**config, "agent": agent}, out, resumed, started)
    if not resumed:
        if config.get("overwrite"):
            clear(out)
        write_config(out, config)
    logger = None if tracked is None else tracked(out, found.memory.candidates if resumed else None)
    try:
        found.run(partial(_log, logger))
    except UserError:
        if not resumed and not found.memory.generation:
            clear(out)  # refused before it began: no run for others to spare
        raise
    finally:
        if logger is not None:
            logger.close()
    return _summary(found, resumed, started)


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's settings, with defaults from conf/agent/cma.yaml, after checking a user's values."""
    agent = merged(load_yaml("agent", "cma"), plain(config["agent"]))
    CmaAgent.read(agent)
    check_all(config, seed=Seed, max_wall_s=NoLimit, window_s=ItsOwn)
    config["env"], config["validation"] = group(config, "env"), plain(config.get("validation") or {})
    check_all(config["validation"], "validation", violation_limit=Share)
    if agent["generations"] is None and config.get("max_wall_s") is None:
        raise UserError("agent.generations=null sets no limit; give max_wall_s")
    if agent["policy"] is None:
        with closing(make_env(config["env"])) as env:
            base_policy = env.unwrapped.config.base_policy
        agent["policy"] = base_policy if isinstance(base_policy, str) else spelling_of(base_policy)
    for key in ("policy", "reference"):
        if agent[key] is not None:
            policy_named(str(agent[key]))
    return agent


def _log(logger: Any, search: Search) -> None:
    """Sends the table's last row to a training logger, if there is one, with the number of candidates as x-axis."""
    memory = search.memory
    if logger is None:
        return
    for key, value in memory.rows[-1].items():
        logger.record(f"search/{key}", float(value))
    if "validation_best_score" in memory.rows[-1] and memory.judged is not None:
        logger.record("validation/offline_reference_gpu_s_per_s", memory.judged.service)
        logger.record("validation/violation_rate", memory.judged.violation_rate)
        logger.record("validation/violation_limit", float(search.config["validation"]["violation_limit"]))
    logger.record("search/windows_per_s", search.speed())
    logger.dump(memory.candidates)


def _summary(search: Search, resumed: bool, started: float) -> dict[str, Any]:
    """The summary of the run; seconds and windows per second are those of this call."""
    memory, config, agent = search.memory, search.config, search.agent
    played = {"as_it_ships": search.own_outcomes,
              "kept": search.play_whole(memory.best) if memory.best.any() else search.own_outcomes}
    rows: dict[str, Any] = {name: {} for name in played}
    for name, outcomes in played.items():
        for split, judge, outcome in zip(("training", "validation"), search.judges, outcomes, strict=True):
            found = judge.judged(outcome)
            rows[name][split] = {**vars(found), "feasible": found.excess <= 0.0}
    values = search.space.candidate(memory.best).policy.searched.values
    simulated_s = search.training.population.simulated_s + search.validation.population.simulated_s
    return {
        "command": "train", "agent": agent["name"], "env": config["env"]["id"], "seed": search.seed,
        "policy": SEARCHED_FILE, "searched": agent["policy"], "reference": agent["reference"] or agent["policy"],
        "changed": bool(memory.best.any()), "numbers": search.numbers,
        "parameters": {one.name: values[one.name] for one in search.space.ranges},
        "not_searched": dict(search.space.left), "conditions": search.names,
        "generations": memory.generation, "restarts": memory.restarts, "candidates": memory.candidates,
        "windows_played": memory.played, "resumed": resumed, "stopped_by": search.stopped_by,
        **search.signal, "score": agent["score"],
        "violation_limit": float(config["validation"]["violation_limit"]), **rows,
        "by_condition": {name: search.judges[1].by_condition(search.names, outcomes[1])
                         for name, outcomes in played.items()},
        "wall_s": time.monotonic() - started, "playing_wall_s": search.playing_s, "windows_per_s": search.speed(),
        "simulated_s_per_s": simulated_s / max(search.playing_s, 1e-9), "threads": search.training.population.threads,
        "versions": {name: metadata.version(name) for name in ("ooco-gym", "cmaes", "numpy", "numba")},
        "files": sorted(path.name for path in search.out.iterdir() if not path.name.startswith(".")),
    }


def show(report: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"{report['generations']} generations, {report['candidates']:,} candidates of {report['numbers']} "
          f"parameters, {report['windows_played']:,} windows, stopped by {report['stopped_by']}; "
          f"{report['wall_s']:.0f} s in total, {report['windows_per_s']:.1f} windows/s on {report['threads']} threads")
    kind, reference = report["score"], report["reference"]
    for split in ("training", "validation"):
        ships, mine = report["as_it_ships"][split], report["kept"][split]
        low, high = (mine[end] is not None and format_score(kind, mine[end]) for end in ("low", "high"))
        print(f"{split}: {format_score(kind, mine['score'], reference)}{f' [{low}, {high}]' if low else ''}, default "
              f"{format_score(kind, ships['score'])}; offline service {mine['service']:.4g} and {ships['service']:.4g} "
              f"reference GPU-s/s; violations {mine['violation_rate']:.2%} and {ships['violation_rate']:.2%}, upper "
              f"limits {mine['violation_upper_limit']:.2%} and {ships['violation_upper_limit']:.2%}")
    if not report["changed"]:
        print("nothing better was found: the default parameters are kept")
    if report["stopped_by"] in ("interrupt", "max_wall_s"):
        print(f"resume={out} continues the search")
    print(f"policy: {searched_policy(out)}")
