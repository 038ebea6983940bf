"""The manifest of an exported network: the meaning of its numbers, its origin, and what it was trained for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from typing import Any

from agents.environments import make_env, observed_shapes
from agents.policies.runs import LoadedRun, recipe_of
from ooco_gym.envs.buffers import FIXED
from ooco_gym.envs.config import TIMING
from ooco_gym.envs.decision import BASE, kinds, meaning
from ooco_gym.policy import policy_of
from ooco_gym.runtime.networks import FARTHEST
from ooco_gym.runtime.writing import LICENCE

_TRAINED_BY = ("torch", "stable-baselines3", "sb3-contrib")


def manifest(run: LoadedRun, agreement: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Describes a run's network for `runtime.write_bundle`: inputs, outputs and origin."""
    shapes, decisions = observed_shapes(run.space, run.actor.levels), run.decisions
    places, actions = shapes["candidates"][0], shapes["action_mask"][0]
    with closing(make_env(run.config["env"])) as env:
        parts = action_parts(env)
        inputs: dict[str, Any] = {
            key: {"shape": list(shapes[key]), "dtype": "float32",
                  "features": feature_table(env, run.space[key], key, shapes[key][-1])}
            for key in ("cluster", "candidates", "decision")
        }
    inputs["action_mask"] = {"shape": [actions], "dtype": "int8", "meaning": "1 if the action is legal"}
    for key in ("cluster", "candidates"):  # features are clipped at eight deviations from the mean
        scale: Any = getattr(run.actor.encoder, key)
        for row, middle, wide in zip(inputs[key]["features"], scale.mean.tolist(), scale.deviation.tolist(),
                                     strict=True):
            reach = float(FARTHEST) * wide
            row["seen"] = [max(row["low"], middle - reach), min(row["high"], middle + reach)]
    names = [f"{part['name']}={level}" for part in parts for level in part["levels"]]
    return {
        "kind": "candidates", "name": name or "-".join(decisions) or run.config["env"]["id"],
        "decision_point": {"name": ", ".join(decisions) or "action", "meaning":
                           "one level for each part" if parts else "one of the legal actions"},
        "rule": str(run.config["env"].get("base_policy", "")),
        "environment": run.config["env"]["id"], "decisions": list(decisions),
        "history": 1, "inputs": inputs,
        "outputs": {"action": {"shape": [len(parts)] if parts else [], "dtype": "int64", "meaning":
                               "one level for each part" if parts else "index into actions; always a legal one"},
                    "logits": {"shape": [actions], "dtype": "float32", "meaning": "logit; -1e8 for illegal actions"}},
        "batch_axis": "the first axis of every input and output, any size",
        "action_space": {"kind": "MultiDiscrete" if parts else "Discrete",
                         "n": [len(part["levels"]) for part in parts] if parts else actions},
        "parts": parts,
        "actions": names or action_names(decisions, places, actions - places),
        "actions_by_decision": {} if parts else action_meanings(decisions, places, actions - places),
        "inside_the_graph": ["scaling of features", "mask", "arg-max"],
        "versions": {name: metadata.version(name) for name in _TRAINED_BY},
        **origin(run.config, run.timesteps), "scores": [], "licence": LICENCE, "agreement": dict(agreement),
    }


def origin(config: Mapping[str, Any], timesteps: int) -> dict[str, Any]:
    """The training data, configuration and loads of a policy, from a run's configuration."""
    env = config["env"]
    scenario = env.get("scenario") or {}
    timing = scenario.get("timing") or TIMING
    load = {key: value for key, value in scenario.items() if key != "slo"}
    seeds = [config["seed"]] if isinstance(config.get("seed"), int) else []
    return {
        "training": {"data": {"environment": env["id"], "scenario": {**scenario, "timing": timing},
                              "windows": (env.get("splits") or {}).get("train", [])},
                     "seeds": seeds, "agent": recipe_of(config["agent"]), "seed": config.get("seed"),
                     "timesteps": timesteps,
                     "config": {key: value for key, value in config.items() if key not in ("out", "logger")}},
        "trained_for": {"slo": dict(scenario.get("slo") or {}), "loads": [load] if load else []},
    }


def action_parts(env: Any) -> list[dict[str, Any]]:
    """The parts of an action that is a vector of levels (name, values, tuned level, the parameter's
    description); [] for other actions."""
    controls = getattr(getattr(env.unwrapped, "episodes", None), "controls", None)
    if controls is None:
        return []
    base_policy = policy_of(env.unwrapped.config.base_policy)
    params = {param.name: param for param in base_policy.params}
    parts = []
    for place, name in enumerate(controls.names):
        values = controls.levels[place, : controls.counts[place]].tolist()
        choices = params[name].choices
        parts.append({"name": name, "levels": [choices[int(value)] for value in values] if choices else values,
                      "tuned": int(controls.tuned[place]), "of": base_policy.name, "meaning": params[name].doc})
    return parts


def feature_table(env: Any, space: Any, key: str, width: int) -> list[dict[str, Any]]:
    """Returns name, unit, bounds and meaning of each of the `width` features of observation `key`
    (for candidates: of each one)."""
    low, high = space.low.reshape(-1, width).min(0), space.high.reshape(-1, width).max(0)
    described = getattr(env.unwrapped, "feature_tables", None)
    tables = {} if described is None else dict(described())
    rows = tables.get(key) or [{"name": f"{key}_{i}"} for i in range(len(low))]
    return [{**row, "low": float(low[i]), "high": float(high[i])} for i, row in enumerate(rows)]


_ANY = ("decline", BASE)


def action_meanings(decisions: Sequence[str], places: int, fixed: int) -> dict[str, list[str]]:
    """The meaning of each action, by decision: the decision's no, the base policy's action, then
    one for each candidate.

    Args:
        places: number of candidates (K).
        fixed: number of actions before them.
    """

    def named(decision: str, action: int) -> str:
        if decision in kinds() and fixed == FIXED:
            return meaning(decision, action)
        before = (*_ANY, *(f"action {i}" for i in range(len(_ANY), fixed)))[:fixed]
        return before[action] if action < fixed else f"take candidate {action - fixed}"

    meanings = {}
    for decision in decisions:
        meanings[decision] = [named(decision, action) for action in range(fixed + places)]
    return meanings


def action_names(decisions: Sequence[str], places: int, fixed: int) -> list[str]:
    """Names of the actions: those of a single decision, or names common to all decisions."""
    name = decisions[0] if len(decisions) == 1 else ""
    return action_meanings([name], places, fixed)[name]
