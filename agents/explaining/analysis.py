"""What a policy was asked and answered on held-out windows, which features move it, and a rule fitted to its answers.

Permutation importance (Breiman 2001; Fisher, Rudin and Dominici 2019): each feature is shuffled among recorded
decisions, and the answers are compared. It is gradient-free, so that it works for any policy that answers observations.
A feature is shuffled among decisions of the same kind, one of candidates among all legal candidates; features that say
nearly the same (tokens, prefill time) are shuffled one at a time and share their importance between them.

The rule (`agents.explaining.rules`) is made of decision trees of scikit-learn, pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from agents.environments import OBSERVATION_KEYS, Window, candidate_shape
from agents.evaluation.players import BatchPlayer, LearnedPolicy, Observations, play
from agents.explaining import rules
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
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
        if not observation["decision"].any():  # a window in which nothing is asked
            return
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
    for place, feature in enumerate(rules.names_of("cluster", recording.now.shape[-1])):
        if np.ptp(recording.now[:, place]) > 0:
            yield "cluster", feature, (_cluster_shuffled(recording, place, key) for key in _keys(seed, place, repeats))
    for place, feature in enumerate(rules.names_of("candidates", recording.candidates.shape[-1])):
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


# --- The rule --------------------------------------------------------------------------------------------------------
_SIMPLER = 0.01  # a smaller tree may agree so much less
FOLDS = 4  # into which windows are dealt to judge how large a tree should be
_LEAST_SHARE = 0.005  # of the decisions in a leaf


def distilled(recording: Recording, most_leaves: int, seed: int,
              parameters: Mapping[str, Sequence[float]] | None = None) -> dict[str, Any]:
    """The rule that answers most like the network on recorded decisions of one kind.

    A tree has the fewest leaves with which it agrees as well as with more, up to `most_leaves`, on windows that it was
    not fitted to: otherwise it would tell windows apart by their time of day and learn them by heart.

    Args:
        parameters: of an action of several parts, what they are called, and the value of each level.
    """
    if parameters:
        names, table = rules.names_of("cluster", recording.now.shape[-1]), recording.now
        return {"parameters": [
            {"name": name, "values": [float(value) for value in parameters[name]], "level": _classified(
                table, recording.actions[:, part], recording.window, names, most_leaves, seed,
                lambda value: {"level": int(value)}, "level")}
            for part, name in enumerate(parameters)]}
    said = labels(recording)
    names = rules.whether_names(recording.now.shape[-1], recording.candidates.shape[-1])
    table = rules.whether_table(recording.now, recording.candidates, recording.mask)
    rule: dict[str, Any] = {"whether": _classified(table, said, recording.window, names, most_leaves, seed,
                                                   lambda value: {"answer": str(value)}, "answer")}
    if rules.ANOTHER in _said(rule["whether"]):
        rule |= _which(recording, said == rules.ANOTHER, most_leaves, seed)
    _annotate(rule["whether"], names, table, said)
    return rule


def labels(recording: Recording) -> np.ndarray:
    """What the network said: `no`, `partner` (its action, or the candidate that it would choose), or `another`."""
    actions, ours = recording.actions, canonical(recording.actions, recording)
    return np.select([ours == PARTNER_ACTION, actions == DECLINE_ACTION], [rules.PARTNER, rules.NO], rules.ANOTHER)


def canonical(actions: np.ndarray, recording: Recording) -> np.ndarray:
    """Actions with all that does what the partner would do as the partner's: so they compare by what they do."""
    if actions.ndim > 1:
        return actions
    known = recording.partner != UNKNOWN
    return np.where(known & (actions == recording.partner), PARTNER_ACTION, actions)


def agreement(rule: Mapping[str, Any], recording: Recording) -> np.ndarray:
    """Whether a rule does what the network did, for each decision: bool (N,)."""
    said = rules.answer(rule, recording.now, recording.candidates, recording.mask)
    same = canonical(said, recording) == canonical(recording.actions, recording)
    return same if same.ndim == 1 else same.all(axis=1)


def _which(recording: Recording, rows: np.ndarray, most_leaves: int, seed: int) -> dict[str, Any]:
    """How the candidate is chosen where it is not the partner's: a score and what breaks ties."""
    candidates, legal = recording.candidates[rows], recording.mask[rows, -recording.candidates.shape[1] :] > 0
    chosen, window = recording.actions[rows] - FIXED, recording.window[rows]
    names = rules.names_of("candidates", candidates.shape[-1])

    def fit(mine: np.ndarray, count: int) -> dict[str, Any]:
        decision, place = np.nonzero(legal[mine])
        tree = {"score": 1.0} if count < 2 else _scored(
            candidates[mine][decision, place], place == chosen[mine][decision],
            1.0 / legal[mine].sum(axis=1)[decision], names, count, seed)
        return _tied(tree, candidates[mine], legal[mine], chosen[mine], names)

    def agree(rule: Mapping[str, Any], mine: np.ndarray) -> np.ndarray:
        return rules.best_candidate(rule, candidates[mine], legal[mine]) == chosen[mine]

    return fit(np.ones(len(window), bool), fewest(fit, agree, window, most_leaves))


def fewest(fit: Callable[[np.ndarray, int], Any], agree: Callable[[Any, np.ndarray], np.ndarray], window: np.ndarray,
           most: int) -> int:
    """The fewest leaves (1, 2, 3, 4, 6, 8, 12, …) that agree nearly as well as any number on windows left out.

    Args:
        fit: (which decisions, leaves) → a rule.
        agree: (rule, which decisions) → whether it agrees in each.
        window: (N,), to which window each decision belongs.
    """
    counts = [1, *(count for count in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count < most), most]
    folds = np.unique(window, return_inverse=True)[1] % FOLDS
    if folds.max() == 0:
        return most  # one window: nothing to judge by
    found = []
    for count in counts:
        parts = [agree(fit(folds != fold, count), folds == fold) for fold in np.unique(folds)]
        found.append(float(np.concatenate(parts).mean()))
    return next(count for count, share in zip(counts, found, strict=True) if share >= max(found) - _SIMPLER)


def _tied(tree: Mapping[str, Any], candidates: np.ndarray, legal: np.ndarray, chosen: np.ndarray, names: Sequence[str]
          ) -> dict[str, Any]:
    """The rule with the tie-breaker that agrees best."""
    best, most_agree = {"which": tree, "tie": {"feature": names[0], "most": True}}, -1.0
    for place, name in enumerate(names):
        if np.ptp(candidates[:, :, place][legal]) > 0:
            for most in (False, True):
                rule = {"which": tree, "tie": {"feature": name, "most": most}}
                share = float(np.mean(rules.best_candidate(rule, candidates, legal) == chosen))
                if share > most_agree:
                    best, most_agree = rule, share
    return best


def _classified(table: np.ndarray, said: np.ndarray, window: np.ndarray, names: Sequence[str], most_leaves: int,
                seed: int, leaf: Any, key: str) -> dict[str, Any]:
    """A classification tree as plain data, of the size that windows left out ask for, pruned."""
    from sklearn.tree import DecisionTreeClassifier

    def fit(mine: np.ndarray, count: int) -> dict[str, Any]:
        if count < 2:
            kinds, counts = np.unique(said[mine], return_counts=True)
            return leaf(kinds[int(np.argmax(counts))])
        model = DecisionTreeClassifier(max_leaf_nodes=count, random_state=seed,
                                       min_samples_leaf=max(1, round(_LEAST_SHARE * len(table))))
        model.fit(table[mine], said[mine])
        tree: Any = model.tree_
        return _plain(tree, 0, names, lambda at: leaf(model.classes_[int(np.argmax(tree.value[at][0]))]))

    def agree(tree: Mapping[str, Any], mine: np.ndarray) -> np.ndarray:
        return rules.walk(tree, names, table[mine], key) == said[mine]

    return merged(fit(np.ones(len(said), bool), fewest(fit, agree, window, most_leaves)), key)


def _scored(table: np.ndarray, chosen: np.ndarray, weights: np.ndarray, names: Sequence[str], most_leaves: int,
            seed: int) -> dict[str, Any]:
    """A regression tree of being chosen as plain data."""
    from sklearn.tree import DecisionTreeRegressor

    model = DecisionTreeRegressor(max_leaf_nodes=max(2, most_leaves), random_state=seed,
                                  min_samples_leaf=max(1, round(_LEAST_SHARE * len(table))))
    model.fit(table, chosen.astype(float), sample_weight=weights)
    return _plain(model.tree_, 0, names, lambda at: {"score": float(np.ravel(model.tree_.value[at])[0])})


def _plain(tree: Any, at: int, names: Sequence[str], leaf: Any) -> dict[str, Any]:
    if tree.children_left[at] < 0:
        return leaf(at)
    return {"feature": names[tree.feature[at]], "at": float(tree.threshold[at]),
            "below": _plain(tree, int(tree.children_left[at]), names, leaf),
            "above": _plain(tree, int(tree.children_right[at]), names, leaf)}


def merged(node: dict[str, Any], key: str) -> dict[str, Any]:
    """The tree without splits whose two sides say the same."""
    if "feature" not in node:
        return node
    sides = {side: merged(node[side], key) for side in ("below", "above")}
    if all("feature" not in side for side in sides.values()) and sides["below"][key] == sides["above"][key]:
        return sides["below"]
    return {**node, **sides}


def _annotate(node: dict[str, Any], names: Sequence[str], table: np.ndarray, said: np.ndarray,
              total: int | None = None) -> None:
    """Notes in each leaf the share of decisions that come there, and how many of them the network answers so."""
    total = total or max(1, len(table))
    if "feature" not in node:
        node["share"] = len(said) / total
        node["agree"] = float(np.mean(said == node["answer"])) if len(said) else 0.0
        return
    below = table[:, names.index(node["feature"])] <= node["at"]
    for side, rows in (("below", below), ("above", ~below)):
        _annotate(node[side], names, table[rows], said[rows], total)


def _said(node: Mapping[str, Any]) -> set[str]:
    if "feature" not in node:
        return {node["answer"]} & set(rules.ANSWERS)
    return _said(node["below"]) | _said(node["above"])
