"""The command behind `ooco-gym train agent=cma`: checks, runs, shows the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from agents.environments import make_env
from agents.policies.runs import SEARCHED_FILE, clear, searched_policy, write_config
from agents.search.episodes import Search
from agents.search.judging import SCORES, format_score
from agents.settings import LARGEST_SEED, check_numbers, group, number, plain, positive, require, whole
from ooco_gym.errors import UserError, is_number, unknown
from ooco_gym.policy.registry import policy_named, spelling_of
from ooco_gym.resources import load_yaml


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
    usual, given = load_yaml("agent", "cma"), plain(config["agent"])
    agent = {**usual, **given}
    for key in ("halving", "validation"):
        if not isinstance(agent[key], Mapping):
            raise UserError(f"agent.{key}={agent[key]!r} must be a mapping of {', '.join(usual[key])}")
        agent[key] = {**usual[key], **agent[key]}
    whole(config, "seed", 0, most=LARGEST_SEED)
    positive(config, "max_wall_s", null="no limit")
    positive(config, "window_s", null="the environment's own")
    config["env"], config["validation"] = group(config, "env"), plain(config.get("validation") or {})
    number(config["validation"], "violation_limit", most=1.0, name="validation.violation_limit")
    _check_numbers(agent)
    if agent["score"] not in SCORES:
        raise unknown("agent.score", agent["score"], SCORES)
    _check_conditions(agent)
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


def _check_conditions(agent: Mapping[str, Any]) -> None:
    if (listed := agent["conditions"]) is None:
        return
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, Mapping) for one in listed):
        raise UserError(f"agent.conditions={listed!r} must be a list of changes of the scenario, such as "
                        "[{workload: ooc, load: 0.9}], or null for the environment's own")
    if agent["windows"] % len(listed):
        raise UserError(f"agent.windows={agent['windows']} must be a multiple of the {len(listed)} conditions, "
                        "which get equally many windows")


def _check_numbers(agent: Mapping[str, Any]) -> None:
    wholes = {"restarts": 0, "windows": 2, **{key: least for key, least in (
        ("generations", 1), ("threads", 1), ("population", 4)) if agent[key] is not None}}
    check_numbers(agent, "agent", wholes, numbers=["warmup_s"] * (agent["warmup_s"] is not None),
                  positives=("sigma", "weight_scale", "training_limit"))
    number(agent, "spread", 1.0, name="agent.spread")
    if agent["training_limit"] > 1.0:
        raise UserError(f"agent.training_limit={agent['training_limit']} must be a share of "
                        "validation.violation_limit, above 0 and at most 1")
    check_numbers(agent["halving"], "agent.halving", {"first": 1})
    keep = agent["halving"]["keep"]
    if not is_number(keep) or not (0.1 <= keep <= 0.9 or keep == 1.0):
        raise UserError(f"agent.halving.keep={keep!r} must be a share of the candidates from 0.1 to 0.9, or 1 (no "
                        "halving)")
    check_numbers(agent["validation"], "agent.validation", {"windows": 2, "every": 1, "patience": 1})


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
