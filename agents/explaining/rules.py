"""A small rule that decides in a network's place: trees as plain data, what they say in words, and how they are played.

For each kind of decision, one tree says *whether*: `no`, as the `partner`, or `another` candidate than the partner's.
Where it says another, a second tree scores the candidates, and the best is taken; ties go to the one with the most or
least of one feature. Where several parameters are set at once, one tree a parameter says its level. A rule lives in a
folder's `tree.json` and needs no learning library to be played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.documents import SEAL, read_mapping
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import in_unit, is_flag, kinds
from ooco_gym.envs.features import CANDIDATES, CLUSTER, Feature, kind_name
from ooco_gym.errors import UserError

SCHEMA, TREE_FILE = "ooco-gym/tree/1", "tree.json"
NO, PARTNER, ANOTHER = "no", "partner", "another"
ANSWERS = (NO, PARTNER, ANOTHER)
OFFERED, OF_PARTNER, LEAST, MOST = "candidates offered", "partner's ", "least ", "most "
_FEATURES = {feature.name: feature for feature in (*CLUSTER, *CANDIDATES)}
BESIDE = "   # "  # what follows on a line is about the rule, not of it
Node = Mapping[str, Any]


# --- What trees see -------------------------------------------------------------------------------------------------
def whether_names(cluster: int, candidates: int) -> list[str]:
    """Names of what the first tree sees, for so many features of the cluster and of a candidate."""
    of_candidate = names_of("candidates", candidates)
    return [*names_of("cluster", cluster), OFFERED,
            *(f"{prefix}{name}" for prefix in (OF_PARTNER, LEAST, MOST) for name in of_candidate)]


def whether_table(cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What the first tree sees: the cluster, how many candidates there are, and of each of their features the
    partner's, the least and the most (0 where there is none): float (N, Fc + 1 + 3 F)."""
    legal = np.asarray(mask[:, -candidates.shape[1] :] > 0)
    there = legal.any(axis=1, keepdims=True)
    inside = legal[:, :, None]
    least = np.where(there, np.where(inside, candidates, np.inf).min(axis=1), 0.0)
    most = np.where(there, np.where(inside, candidates, -np.inf).max(axis=1), 0.0)
    chosen = _of_partner(candidates, legal)
    mine = np.where(np.expand_dims(chosen >= 0, 1), candidates[np.arange(len(candidates)), np.maximum(chosen, 0)], 0.0)
    return np.concatenate([cluster, legal.sum(axis=1)[:, None], mine, least, most], axis=1)


def _of_partner(candidates: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Place of the candidate that the partner would choose, -1 where it is none of those offered: (N,)."""
    names = names_of("candidates", candidates.shape[-1])
    if "partner" not in names:
        return np.full(len(candidates), -1)
    flagged = (candidates[:, :, names.index("partner")] > 0.5) & legal
    return np.where(flagged.any(axis=1), flagged.argmax(axis=1), -1)


# --- Playing --------------------------------------------------------------------------------------------------------
def walk(node: Node, names: Sequence[str], table: np.ndarray, key: str) -> np.ndarray:
    """What a tree's leaves say under `key` for each row of a table (n, features)."""
    if "feature" not in node:
        return np.full(len(table), node[key])
    below = table[:, names.index(node["feature"])] <= node["at"]
    parts = [walk(node[side], names, table[rows], key) for side, rows in (("below", below), ("above", ~below))]
    out = np.empty(len(table), np.result_type(*parts))
    out[below], out[~below] = parts
    return out


def answer(rule: Mapping[str, Any], cluster: np.ndarray, candidates: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Actions of one kind's rule, always legal ones: (N,), or (N, P) for several parameters."""
    if "parameters" in rule:
        names = names_of("cluster", cluster.shape[-1])
        return np.stack([walk(part["level"], names, cluster, "level") for part in rule["parameters"]], axis=1)
    names = whether_names(cluster.shape[-1], candidates.shape[-1])
    said = walk(rule["whether"], names, whether_table(cluster, candidates, mask), "answer")
    wanted = np.select([said == NO, said == PARTNER], [DECLINE_ACTION, PARTNER_ACTION],
                       FIXED + best_candidate(rule, candidates, mask[:, -candidates.shape[1] :] > 0))
    fallback = np.argmax(mask[:, [PARTNER_ACTION, DECLINE_ACTION, *range(FIXED, mask.shape[1])]] > 0, axis=1)
    fallback = np.where(fallback < FIXED, 1 - fallback, fallback)
    return np.where(mask[np.arange(len(mask)), wanted] > 0, wanted, fallback)


def best_candidate(rule: Mapping[str, Any], candidates: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Place of the candidate with the best score, ties to the tie-breaker, then to the first: (N,)."""
    if not rule.get("which"):
        return np.zeros(len(candidates), np.int64)
    names = names_of("candidates", candidates.shape[-1])
    flat = candidates.reshape(-1, candidates.shape[-1])
    scores = np.where(legal, walk(rule["which"], names, flat, "score").reshape(legal.shape), -np.inf)
    tie = candidates[:, :, names.index(rule["tie"]["feature"])] * (1.0 if rule["tie"]["most"] else -1.0)
    return np.argmax(np.where(scores >= scores.max(axis=1, keepdims=True), tie, -np.inf), axis=1)


class Tree:
    """A rule that is played as a learned policy is.

    Attributes:
        document: what `tree.json` holds.
        decisions: kinds that it decides.
        shapes: of the observation that it expects.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.decisions = tuple(document["rules"])
        self.shapes = {key: tuple(shape) for key, shape in document["shapes"].items()}

    def decide_batch(self, cluster: np.ndarray, candidates: np.ndarray, action_mask: np.ndarray,
                     decision: np.ndarray) -> np.ndarray:
        """Actions (batch,), or (batch, P), for cluster (batch, Fc), candidates (batch, K, F) or (batch, K·F),
        action_mask (batch, A) and decision (batch, D).

        Where no decision is open (an episode that is over while others go on) the first rule answers: a legal action,
        which changes nothing.
        """
        if candidates.ndim == 2:
            candidates = candidates.reshape(-1, *self.shapes["candidates"])
        kinds = [kind_name(slot) if asked else self.decisions[0]
                 for slot, asked in zip(np.argmax(decision, axis=1).tolist(), np.max(decision, axis=1).tolist(),
                                        strict=True)]
        out: np.ndarray | None = None
        for kind in dict.fromkeys(kinds):
            rows = np.array([one == kind for one in kinds])
            said = answer(self.document["rules"][kind], cluster[rows], candidates[rows], action_mask[rows])
            if out is None:
                out = np.zeros((len(kinds), *said.shape[1:]), np.int64)
            out[rows] = said
        assert out is not None
        return out

    def lines(self) -> list[str]:
        """The whole rule in words."""
        return [line for name, rule in self.document["rules"].items() for line in (*words(name, rule), "")][:-1]


def load_tree(folder: str | Path) -> Tree:
    """Reads `tree.json` of a folder that `ooco-gym explain` wrote.

    Raises:
        UserError: it is missing, no JSON, or of another schema.
    """
    path = Path(folder) / TREE_FILE
    if not path.is_file():
        raise UserError(f"'{path}' does not exist; expected the 'out' of 'ooco-gym explain'")
    document = read_mapping(path, advice=f"; run explain again, or remove its {SEAL} where the change is yours")
    if document.get("schema") != SCHEMA:
        raise UserError(f"'{path}' is not a tree of this ooco-gym: expected schema '{SCHEMA}'; run explain again")
    try:
        return Tree(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"'{path}' is not a tree of this ooco-gym ({type(error).__name__}: {error}); run explain again"
                        ) from error


# --- In words -------------------------------------------------------------------------------------------------------
def words(decision: str, rule: Mapping[str, Any]) -> list[str]:
    """One kind's rule as lines of text, features in their units."""
    text = kinds().get(decision)
    head = [f"{decision}: {text.question}" if text is not None else decision]
    if "parameters" in rule:
        for part in rule["parameters"]:
            said = partial(_setting, part)
            head += ([f"  {said(part['level'])} always"] if "feature" not in part["level"]
                     else [f"  {part['name']}:", *_tree_lines(part["level"], 2, said)])
        return head
    meaning = {NO: f"no: {text.no}" if text is not None else NO, PARTNER: "do as the partner would",
               ANOTHER: "take the candidate with the best score (below)"}
    lines = head + _tree_lines(rule["whether"], 1, lambda leaf: f"{meaning[leaf['answer']]}{_share(leaf)}")
    if rule.get("which"):
        tie = rule["tie"]
        by = f"the {'most' if tie['most'] else 'least'} {tie['feature']}"
        if "feature" not in rule["which"]:
            return [*lines, f"  which candidate: that with {by}"]
        lines += [f"  score of a candidate (ties: {by}):",
                  *_tree_lines(rule["which"], 2, lambda leaf: f"{leaf['score']:.2f}")]
    return lines


def _setting(part: Mapping[str, Any], leaf: Node) -> str:
    return f"{part['name']} = {part['values'][leaf['level']]:g}"


def _share(leaf: Node) -> str:
    return f"{BESIDE}{leaf['share']:.0%} of decisions, {leaf['agree']:.0%} as the network" if "share" in leaf else ""


def _tree_lines(node: Node, depth: int, leaf: Any) -> list[str]:
    """A tree, one line a side of a split, with what follows from it where that is no further split."""
    indent = "  " * depth
    if "feature" not in node:
        return [f"{indent}{leaf(node)}"]
    lines = []
    for head, side in ((f"if {condition(node)}", node["below"]), ("else", node["above"])):
        lines += ([f"{indent}{head}: {leaf(side)}"] if "feature" not in side
                  else [f"{indent}{head}:", *_tree_lines(side, depth + 1, leaf)])
    return lines


def condition(node: Node) -> str:
    """The side of a split that is below, in words: `tokens ≤ 812 tokens`, `busy ≤ 3 ms`, `push_waiting is no`."""
    name, at = node["feature"], float(node["at"])
    if name == OFFERED:
        return f"{name} ≤ {int(at)}"
    feature = feature_of(name)
    if feature is None:
        return f"{name} ≤ {at:.4g}"
    if is_flag(feature):
        return f"{name} is no"
    figure, unit = in_unit(feature, at)
    return f"{name} ≤ {_digits(figure)} {unit}".rstrip()


def _digits(figure: float) -> str:
    """Three digits that count, without an exponent where there is room: 0.0123, 1.84, 14,600."""
    size = abs(figure)
    return f"{float(f'{figure:.3g}'):,.0f}" if size >= 100 else f"{figure:.3g}"


def feature_of(name: str) -> Feature | None:
    """The feature that a tree's column is made of; None where it is one of another environment, or a count."""
    for prefix in (OF_PARTNER, LEAST, MOST):
        name = name.removeprefix(prefix)
    return _FEATURES.get(name)


def names_of(part: str, size: int) -> list[str]:
    """Names of the features of an observation's part; of an environment that is not ours, their places."""
    table = CLUSTER if part == "cluster" else CANDIDATES
    return [feature.name for feature in table] if len(table) == size else [f"{part}_{place}" for place in range(size)]

