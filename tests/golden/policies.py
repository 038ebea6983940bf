"""The answers of an exported network to 1,000 observations, which are recorded by playing its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.runtime import Policy
from tests.golden.digests import Digests, digest
from tests.golden.trajectories import make, random_legal

OBSERVATIONS = 1_000
NETWORKS = {"gate_network": "ooco_gym/PrefillGate-v1"}
FOLDER = Path(__file__).parents[1] / "data"


def answers(name: str, count: int = OBSERVATIONS) -> dict[str, str]:
    """Digests of a policy's actions, and of the observations that it was given.

    Every third action is the policy's own, every third the base policy's, every third a random legal one.
    """
    policy, env = Policy.load(FOLDER / name), make(NETWORKS[name])
    random, actions, seen = np.random.default_rng(9), [], []
    observation: dict[str, Any] = {}
    over, seed = True, 20
    while len(actions) < count:
        if over:
            seed += 1
            observation, _ = env.reset(seed=seed, options={"window": 0})
        action = policy.decide(observation)
        actions.append(np.asarray(action))
        seen.append(np.concatenate([observation[key].ravel().astype(np.float32) for key in sorted(observation)]))
        turn = len(actions) % 3
        played = action if turn == 0 else env.unwrapped.base_action() if turn == 1 else random_legal(
            random, env, observation)
        observation, _, terminated, truncated, _ = env.step(played)
        over = terminated or truncated
    return {"actions": digest(np.stack(actions)), "observations": digest(np.stack(seen))}


def group(every: int = 1) -> Digests:
    """The digests of every n-th policy."""
    return {name: answers(name) for name in list(NETWORKS)[::every]}
