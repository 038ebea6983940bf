"""Hindsight learning: what each action at a decision would have been worth, played out on the future that came.

Arrivals and output lengths do not depend on what is decided. So a decision can be judged after the fact: every legal
action is played out from the same state on the same future, with a heuristic (the base) deciding afterwards
(Sinclair et al. 2023, arXiv 2207.06272, section 4, with one base instead of a planner). No action but the one in
question differs, so differences of values carry none of the noise of arrivals; and a base does not look ahead, so the
mean of its values over futures is its true value, without the optimism of a planner that knows the future. What is
fitted to them is one step of policy improvement on the base, learned from all actions at once.

States are those of whoever plays: first the teacher, then what has been learned (DAgger; Ross, Gordon and Bagnell
2011, arXiv 1011.0686).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from agents.environments import OBSERVATION_KEYS, make_env
from agents.learning.networks import Actor
from agents.lookahead.rollout import PRICED, Clones, legal_actions
from agents.search.imitation import EXPLORE, encoder_of, teacher_of, training_config, training_windows
from agents.settings import plain
from ooco_gym.envs import reward as r
from ooco_gym.envs.playing_out import BASES
from ooco_gym.errors import UserError, unknown
from ooco_gym.jobs import in_processes
from ooco_gym.sim import state as s


class Hindsight:
    """Values of all actions at the open decision of one environment.

    Args:
        env: the environment, bare, with one decision at a time (no vector of controls).
        base: the rule that decides after the action, a name of `ooco_gym.envs.playing_out.BASES`.
        horizon_s: seconds of simulated time that are played out; what is unfinished then is credited with what has been
            computed for it. The end of the episode and of its drain, where that comes before.
        weight: factor on the reward's parts that are SLO misses.

    Raises:
        UserError: no base of that name.
    """

    def __init__(self, env: Any, base: str, horizon_s: float, weight: float = 1.0) -> None:
        if base not in BASES:
            raise unknown("base", base, BASES)
        self.env, self.base, self.horizon_s = env, BASES.index(base), horizon_s
        self.weights = env.config.weights.copy()
        self.weights[[r.TERMS.index(term) for term in PRICED]] *= weight
        self._window: Any = None

    def values(self) -> np.ndarray:
        """The reward from here on after each action: float64[A], NaN where it is not legal."""
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        if self._window is not simulation:
            self._window = simulation
            self._clones = Clones(episodes, simulation.state, episodes.buffers.mask.shape[1], self.weights)
        actions = legal_actions(self.env, np.zeros(0, np.int64))
        now_ps, end_ps = int(simulation.state.clock.now_ps), simulation.end_ps
        until_ps = min(end_ps, now_ps + round(self.horizon_s * s.PS_PER_S))
        values = np.full(episodes.buffers.mask.shape[1], np.nan)
        values[actions[:, 0]] = self._clones.play(
            episodes, 0, simulation.state, actions, np.full(len(actions), self.base), until_ps, end_ps, 1.0)
        return values


def look_back(config: Mapping[str, Any], rule: Any, base: str, horizon_s: float, weight: float, every: int, looks: int,
              actor: Actor | None, stream: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Plays training windows and plays out all actions at about one decision in `every`.

    Args:
        rule: the teacher, as of `agents.search.imitation.teacher_of`.
        base, horizon_s, weight: of `Hindsight`.
        every: decisions from one look to the next, in the mean; they are drawn at random.
        actor: the policy that plays; None: the teacher. A tenth of the actions are random.

    Returns:
        The parts of the observation, `answer` (the teacher's), `values` float64 (n, A), and `window` (n,), a number for
        each window played.
    """
    torch.set_num_threads(1)
    env: Any = make_env(config).unwrapped
    hindsight, random = Hindsight(env, base, horizon_s, weight), np.random.default_rng([*stream, 1])
    seen: list[dict[str, Any]] = []
    for place, window in enumerate(training_windows(config, [*stream, 2])):
        observation, _ = env.reset(seed=window[0], options={"window": window[1]})
        teacher = teacher_of(env, rule)
        while env.episodes.open(0) and len(seen) < looks:
            action = answer = int(teacher())
            if random.random() < 1.0 / every:
                seen.append({**{key: np.array(observation[key]) for key in OBSERVATION_KEYS},
                             "answer": np.array(answer), "values": hindsight.values(), "window": np.array(place)})
            if actor is not None:
                action = int(actor.answer(*(np.array(observation[key])[None] for key in OBSERVATION_KEYS))[0][0])
            if random.random() < EXPLORE:
                action = int(random.choice(np.flatnonzero(observation["action_mask"])))
            observation, *_ = env.step(action)
        if len(seen) >= looks:
            break
    env.close()
    return {key: np.stack([one[key] for one in seen]) for key in seen[0]}


def collect(config: Mapping[str, Any], settings: Mapping[str, Any], actor: Actor | None, seed: int, turn: int
            ) -> dict[str, np.ndarray]:
    """`look_back` in `settings["workers"]` processes; what each of them sees does not depend on the machine."""
    workers = int(settings["workers"])
    look = partial(look_back, dict(config), settings["teacher"], settings["base"], float(settings["horizon_s"]),
                   float(settings["weight"]), int(settings["every"]), -(-int(settings["looks"]) // workers), actor)
    streams = [(seed, 9, turn, worker) for worker in range(workers)]
    parts = list(in_processes(look, streams, workers))
    for index, part in enumerate(parts):
        part["window"] = part["window"] + index * 100_000
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def targets(values: np.ndarray, answers: np.ndarray, temperature: float, lead: float) -> np.ndarray:
    """What logits are fitted to: what an action is worth beside the teacher's, in deviations, and the teacher's lead.

    Args:
        values: (n, A), NaN where an action is not legal.
        answers: (n,), what the teacher does.
        temperature: deviations of such a difference that make one unit of a logit.
        lead: of the teacher's action, in logits: what others must be worth more, on average, to be taken instead.

    Returns:
        (n, A), NaN where an action is not legal. Differences beyond four deviations are cut: a single missed promise
        must not outweigh a thousand decisions.
    """
    rows = np.arange(len(values))
    gains = values - values[rows, answers][:, None]
    others = np.ones(values.shape, bool)
    others[rows, answers] = False
    deviation = max(float(np.sqrt(np.nanmean(np.where(others, gains, np.nan) ** 2))), 1e-9)
    wanted = np.clip(gains / deviation, -4.0, 4.0) / temperature
    wanted[rows, answers] += lead
    return wanted


def fit(model: Any, seen: Mapping[str, np.ndarray], wanted: np.ndarray, epochs: int, batch_size: int,
        learning_rate: float) -> dict[str, float]:
    """Fits the actor's logits to `wanted`, up to a constant for each decision, by least squares.

    Least squares, since what is wanted is the mean over futures: a fit to the best action of each future would learn
    what luck favours. A fifth of the windows is held out, and the epoch that predicts them best is kept.

    Args:
        seen: as of `look_back`.
        wanted: (n, A), NaN where an action is not legal.

    Returns:
        `agreement` with the teacher; and of the windows held out, `gain` of the actions chosen over the teacher's and
        its standard error `gain_error` (reward a decision, played out), and `explained`, the share of the variance.
    """
    actor, legal = Actor(model.policy), torch.as_tensor(~np.isnan(wanted))
    parts = [torch.as_tensor(seen[key]) for key in OBSERVATION_KEYS]
    goal = _centred(torch.as_tensor(np.nan_to_num(wanted), dtype=torch.float32), legal)
    names = np.unique(seen["window"])
    held = torch.as_tensor(np.isin(seen["window"], names[:: 5]) if len(names) > 1 else np.zeros(len(wanted), bool))
    mine, theirs = torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()
    optimiser = torch.optim.Adam(actor.actor_parameters(), lr=learning_rate)
    best, kept = np.inf, None
    for _ in range(epochs):
        for chunk in mine[torch.randperm(len(mine))].split(batch_size):
            optimiser.zero_grad()
            _miss(actor, parts, goal, legal, chunk).mean().backward()
            optimiser.step()
        with torch.no_grad():
            miss = float(_miss(actor, parts, goal, legal, theirs if len(theirs) else mine).mean())
        if miss < best:
            best, kept = miss, {name: one.clone() for name, one in actor.state_dict().items()}
    if kept is not None:
        actor.load_state_dict(kept)
    with torch.no_grad():
        chosen = torch.cat([actor(*(part[rows] for part in parts))[0]
                            for rows in torch.arange(len(wanted)).split(4096)]).numpy()
    judged = theirs.numpy() if len(theirs) else mine.numpy()
    gains = (seen["values"][judged, chosen[judged]] - seen["values"][judged, seen["answer"][judged]])
    return {"agreement": float(np.mean(chosen == seen["answer"])), "gain": float(gains.mean()),
            "gain_error": float(gains.std() / np.sqrt(len(gains))),
            "explained": 1.0 - best / max(float((goal[judged] ** 2).sum(1).mean()), 1e-9)}


def _centred(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """Logits less their mean over the legal actions, 0 elsewhere."""
    mean = (logits * legal).sum(1, keepdim=True) / legal.sum(1, keepdim=True)
    return torch.where(legal, logits - mean, 0.0)


def _miss(actor: Actor, parts: list[torch.Tensor], goal: torch.Tensor, legal: torch.Tensor, rows: torch.Tensor
          ) -> torch.Tensor:
    found = _centred(actor(*(part[rows] for part in parts))[1], legal[rows])
    return ((found - goal[rows]) ** 2).sum(1)


def learn_in_hindsight(trainer: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Collects looks, first on the teacher's path and then on the learner's, and fits the actor after each round.

    Returns:
        What the summary of a run says about it.

    Raises:
        UserError: an environment whose actions are vectors or whose episodes have no copies.
    """
    settings = {**settings, "teacher": plain(settings["teacher"]) if isinstance(settings["teacher"], Mapping)
                else settings["teacher"]}
    config = training_config(trainer)
    places = trainer.env.unwrapped.env
    if not hasattr(places, "episodes") or places.episodes.controls is not None:
        raise UserError(f"agent.imitate.rule=hindsight: the actions of {config['id']} cannot be played out one by one; "
                        "imitate a heuristic, or nothing (agent.imitate.rule=null)")
    seed, rounds, found = int(trainer.config["seed"]), [], {}
    actor: Actor | None = None
    for turn in range(int(settings["rounds"])):
        rounds.append(collect(config, settings, actor, seed, turn))
        rounds[-1]["window"] = rounds[-1]["window"] + turn * 10_000_000
        seen = {key: np.concatenate([part[key] for part in rounds]) for key in rounds[0]}
        encoder_of(trainer.model).update(rounds[-1])
        wanted = targets(seen["values"], seen["answer"], float(settings["temperature"]), float(settings["lead"]))
        found = fit(trainer.model, seen, wanted, int(settings["epochs"]), max(1, int(trainer.agent["batch_size"]) // 4),
                    float(settings["learning_rate"]))
        actor = Actor(trainer.model.policy)
    decisions = sum(len(part["answer"]) for part in rounds)
    return {"rule": "hindsight", "teacher": settings["teacher"], "decisions": decisions, **found}
