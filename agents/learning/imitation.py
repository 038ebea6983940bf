"""Before learning: scales observations by random actions, or imitates a heuristic.

A gate decides many times a second, and an action's effect shows a minute later. A policy that
starts at random drifts to always or never before it has seen why either is bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from agents.environments import OBSERVATION_KEYS, make_env, random_legal, split_seeds, with_length
from agents.evaluation.heuristics import by_name
from agents.policies.networks import Actor
from ooco_gym.envs import buffers as b
from ooco_gym.envs.vector import WINDOWS
from ooco_gym.errors import unknown
from ooco_gym.schema import plain

WATCHED_WINDOWS = 32
MEASURED = 64  # decisions of each episode by which decisions per second are measured
STEPS = (8, 1024)  # decisions of each episode between two updates, at least and at most
EXPLORE = 0.1  # share of random legal actions while a rule is recorded, to see its actions off its own path


def play_and_scale(model: Any, env: Any, decisions: int, seed: int) -> None:
    """Takes about `decisions` random actions (over all of the vectorised `env`), and updates the
    scaling of the model's observations."""
    random, levels = np.random.default_rng((seed, 7)), getattr(env.action_space, "nvec", None)
    observation = env.reset()
    for _ in range(max(1, decisions // env.num_envs)):
        legal = random_legal(observation["action_mask"], random)
        model.policy.features_extractor.update(observation)
        observation, _, _, _ = env.step(legal if levels is None else
                                        random.integers(levels, size=(env.num_envs, len(levels))))


def steps_of(env: Any, rollout_s: float, seed: int) -> int:
    """Returns the decisions of each episode of a vectorised `env` that take `rollout_s` simulated seconds, measured
    with random actions.

    Environments have from 0.2 to 150 decisions a second, so no fixed number of decisions suits all of them.
    """
    random, levels = np.random.default_rng((seed, 5)), getattr(env.action_space, "nvec", None)
    observation, elapsed_s = env.reset(), 0.0
    for _ in range(MEASURED):
        actions = (random_legal(observation["action_mask"], random) if levels is None else
                   random.integers(levels, size=(env.num_envs, len(levels))))
        observation, _, _, _ = env.step(actions)
        elapsed_s += float(env.info_array("elapsed_s").mean())
    return int(np.clip(round(rollout_s * MEASURED / max(elapsed_s, 1e-3)), *STEPS))


def teacher_of(env: Any, rule: Any) -> Callable[[], Any]:
    """Returns the function that gives a heuristic's action at the open decision of an episode that has begun.

    Args:
        rule: a heuristic by name (`heuristics`), or one for each decision, such as `{pull: ooco_xllm, gate: shortest}`;
            the base policy takes all others.

    Raises:
        UserError: no heuristic or decision of that name.
    """
    if isinstance(rule, str):
        return by_name(env, rule).begin(env)
    decisions = {decision.name: decision.kind for decision in getattr(env, "decisions", ())}
    for name in rule:
        if name not in decisions:
            raise unknown("decision", name, decisions)
    acting = {decisions[name]: by_name(env, one).begin(env) for name, one in rule.items()}

    def act() -> Any:
        kind = int(env.episodes.buffers.status[0, b.KIND])
        return acting[kind]() if kind in acting else env.base_action()

    return act


def training_windows(config: Mapping[str, Any], stream: Any) -> Iterator[tuple[int, int]]:
    """Draws random windows of the training split, without end: seed and number."""
    seeds, random = split_seeds(config, "train"), np.random.default_rng(stream)
    while True:
        yield seeds[int(random.integers(len(seeds)))], int(random.integers(WINDOWS))


def watch(config: Mapping[str, Any], rule: Any, decisions: int, seed: int) -> dict[str, np.ndarray]:
    """Records a heuristic for about `decisions` decisions, with a tenth of random actions.

    Args:
        rule: as for `teacher_of`.
        decisions: spread over the beginnings of `WATCHED_WINDOWS` windows of the training split.

    Returns:
        The parts of the observation, and `answer` (the heuristic's action), (n,) or (n, P), stacked over decisions.

    Raises:
        UserError: no heuristic of that name.
    """
    env, random = make_env(config), np.random.default_rng((seed, 7))
    counts = getattr(env.action_space, "nvec", None)
    seen: list[dict[str, Any]] = []
    for window in training_windows(config, (seed, 8)):
        observation, _ = env.reset(seed=window[0], options={"window": window[1]})
        act = teacher_of(env.unwrapped, rule)
        until, over = len(seen) + max(1, decisions // WATCHED_WINDOWS), False
        while not over and len(seen) < until:
            answer = act()
            parts = {key: np.array(observation[key]) for key in OBSERVATION_KEYS}
            seen.append({**parts, "answer": np.array(answer)})
            action = answer
            if random.random() < EXPLORE:
                legal = np.flatnonzero(observation["action_mask"])
                action = int(random.choice(legal)) if counts is None else random.integers(counts)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        if len(seen) >= decisions:
            break
    env.close()
    stacked = {}
    for key in seen[0]:
        stacked[key] = np.stack([one[key] for one in seen])
    return stacked


def imitate(model: Any, seen: Mapping[str, np.ndarray], epochs: int, batch_size: int, learning_rate: float,
            smoothing: float = 0.0) -> float:
    """Fits the actor to the actions in `seen` by cross-entropy; returns the share on which both then agree.

    It has its own optimiser, so that learning starts with fresh moments.

    Args:
        model: whose actor is fitted.
        seen: as `watch` returns it.
        smoothing: share of the target that is spread over all legal actions. Without it, the copy never explores and
            learning cannot improve it.
    """
    actor = Actor.of(model.policy)
    levels = actor.levels or (seen["action_mask"].shape[1],)
    answers = torch.as_tensor(seen["answer"]).reshape(-1, len(levels))
    parts = [torch.as_tensor(seen[key]) for key in OBSERVATION_KEYS]
    targets = []  # by part of an action: (n, levels of the part)
    for part, mask in enumerate((torch.as_tensor(seen["action_mask"]) > 0).float().split(levels, dim=1)):
        target = smoothing * mask / mask.sum(1, keepdim=True)
        target[torch.arange(len(answers)), answers[:, part]] += 1.0 - smoothing
        targets.append(target)
    optimiser = torch.optim.Adam(actor.actor_parameters(), lr=learning_rate)
    for _ in range(epochs):
        for chunk in torch.randperm(len(answers)).split(batch_size):
            optimiser.zero_grad()
            logits = actor(*(part[chunk] for part in parts))[1].split(levels, dim=1)
            loss = torch.stack([functional.cross_entropy(logit, target[chunk])
                                for logit, target in zip(logits, targets, strict=True)])
            loss.sum().backward()
            optimiser.step()
    agreeing = []
    with torch.inference_mode():
        for chunk in torch.arange(len(answers)).split(4096):
            actions = actor(*(part[chunk] for part in parts))[0]
            agreeing.append(actions.reshape(-1, len(levels)) == answers[chunk])
    return float(torch.cat(agreeing).all(1).float().mean())


def learn_rule(trainer: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Scales observations by a heuristic's run, and fits the actor to its actions.

    Returns:
        The entries of the run's summary.
    """
    rule = plain(settings["rule"]) if isinstance(settings["rule"], Mapping) else settings["rule"]
    config = with_length(trainer.config["env"], trainer.config.get("window_s"))
    seen = watch(config, rule, int(settings["decisions"]), int(trainer.config["seed"]))
    trainer.model.policy.features_extractor.update(seen)
    agreement = imitate(trainer.model, seen, int(settings["epochs"]), max(1, int(trainer.agent["batch_size"]) // 4),
                        float(settings["learning_rate"]), float(settings.get("smoothing") or 0.0))
    return {"rule": rule, "decisions": len(seen["answer"]), "agreement": agreement}
