"""Which features move a policy's decisions: each is shuffled among recorded decisions, and the answers compared.

Permutation importance (Breiman 2001; Fisher, Rudin and Dominici 2019): gradient-free, so that it works for whatever
answers observations. A feature is shuffled among decisions of the same kind, one of candidates among all legal
candidates; features that say nearly the same (tokens, prefill time) are shuffled one at a time and share their
importance between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agents.explain_record import Recording, thought
from ooco_gym.envs.features import CANDIDATES, CLUSTER

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


def importances(think: Callable[..., tuple[np.ndarray, np.ndarray]], recording: Recording, repeats: int, seed: int,
                levels: tuple[int, ...] = ()) -> list[Importance]:
    """All features that vary, the one that changes most decisions first.

    Args:
        think: the policy (`agents.explain_record.Thinker`).
        recording: decisions of one kind.
        repeats: shuffles of each feature.
        seed: keys them.
        levels: of an action of several parts.
    """
    before = log_probabilities(recording.logits, recording.mask, levels)
    listed = []
    for part, feature, shuffled in shuffles(recording, repeats, seed):
        changed, moved = [], []
        for parts in shuffled:
            actions, logits = thought(think, parts)
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


def names_of(part: str, size: int) -> list[str]:
    """Names of the features of an observation's part; of an environment that is not ours, their places."""
    table = CLUSTER if part == "cluster" else CANDIDATES
    return [feature.name for feature in table] if len(table) == size else [f"{part}_{place}" for place in range(size)]
