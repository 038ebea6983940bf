"""What a policy was asked and what it answered on held-out windows, and which features move its answers.

Permutation importance (Breiman 2001; Fisher, Rudin and Dominici 2019): each feature is shuffled among recorded
decisions, and the answers are compared. It is gradient-free, so that it works for any policy that answers observations.
A feature is shuffled among decisions of the same kind, one of candidates among all legal candidates; features that say
nearly the same (tokens, prefill time) are shuffled one at a time and share their importance between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agents.environments import OBSERVATION_KEYS, Window, candidate_shape
from agents.evaluation.players import BatchPlayer, LearnedPolicy, Observations, play
from agents.explaining.rules import names_of
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.features import kind_name
from ooco_gym.policy import spelling_of

UNKNOWN = -1  # the partner's answer where there is none
Preferences = Callable[..., tuple[np.ndarray, np.ndarray]]  # observations, batched → actions and logits
_BATCH = 2048  # observations that a policy answers at a time


@dataclass(frozen=True)
class Recording:
    """N decisions of one kind, over several windows.

    Attributes:
        kind: slot of the observation's `decision`.
        cluster, candidates, mask, decision: as observed: (N, H Fc), (N, K, F), (N, A), (N, D).
        window: (N,), which of the windows.
        partner: (N,), the action that says what the partner would do; `UNKNOWN` where it cannot be said.
        actions, logits: what the policy answered: (N,) or (N, P), and (N, A).
        history: H, how many cluster vectors there are in one, the newest first.
    """

    kind: int
    cluster: np.ndarray
    candidates: np.ndarray
    mask: np.ndarray
    decision: np.ndarray
    window: np.ndarray
    partner: np.ndarray
    actions: np.ndarray
    logits: np.ndarray
    history: int = 1

    @property
    def now(self) -> np.ndarray:
        """The cluster at the decision, without what was before: (N, Fc)."""
        return self.cluster[:, : self.cluster.shape[1] // self.history]

    @property
    def name(self) -> str:
        """Of the kind of decision."""
        return kind_name(self.kind)

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        """The observations, as policies take them."""
        return self.cluster, self.candidates, self.mask, self.decision

    def __len__(self) -> int:
        return len(self.cluster)


def in_batches(preferences: Preferences, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Actions and logits for observations, in batches."""
    answers = [preferences(*(part[i : i + _BATCH] for part in parts)) for i in range(0, len(parts[0]), _BATCH)]
    return np.concatenate([a for a, _ in answers]), np.concatenate([logits for _, logits in answers])


def record(config: Mapping[str, Any], policy: LearnedPolicy, windows: Sequence[Window], most: int, seed: int
           ) -> tuple[list[Recording], list[dict[str, Any]]]:
    """Plays windows with a policy and keeps what it was asked.

    Args:
        most: decisions of each kind that are kept, drawn at random, as many of each window as can be.

    Returns:
        (one recording a kind of decision, in the order of their slots; the records of `players.play`).
    """
    recorder = _Recorder(policy, windows, max(1, most // max(1, len(windows))), seed)
    records = play(config, recorder, windows)
    return list(recorder.recordings()), records


class _Recorder(BatchPlayer):
    """Draws decisions from each window and kind, each as likely as another (reservoir sampling, Vitter 1985)."""

    def __init__(self, policy: LearnedPolicy, windows: Sequence[Window], most: int, seed: int) -> None:
        assert policy.preferences is not None
        self._preferences: Preferences = policy.preferences
        super().__init__("explained", lambda *parts: self._preferences(*parts)[0], policy.history)
        self._most, self._random = most, np.random.default_rng([seed, 23])
        self._places = {(int(w.seed), int(w.number)): place for place, w in enumerate(windows)}
        self._kept: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        self._seen: dict[tuple[int, int], int] = {}

    def act(self, envs: Sequence[Any], observations: Observations) -> Sequence[Any]:
        """The policy's answers."""
        for env, observation in zip(envs, observations, strict=True):
            self._consider(env, observation)
        return super().act(envs, observations)

    def _consider(self, wrapped: Any, observation: Mapping[str, np.ndarray]) -> None:
        env = wrapped.unwrapped
        window = getattr(env, "window", None) or getattr(env, "key", None)
        place, kind = self._places.get(window, 0), int(np.argmax(observation["decision"]))  # type: ignore[arg-type]
        kept = self._kept.setdefault((place, kind), [])
        seen = self._seen[place, kind] = self._seen.get((place, kind), 0) + 1
        at = len(kept) if len(kept) < self._most else int(self._random.integers(seen))
        if at >= self._most:
            return
        parts = {key: np.copy(observation[key]) for key in OBSERVATION_KEYS}
        parts["candidates"] = parts["candidates"].reshape(candidate_shape(wrapped.observation_space["candidates"]))
        row = (place, partner_answer(env), *parts.values())
        kept[at : at + 1] = [row]

    def recordings(self) -> Iterator[Recording]:
        """What was kept, with the policy's answers to it."""
        for kind in sorted({kind for _, kind in self._kept}):
            rows = [row for place, other in sorted(self._kept) if other == kind for row in self._kept[place, other]]
            window, partner, cluster, candidates, mask, decision = (np.array(column) for column in zip(*rows,
                                                                                                       strict=True))
            answers = in_batches(self._preferences, (cluster, candidates, mask, decision))
            yield Recording(kind, cluster, candidates, mask, decision, window, partner, *answers, self.history)


def partner_answer(env: Any) -> int:
    """The action that says what the partner would do at the open decision; `UNKNOWN` where that is no choice."""
    if not isinstance(env, DecisionEnv):
        return UNKNOWN
    if env.episodes.controls is not None:
        return UNKNOWN
    partner = env.config.partner
    return int(env.rule_action(spelling_of(partner)))


_ILLEGAL = -1e7  # logits below are of illegal actions


class Importance(NamedTuple):
    """What shuffling one feature did.

    Attributes:
        decision: kind of decision.
        part: `cluster` or `candidates`.
        feature: its name.
        changed: share of decisions that come out otherwise, mean over the shuffles.
        changed_sd: its standard deviation over the shuffles.
        moved: mean absolute change of the legal actions' log-probabilities (softmax of the logits).
    """

    decision: str
    part: str
    feature: str
    changed: float
    changed_sd: float
    moved: float


def importances(preferences: Preferences, recording: Recording, repeats: int, seed: int,
                levels: tuple[int, ...] = ()) -> list[Importance]:
    """All features that vary, the one that changes most decisions first."""
    before = log_probabilities(recording.logits, recording.mask, levels)
    listed = []
    for part, feature, shuffled in shuffles(recording, repeats, seed):
        changed, moved = [], []
        for parts in shuffled:
            actions, logits = in_batches(preferences, parts)
            differs = actions != recording.actions
            changed.append(float(np.mean(differs if differs.ndim == 1 else differs.any(axis=1))))
            after = log_probabilities(logits, recording.mask, levels)
            legal = np.isfinite(before)
            moved.append(float(np.abs(after[legal] - before[legal]).mean()))
        listed.append(Importance(recording.name, part, feature, float(np.mean(changed)), float(np.std(changed)),
                                 float(np.mean(moved))))
    return sorted(listed, key=lambda one: (-one.changed, -one.moved, one.part, one.feature))


def shuffles(recording: Recording, repeats: int, seed: int) -> Iterator[tuple[str, str, Iterator[Any]]]:
    """(part, feature, observations once for each shuffle) of all features that vary."""
    legal = recording.mask[:, -recording.candidates.shape[1] :] > 0
    for place, feature in enumerate(names_of("cluster", recording.now.shape[-1])):
        if np.ptp(recording.now[:, place]) > 0:
            yield "cluster", feature, (_cluster_shuffled(recording, place, key) for key in _keys(seed, place, repeats))
    for place, feature in enumerate(names_of("candidates", recording.candidates.shape[-1])):
        column = recording.candidates[:, :, place][legal]
        if column.size and np.ptp(column) > 0:
            yield "candidates", feature, (_candidates_shuffled(recording, legal, place, key)
                                          for key in _keys(seed, 1000 + place, repeats))


def _keys(seed: int, place: int, repeats: int) -> list[list[int]]:
    return [[seed, place, repeat] for repeat in range(repeats)]


def _cluster_shuffled(recording: Recording, place: int, key: list[int]) -> tuple[np.ndarray, ...]:
    """A feature keeps its own past, where the policy sees that."""
    cluster = recording.cluster.copy()
    columns = slice(place, None, recording.now.shape[-1])
    cluster[:, columns] = np.random.default_rng(key).permutation(cluster[:, columns])
    return cluster, recording.candidates, recording.mask, recording.decision


def _candidates_shuffled(recording: Recording, legal: np.ndarray, place: int, key: list[int]
                         ) -> tuple[np.ndarray, ...]:
    candidates = recording.candidates.copy()
    candidates[legal, place] = np.random.default_rng(key).permutation(candidates[legal, place])
    return recording.cluster, candidates, recording.mask, recording.decision


def log_probabilities(logits: np.ndarray, mask: np.ndarray, levels: tuple[int, ...] = ()) -> np.ndarray:
    """Log of the softmax over legal actions, of each part of an action for itself: (N, A), nan where illegal."""
    legal = (mask > 0) & (logits > _ILLEGAL)
    values = np.where(legal, logits.astype(float), -np.inf)
    bounds = np.cumsum([0, *(levels or (values.shape[1],))])
    out = np.full(values.shape, np.nan)
    for low, high in pairwise(bounds.tolist()):
        part = values[:, low:high]
        out[:, low:high] = part - np.logaddexp.reduce(part, axis=1, keepdims=True)
    return np.where(legal, out, np.nan)
