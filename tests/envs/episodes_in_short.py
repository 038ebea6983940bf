"""Short episodes of every environment: make one, play it, compare two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ooco_gym.envs import ENVIRONMENTS, short_name
from ooco_gym.envs.buffers import RECLAIM
from ooco_gym.policy import policy_of
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s

IDS = tuple(ENVIRONMENTS)
BLIND = {s.PULL, s.INTERRUPT, s.COMPOSE, RECLAIM}  # points at which a class-blind policy leaves nothing to decide
SHORT: dict[str, Any] = {"window_s": 60.0, "warmup_s": 30.0}
SHORT_OF = {"ooco_gym/Admission-v2": {"window_s": 150.0},  # one every 10 s, as in
            "ooco_gym/RuleChoice-v1": {"window_s": 150.0}}
# What is played does not hang on what is worth learning (conf/env).
POOLS_7B = {"cluster": "pair_7b", "workload": "azure_conv", "slo": "chat", "offline": {"mode": "rate", "rate": 3.0},
            "rate_scale": 0.1}
PREDICTED = {"predictor": "lognormal", "error": 0.3}
MEMORY_BOUND = {"cluster": "pair_llama2_7b_40g", "workload": "azure_conv", "slo": "chat",
                "offline": {"mode": "rate", "rate": 1.0}, "rate_scale": 0.03}
ENGINE = {"cluster": "engine_7b", "workload": "sharegpt", "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
          "offline": {"mode": "rate", "rate": 3.0}, "rate_scale": 1.7}
ENTERING = {**ENGINE, "rate_scale": 1.4}
SHORT_OF_BLOCKS = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv", "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
                   "offline": {"mode": "rate", "rate": 8.0}, "rate_scale": 0.06}
ENGINES = {**ENGINE, "cluster": "engines_7b", "offline": {"mode": "rate", "rate": 12.0}, "rate_scale": 9.0}
SCALED = load_yaml("env", "scaling")["scenario"]
SCALED["cluster"] |= {"scale_interval_s": 2.0, "mixed": [{**SCALED["cluster"]["mixed"][0], "start_s": 5.0}]}
ROLES = load_yaml("env", "scalingpools")["scenario"]
ROLES["cluster"] |= {"scale_interval_s": 2.0}
ROLES |= {"online_rate": None, "rate_scale": 5.6}
SCENARIOS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(IDS, POOLS_7B), "ooco_gym/Migration-v1": MEMORY_BOUND, "ooco_gym/Colocation-v1": MEMORY_BOUND,
    "ooco_gym/Eviction-v1": {**MEMORY_BOUND, "rate_scale": 0.08},
    "ooco_gym/EvictionPredicted-v1": {**MEMORY_BOUND, "rate_scale": 0.08, "lengths": PREDICTED},
    "ooco_gym/MigrationPredicted-v1": {**MEMORY_BOUND, "lengths": PREDICTED},
    "ooco_gym/Batching-v1": ENGINE, "ooco_gym/Admission-v2": ENTERING, "ooco_gym/Serving-v1": ENGINES,
    "ooco_gym/PreemptionVictim-v1": SHORT_OF_BLOCKS, "ooco_gym/Scaling-v1": SCALED,
    "ooco_gym/ScalingPools-v1": ROLES,
    **{f"ooco_gym/{name}": load_yaml("env", name[:-3].lower())["scenario"]
       for name in ("Jobs-v1", "Retention-v1", "Routing-v2")}}
WINDOW = (1, 0)  # a seed and a number with decisions of every kind
REQUEST_FIELDS = tuple(name for name in s.REQUEST.names or () if name not in ("previous", "next"))
INSTANCE_FIELDS = ("free_blocks", "online_waiting", "offline_waiting", "urgent_members", "offline_members", "decodable",
                   "online_prefill_ps", "offline_prefill_ps", "decode_ps", "wasted_ps", "decoded_tokens")
SUMS = tuple(name for name in s.Totals.fields if name not in ("decisions", "events"))


def arguments(name: str, scenario: Any = None, **changes: Any) -> dict[str, Any]:
    """Arguments of an environment that make its episodes short; fields of the scenario may be changed."""
    if scenario is None or isinstance(scenario, dict):
        scenario = {**SCENARIOS[name], **(scenario or {})}
    return {"scenario": scenario, **SHORT, **SHORT_OF.get(name, {}), **changes}


def class_of(name: str) -> Any:
    """The class of an environment."""
    module, _, found = ENVIRONMENTS[name].partition(":")
    return getattr(import_module(module), found)


def refused(name: str, policy: str) -> str:
    """Why an environment has nothing to decide under a base policy; "" where it has."""
    params = {param.name for param in policy_of(policy).params}
    decisions = {decision.name: decision for decision in class_of(name).decisions}
    if not set(load_yaml("env", short_name(name)).get("controls") or {}) <= params:
        return "no parameter"
    if "gate" in decisions and "gate_window" not in params:
        return "no gate"
    if "pack" in decisions and "slo_margin" not in params:
        return "no packing"
    if {decision.kind for decision in decisions.values()} <= BLIND and policy_of(policy).class_blind:
        return "offline requests as online ones"
    if set(decisions) == {"reclaim"} and policy == "bros":
        return "leaves nothing to the agent"
    return ""


def make(name: str, **changes: Any) -> Any:
    """An environment with short episodes, without wrappers."""
    return gym.make(name, disable_env_checker=True, **arguments(name, **changes)).unwrapped


class Step(NamedTuple):
    """What a step, or a reset, gives."""

    observation: dict[str, np.ndarray]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    action: Any = None

    @property
    def over(self) -> bool:
        """Whether the episode ends with it."""
        return self.terminated or self.truncated


def play(env: Any, choose: Callable[[Any], Any], seed: int = WINDOW[0], window: int = WINDOW[1],
         most: int = 1_000_000) -> list[Step]:
    """Plays a window by what `choose` answers to the environment; the first step is the reset."""
    observation, info = env.reset(seed=seed, options={"window": window})
    steps = [Step(observation, 0.0, False, False, info)]
    while not steps[-1].over and len(steps) <= most:
        action = choose(env.unwrapped)
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append(Step(observation, reward, terminated, truncated, info, action))
    return steps


def base_policy(env: Any) -> Any:
    """The base policy's action."""
    return env.base_action()


def at_random(seed: int) -> Callable[[Any], Any]:
    random = np.random.default_rng(seed)
    return lambda env: random_legal(random, env)


def random_legal(random: np.random.Generator, env: Any) -> Any:
    """One random legal action of an environment."""
    if env.episodes.controls is not None:
        return random.integers(env.action_space.nvec)
    return int(random.choice(np.flatnonzero(env.action_masks())))


def differences(a: s.State, b: s.State) -> list[str]:
    """What the results of two episodes differ in."""
    found = [f"requests.{name}" for name in REQUEST_FIELDS if not np.array_equal(a.requests[name], b.requests[name])]
    found += [f"instances.{name}" for name in INSTANCE_FIELDS
              if not np.array_equal(a.instances[name], b.instances[name])]
    found += [f"totals.{name}" for name in SUMS if getattr(a.totals, name) != getattr(b.totals, name)]
    found += ["gauges.late_online"] if a.gauges.late_online != b.gauges.late_online else []
    return found if np.array_equal(a.itl, b.itl) else [*found, "itl"]


def alike(a: Any, b: Any) -> bool:
    """Whether two results are the same to the last bit: nested mappings, sequences, arrays, numbers."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(alike(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and a.dtype == object:
        return alike(list(a), list(b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def digest(steps: list[Step]) -> str:
    """One figure for all that an agent is given."""
    sums = hashlib.sha256()
    for step in steps:
        for key in sorted(step.observation):
            sums.update(step.observation[key].tobytes())
        plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in step.info.items()}
        sums.update(json.dumps([step.reward, step.over, plain], sort_keys=True).encode())
    return sums.hexdigest()
