"""Before learning: play for a while, to scale observations and, if asked, to start from what a heuristic does.

A gate is asked many times a second, and what a start is worth shows a minute later. From random play a policy drifts
into always or never before it has seen why either is bad; from a heuristic it starts where the field stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from agents.environments import OBSERVATION_KEYS
from agents.networks import Actor, ObservationEncoder

EXPLORE = 0.1  # share of random legal actions while a rule is watched, so that its answers off its own path are seen


def play_and_scale(model: Any, env: Any, rule: str | None, decisions: int, seed: int) -> dict[str, np.ndarray]:
    """Plays about `decisions` decisions, updates the scaling of `model` on them, and returns what was seen.

    Args:
        model: whose policy's `ObservationEncoder` is updated.
        env: vectorised training environments; reset first.
        rule: who decides, but for a tenth of random legal actions; None is random play throughout.
        decisions: how many, over all environments.
        seed: of the random actions.

    Returns:
        The parts of the observation, and `answer` (what the rule says, 0 without one), stacked over decisions.
    """
    encoder = model.policy.features_extractor
    assert isinstance(encoder, ObservationEncoder)
    random = np.random.default_rng((seed, 7))
    seen: list[dict[str, np.ndarray]] = []
    observation = env.reset()
    for _ in range(max(1, decisions // env.num_envs)):
        keys = np.where(observation["action_mask"] > 0, random.random(observation["action_mask"].shape), -1.0)
        action = keys.argmax(axis=1)
        answer = np.zeros_like(action)
        if rule is not None:
            answer = np.array(env.env_method("rule_action", rule))
            action = np.where(random.random(len(action)) < EXPLORE, action, answer)
        encoder.update(observation)
        seen.append({**observation, "answer": answer})
        observation, _, _, _ = env.step(action)
    return {key: np.concatenate([part[key] for part in seen]) for key in seen[0]}


def imitate(model: Any, seen: dict[str, np.ndarray], epochs: int, batch_size: int, learning_rate: float) -> float:
    """Fits the actor to the answers in `seen` by cross-entropy; returns the share of answers that it then gives.

    The optimiser is its own, so that learning starts with fresh moments.
    """
    actor, answers = Actor(model.policy), torch.as_tensor(seen["answer"])
    parts = [torch.as_tensor(seen[key]) for key in OBSERVATION_KEYS]
    optimiser = torch.optim.Adam(actor.actor_parameters(), lr=learning_rate)
    for _ in range(epochs):
        for chunk in torch.randperm(len(answers)).split(batch_size):
            optimiser.zero_grad()
            loss = functional.cross_entropy(actor(*(part[chunk] for part in parts))[1], answers[chunk])
            loss.backward()
            optimiser.step()
    with torch.inference_mode():
        agreeing = [actor(*(part[i] for part in parts))[0] == answers[i]
                    for i in torch.arange(len(answers)).split(4096)]
    return float(torch.cat(agreeing).float().mean())

