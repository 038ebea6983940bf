"""Fits a small rule to what a network answered (`agents.explaining.rules`): decision trees of scikit-learn, pruned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agents.explaining import rules
from agents.explaining.recording import UNKNOWN, Recording
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION

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
