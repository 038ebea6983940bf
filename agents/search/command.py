"""The command behind `ooco-gym train agent=cma`: checks, runs, says what came out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from agents.search import kept
from agents.search.episodes import Search, policy_name
from agents.search.judging import SCORES, said
from agents.search.optimisers import check_method
from agents.settings import LARGEST_SEED, number, plain, positive, positive_or_null, require, whole
from ooco_gym.errors import UserError, is_number, unknown
from ooco_gym.files import atomic_write
from ooco_gym.policy import get_policy

CONFIG_FILE = "config.yaml"
_KEYS = {  # of `agent`, with what they are where a configuration does not say
    "policy": None, "params": None, "weights": None, "space": None, "spread": 3.0, "weight_scale": 1.0,
    "standardise": False,
    "population": None, "generations": 40, "restarts": 1, "windows": 24, "pool": None, "warmup_s": None,
    "conditions": None, "reference": None, "score": SCORES[0], "price": None, "training_limit": 0.9,
    "halving": {"first": 6, "keep": 0.5},
    "validation": {"windows": 32, "every": 5, "patience": 4}, "threads": None}


def run(config: dict[str, Any], resumed: bool) -> dict[str, Any]:
    """`ooco-gym train agent=cma`: searches, shows what came out, and returns it; errors are as of `search`."""
    report = search(config, resumed)
    show(report, Path(config["out"]))
    return report


def search(config: dict[str, Any], resumed: bool = False) -> dict[str, Any]:
    """Searches as a configuration like `conf/train.yaml` says, and returns the summary.

    Raises:
        UserError: a value out of range, or a policy that has nothing to turn or cannot play here.
    """
    from agents.learning.runs import clear

    started = time.monotonic()
    agent = checked(config)
    require("search")
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    memory = None
    if resumed:
        names = Search.names_of(agent)
        memory = kept.read(out, names)
    found = Search(config, agent, out, memory)
    if not resumed:
        if config.get("overwrite"):
            clear(out)
        with atomic_write(out / CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    log = logger(config, out, resumed, found)
    try:
        found.run(log)
    except UserError:
        if not resumed and not found.memory.generation:
            clear(out)  # refused before it began: this is no run that another would have to spare
        raise
    finally:
        if log is not None:
            log.close()
    return summary(found, resumed, started)


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the agent, what was left out filled in, after checking what a user may have got wrong."""
    agent = {**_KEYS, **plain(config["agent"])}
    for key in ("halving", "validation"):
        if not isinstance(agent[key], Mapping):
            raise UserError(f"agent.{key}={agent[key]!r} must be a mapping of {', '.join(_KEYS[key])}")
        agent[key] = {**_KEYS[key], **agent[key]}
    check_method(agent)
    whole(config, "seed", 0, most=LARGEST_SEED)
    positive_or_null(config, "max_wall_s", "no limit")
    positive_or_null(config, "window_s", "the environment's own")
    for key, least in (("restarts", 0), ("windows", 2)):
        whole(agent, key, least, name=f"agent.{key}")
    for key, least in (("generations", 1), ("threads", 1)):
        if agent[key] is not None:
            whole(agent, key, least, name=f"agent.{key}")
    if agent["generations"] is None and config.get("max_wall_s") is None:
        raise UserError("agent.generations=null has no end; give max_wall_s")
    if agent["pool"] is not None:
        whole(agent, "pool", agent["windows"], name="agent.pool")
    number(agent, "spread", 1.0, name="agent.spread")
    positive(agent, "weight_scale", name="agent.weight_scale")
    if not isinstance(agent["standardise"], bool):
        raise UserError(f"agent.standardise={agent['standardise']!r} must be true or false")
    if agent["warmup_s"] is not None:
        number(agent, "warmup_s", name="agent.warmup_s")
    if not positive(agent, "training_limit", name="agent.training_limit") <= 1.0:
        raise UserError(f"agent.training_limit={agent['training_limit']} must be a share of "
                        "validation.violation_limit, above 0 and at most 1")
    positive_or_null(agent, "price", "feasible first", name="agent.price")
    if agent["score"] not in SCORES:
        raise unknown("agent.score", agent["score"], SCORES)
    whole(agent["halving"], "first", 1, name="agent.halving.first")
    keep = agent["halving"]["keep"]
    if not is_number(keep) or not 0.1 <= keep <= 1.0:
        raise UserError(f"agent.halving.keep={keep!r} must be a share of the candidates from 0.1 to 1 (1: no halving)")
    for key, least in (("windows", 2), ("every", 1), ("patience", 1)):
        whole(agent["validation"], key, least, name=f"agent.validation.{key}")
    validation = config["validation"] = plain(config.get("validation") or {})
    number(validation, "violation_limit", most=1.0, name="validation.violation_limit")
    _check_conditions(agent)
    config["env"] = plain(config["env"]) if not isinstance(config["env"], str) else config["env"]
    if isinstance(config["env"], str):
        raise UserError(f"env={config['env']} is no configuration; expected a name from conf/env/ or a YAML file")
    agent["policy"] = policy_name(config, agent)
    for key in ("policy", "reference"):
        if agent[key] is not None:
            get_policy(str(agent[key]))
    return agent


def _check_conditions(agent: dict[str, Any]) -> None:
    listed = agent["conditions"]
    if listed is None:
        return
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(one, Mapping) for one in listed):
        raise UserError(f"agent.conditions={listed!r} must be a list of changes of the scenario, such as "
                        "[{workload: ooc, load: 0.9}], or null for the environment's own")
    if agent["windows"] % len(listed):
        raise UserError(f"agent.windows={agent['windows']} must be a multiple of the {len(listed)} conditions, which "
                        "play as many windows each")


def logger(config: Mapping[str, Any], out: Path, resumed: bool, search: Search) -> Any:
    """What tracks the search besides its own table; None where no logger is asked for."""
    settings = config.get("logger")
    name = settings if isinstance(settings, str) else plain(settings or {}).get("name", "none")
    if name == "none":
        return None
    require("train")
    from agents.learning.loggers import build_logger

    return Log(build_logger(out, settings, config, search.memory.candidates if resumed else None, table=False))


class Log:
    """Sends each generation to a logger of training, against the number of candidates so far."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __call__(self, search: Search) -> None:
        """Sends the last row of the table."""
        row = search.memory.rows[-1]
        for key, value in row.items():
            self._logger.record(f"search/{key}", float(value))
        judged = search.memory.judged
        if "validation_best_score" in row and judged is not None:
            self._logger.record("validation/offline_reference_gpu_s_per_s", judged.service)
            self._logger.record("validation/violation_rate", judged.violation_rate)
        self._logger.record("search/windows_per_s", search.speed())
        self._logger.dump(search.memory.candidates)

    def close(self) -> None:
        """Ends the logger."""
        self._logger.close()


def summary(search: Search, resumed: bool, started: float) -> dict[str, Any]:
    """The machine-readable account of the run; seconds and windows per second are those of this call."""
    memory, config, agent = search.memory, search.config, search.agent
    best = search.space.candidate(memory.best)
    rows = {name: {"training": judged[0].figures(), "validation": judged[1].figures()}
            for name, judged in (("as_it_ships", search.own), ("kept", search.of_best()))}
    return {
        "command": "train", "agent": agent["name"], "env": config["env"]["id"], "seed": search.seed,
        "policy": kept.POLICY_FILE, "searched": agent["policy"], "reference": agent["reference"] or agent["policy"],
        "changed": bool(memory.best.any()), "numbers": len(search.space.names),
        "parameters": {one.name: best.policy.values[one.name] for one in search.space.ranges},
        "not_searched": dict(search.space.left), "conditions": search.names,
        "generations": memory.generation, "restarts": memory.restarts, "candidates": memory.candidates,
        "windows_played": memory.played, "resumed": resumed, "stopped_by": search.stopped_by,
        **search.signal, "score": agent["score"],
        "violation_limit": float(config["validation"]["violation_limit"]), **rows,
        "by_condition": {"as_it_ships": search.conditions_of(kept=False), "kept": search.conditions_of(kept=True)},
        "wall_s": time.monotonic() - started, "playing_wall_s": search.playing_s,
        "windows_per_s": search.speed(), "simulated_s_per_s": search.simulated_per_s(), "threads": search.threads,
        "versions": {name: metadata.version(name) for name in ("ooco-gym", "cmaes", "numpy", "numba")},
        "files": sorted(path.name for path in search.out.iterdir() if not path.name.startswith(".")),
    }


def show(report: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"{report['generations']} generations, {report['candidates']:,} candidates of {report['numbers']} numbers, "
          f"{report['windows_played']:,} windows, stopped by {report['stopped_by']}; {report['wall_s']:.0f} s in all, "
          f"{report['windows_per_s']:.1f} windows/s on {report['threads']} threads")
    kind, reference = report["score"], report["reference"]
    for split in ("training", "validation"):
        ships, mine = report["as_it_ships"][split], report["kept"][split]
        ends = "" if mine["low"] is None else f" [{said(kind, mine['low'])}, {said(kind, mine['high'])}]"
        print(f"{split}: {said(kind, mine['score'], reference)}{ends}, as it ships {said(kind, ships['score'])}; "
              f"offline service {mine['service']:.4g} and {ships['service']:.4g} reference GPU-s/s; violations "
              f"{mine['violation_rate']:.2%} and {ships['violation_rate']:.2%}, upper limits "
              f"{mine['violation_upper_limit']:.2%} and {ships['violation_upper_limit']:.2%}")
    if not report["changed"]:
        print("nothing better was found: kept as it ships")
    if report["stopped_by"] in ("interrupt", "max_wall_s"):
        print(f"resume={out} goes on where the search stands")
    print(f"policy: {out / kept.POLICY_FILE}")
