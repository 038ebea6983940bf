"""A small rule that decides in a network's place: decision trees as plain data, played without a learning library.

For each kind of decision, a tree says *whether*: `no`, as the `partner`, or `another` candidate than the partner's,
which is then the one with the most or the least of one feature. Where several parameters are set at once, a tree for
each says its level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.features import CANDIDATE_SIZE, CANDIDATES, CLUSTER, kind_name

NO, PARTNER, ANOTHER = "no", "partner", "another"


def names_of(part: str, size: int) -> list[str]:
    """Names of the features of an observation's part; of an environment that is not ours, their places."""
    table = CLUSTER if part == "cluster" else CANDIDATES
    return [feature.name for feature in table] if len(table) == size else [f"{part}_{place}" for place in range(size)]


def whether_names(cluster: int, candidates: int) -> list[str]:
    """Names of what the tree sees, for so many features of the cluster and of a candidate."""
    return [*names_of("cluster", cluster), "candidates offered", *(
        f"{which} {name}" for which in ("partner's", "least", "most") for name in names_of("candidates", candidates))]


def whether_table(cluster: np.ndarray, candidates: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """What the tree sees: the cluster, how many candidates are legal, and of each of their features the partner's, the
    least and the most (0 where there is none): (N, Fc + 1 + 3 F)."""
    there, inside = legal.any(axis=1, keepdims=True), legal[:, :, None]
    least = np.where(there, np.where(inside, candidates, np.inf).min(axis=1), 0.0)
    most = np.where(there, np.where(inside, candidates, -np.inf).max(axis=1), 0.0)
    names, mine = names_of("candidates", candidates.shape[-1]), np.zeros_like(least)
    if "partner" in names:
        flagged = (candidates[:, :, names.index("partner")] > 0.5) & legal
        chosen = candidates[np.arange(len(candidates)), flagged.argmax(axis=1)]
        mine = np.where(flagged.any(axis=1, keepdims=True), chosen, 0.0)
    return np.concatenate([cluster, legal.sum(axis=1)[:, None], mine, least, most], axis=1)


def said(tree: Mapping[str, Any], table: np.ndarray) -> np.ndarray:
    """What a tree (its nodes as lists, as scikit-learn has them) says of each row of a table (N, features)."""
    feature, limit, below, above, says = (np.asarray(tree[key]) for key in ("feature", "at", "below", "above", "says"))
    table, node = table.astype(np.float32), np.zeros(len(table), np.int64)  # scikit-learn compares such numbers
    while (rows := np.flatnonzero(below[node] >= 0)).size:
        here = node[rows]
        node[rows] = np.where(table[rows, feature[here]] <= limit[here], below[here], above[here])
    return says[node]


def best_candidate(rule: Mapping[str, Any], candidates: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Place of the legal candidate with the most or least of the rule's feature, the first of equals: (N,)."""
    if rule.get("which") is None:
        return np.zeros(len(candidates), np.int64)
    place = names_of("candidates", candidates.shape[-1]).index(rule["which"])
    key = candidates[:, :, place] if rule["most"] else -candidates[:, :, place]
    return np.argmax(np.where(legal, key, -np.inf), axis=1)


def answer(rule: Mapping[str, Any], cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Actions of one kind's rule, always legal ones: (N,), or (N, P) for several parameters."""
    if "parameters" in rule:
        return np.stack([said(part["tree"], cluster) for part in rule["parameters"]], axis=1)
    legal = mask[:, -candidates.shape[1] :] > 0
    whether = said(rule["whether"], whether_table(cluster, candidates, legal))
    wanted = np.select([whether == NO, whether == PARTNER], [DECLINE_ACTION, PARTNER_ACTION],
                       FIXED + best_candidate(rule, candidates, legal))
    order = [PARTNER_ACTION, DECLINE_ACTION, *range(FIXED, mask.shape[1])]  # what is done where that is not legal
    fallback = np.array(order)[np.argmax(mask[:, order] > 0, axis=1)]
    return np.where(mask[np.arange(len(mask)), wanted] > 0, wanted, fallback)


def decide(rules: Mapping[str, Mapping[str, Any]], cluster: np.ndarray, candidates: np.ndarray,
           action_mask: np.ndarray, decision: np.ndarray) -> np.ndarray:
    """Actions (batch,), or (batch, P), of the rules of each kind of decision, for cluster (batch, Fc), candidates
    (batch, K, F), or (batch, K·F) of an environment of ours, action_mask (batch, A) and decision (batch, D). Where none
    is open (an episode is over, others go on) the first rule answers."""
    candidates = candidates.reshape(len(candidates), -1, CANDIDATE_SIZE) if candidates.ndim == 2 else candidates
    kinds = np.array([kind_name(int(slot)) for slot in decision.argmax(axis=1)])
    kinds[~decision.any(axis=1)] = next(iter(rules))
    answers = {kind: answer(rules[kind], *(part[kinds == kind] for part in (cluster, candidates, action_mask)))
               for kind in np.unique(kinds)}
    out = np.zeros((len(kinds), *next(iter(answers.values())).shape[1:]), np.int64)
    for kind, actions in answers.items():
        out[kinds == kind] = actions
    return out
