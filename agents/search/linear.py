"""A linear rule over named features, found by direct search on training windows: a teacher beside the published ones.

One decision among many moves a window's service by less than its noise, and a policy gradient must find that. Whole
windows of the same arrivals show at once which of two rules is better. So a rule of a dozen weights is searched by the
CMA-ES, all candidates on the same training windows, for the most offline service within the violation budget. A network
copies it, exactly, since it sees the same observation, and learns on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from agents.environments import split_seeds, vector_env
from agents.search.imitation import learn_rule, training_config, watch
from agents.search.optimisers import Cma
from ooco_gym.envs.buffers import PARTNER_ACTION
from ooco_gym.envs.features import CANDIDATES, CLUSTER, DECISIONS, candidate_table
from ooco_gym.envs.vector import WINDOWS
from ooco_gym.errors import UserError, unknown

SHORTEST = {"decline": -2.0, "partner": -9.0, "tokens": -1.0}  # where a search begins if nothing else is said
DECLINE, PARTNER = "decline", "partner"  # constants: of the decision's own no, and of what the partner would do


@dataclass(frozen=True)
class LinearRule:
    """The action of the highest score. Declining is scored by a constant and the features of the cluster at places
    `cluster`, the partner's action by a constant, each candidate by its features at places `candidates`; `weights` are
    of declining, of the partner's action, of cluster and candidate features.
    """

    cluster: tuple[int, ...]
    candidates: tuple[int, ...]
    weights: np.ndarray

    def actions(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """The actions (n,) at a batch of observations."""
        split, own = len(self.cluster), self.weights[2:]
        cluster = observations["cluster"][:, self.cluster]
        offered = candidate_table(observations["candidates"])[:, :, self.candidates]
        scores = np.concatenate([(self.weights[0] + cluster @ own[:split])[:, None],
                                 np.full((len(cluster), 1), self.weights[1]), offered @ own[split:]], axis=1)
        return np.where(observations["action_mask"] > 0, scores, -np.inf).argmax(axis=1)


class RuleBook:
    """A linear rule for each decision; the partner takes those that have none."""

    def __init__(self, rules: Mapping[str, LinearRule]) -> None:
        self.rules = {DECISIONS.index(name): rule for name, rule in rules.items()}

    def actions(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """The actions (n,) at a batch of observations."""
        asked, found = observations["decision"].argmax(axis=1), np.full(len(observations["decision"]), PARTNER_ACTION)
        for decision, rule in self.rules.items():
            rows = np.flatnonzero(asked == decision)
            if len(rows):
                found[rows] = rule.actions({key: part[rows] for key, part in observations.items()})
        return found

    def begin(self, env: Any) -> Callable[[], int]:
        """As a heuristic's: answers the open decision of an episode of the bare environment `env`."""
        buffers = env.episodes.buffers

        def act() -> int:
            return int(self.actions({
                "cluster": buffers.cluster[:1], "candidates": buffers.candidates[:1].reshape(1, -1),
                "action_mask": buffers.mask[:1], "decision": buffers.decision[:1]})[0])

        return act


def _plain(decline: float, partner: float, tokens: float) -> LinearRule:
    return LinearRule((), (_TOKENS,), np.array([decline, partner, tokens]))


_TOKENS = [feature.name for feature in CANDIDATES].index("tokens")
# What decisions that are not searched may be answered by.
PLAIN = {"decline": _plain(99.0, 98.0, 0.0), "shortest": _plain(-9.0, -99.0, -1.0),
         "longest": _plain(-9.0, -99.0, 1.0)}


class Windows:
    """The same windows of the training split, played again and again side by side; their warm-up is kept.
    """

    def __init__(self, config: Mapping[str, Any], count: int, seed: int) -> None:
        seeds, random = split_seeds(config, "train"), np.random.default_rng((seed, 12))
        self.played = [(int(seeds[i % len(seeds)]), int(random.integers(WINDOWS))) for i in range(count)]
        self.env: Any = vector_env(config, count, autoreset_mode=AutoresetMode.NEXT_STEP.value, bank=count)

    def play(self, act: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> tuple[float, float]:
        """Mean offline service (reference GPU-seconds a second), and violations per online request of all windows."""
        observations, _ = self.env.reset(seed=[seed for seed, _ in self.played],
                                         options={"window": [window for _, window in self.played]})
        found: dict[int, tuple[float, float, float]] = {}
        while len(found) < len(self.played):
            observations, _, _, ended, infos = self.env.step(act(observations))
            for i in np.flatnonzero(ended).tolist():
                summary = infos["summary"]
                found.setdefault(i, tuple(float(summary[key][i]) for key in (  # type: ignore[arg-type]
                    "offline_reference_gpu_s_per_s", "online_violated", "online_arrived")))
        service, violated, arrived = np.array(list(found.values())).T
        return float(service.mean()), float(violated.sum() / max(arrived.sum(), 1.0))


def search(config: Mapping[str, Any], settings: Mapping[str, Any], decision: str, seed: int
           ) -> tuple[RuleBook, dict[str, Any]]:
    """Searches the weights; returns the rule, and what it scored beside where it started.

    Args:
        config: the `env` configuration, with a single action at a time.
        decision: whose rule is searched; `settings["others"]` names the rules of the others.
    """
    settings = {**settings, "others": settings["others"] or {}, "start": settings["start"] or SHORTEST}
    cluster, candidates = (_places(table, settings[key], f"agent.imitate.{key}")
                           for table, key in ((CLUSTER, "cluster"), (CANDIDATES, "candidates")))
    names = [DECLINE, PARTNER, *settings["cluster"], *settings["candidates"]]
    for name in settings["start"]:
        if name not in names:
            raise unknown("agent.imitate.start", name, names)
    for other, name in settings["others"].items():
        if name not in PLAIN:
            raise unknown(f"agent.imitate.others.{other}", name, PLAIN)
        if other not in DECISIONS:
            raise unknown("agent.imitate.others", other, DECISIONS)
    seen = watch(config, "partner", int(settings["scale_decisions"]), seed)
    asked = seen["decision"].argmax(axis=1) == DECISIONS.index(decision)
    if not asked.any():
        raise UserError(f"agent.imitate.scale_decisions={settings['scale_decisions']}: '{decision}' was never asked "
                        "among them; watch more")
    seen = {key: part[asked] for key, part in seen.items()}
    legal = seen["action_mask"][:, 2:] > 0
    rows = [seen["cluster"][:, cluster], candidate_table(seen["candidates"])[legal][:, candidates]]
    deviation = np.maximum(np.concatenate([[1.0, 1.0], *(part.std(0) for part in rows)]), 1e-3)
    mean = np.concatenate([[0.0, 0.0], *(part.mean(0) for part in rows)])
    of_cluster = np.arange(len(mean)) < 2 + len(cluster)
    windows = Windows(config, int(settings["windows"]), seed)
    budget, price = float(settings["budget"]), float(settings["price"])
    scores: list[tuple[float, float]] = []

    others = {other: PLAIN[name] for other, name in settings["others"].items()}

    def plain(weights: np.ndarray) -> np.ndarray:
        """Weights on features as they are, from those on centred features of deviation 1, where steps are alike."""
        found = weights / deviation
        shift = found * mean
        found[0] -= shift[of_cluster].sum() - shift[~of_cluster].sum()
        found[1] += shift[~of_cluster].sum()
        return found

    def rule(weights: np.ndarray) -> RuleBook:
        return RuleBook({**others, decision: LinearRule(tuple(cluster), tuple(candidates), plain(weights))})

    def score(weights: np.ndarray) -> float:
        scores.append(windows.play(rule(weights).actions))
        return scores[-1][0] - price * max(0.0, scores[-1][1] - budget)

    start = np.array([float(settings["start"].get(name, 0.0)) for name in names]) * deviation
    shift = start / deviation * mean
    start[0] += shift[of_cluster].sum() - shift[~of_cluster].sum()
    start[1] -= shift[~of_cluster].sum()
    method, best, value = Cma(start, 2.0, None, int(settings["population"]), seed), start, score(start)
    for _ in range(int(settings["generations"])):
        drawn = method.ask()
        found = np.array([score(one) for one in drawn])
        method.tell(drawn, found)
        if found.max() > value:
            best, value = drawn[found.argmax()], float(found.max())
    windows.env.close()
    return rule(best), {"score": value, "start_service": scores[0][0], "start_violation_rate": scores[0][1],
                        "weights": dict(zip(names, plain(best).tolist(), strict=True))}


def learn_searched(trainer: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Searches a rule, copies it, and returns what the summary of a run says about it.

    Raises:
        UserError: an unknown feature, or an environment of another kind.
    """
    config = training_config(trainer)
    places = getattr(trainer.env.unwrapped.env, "episodes", None)
    if places is None or places.controls is not None:
        raise UserError(f"agent.imitate.rule=search: {config['id']} does not ask for one action among candidates; "
                        "imitate a heuristic, or nothing (agent.imitate.rule=null)")
    names = [decision.name for decision in places.decisions]
    decision = settings.get("decision") or names[0]
    if decision not in names:
        raise unknown("agent.imitate.decision", decision, names)
    rule, found = search({**config, "window_s": float(settings["window_s"])}, settings, decision,
                         int(trainer.config["seed"]))
    return {**learn_rule(trainer, {**settings, "rule": rule}), "rule": "search", **found}


def _places(table: Sequence[Any], names: Sequence[str], key: str) -> list[int]:
    known = [feature.name for feature in table]
    for name in names:
        if name not in known:
            raise unknown(key, name, known)
    return [known.index(name) for name in names]
