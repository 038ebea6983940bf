"""What a policy was asked and answered, which features move it, and a rule fitted to its answers, by scikit-learn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, Window, candidate_shape
from agents.evaluation.players import BatchPlayer, LearnedPolicy, Observations, play
from agents.explaining import rules
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import in_unit, is_flag, kinds
from ooco_gym.envs.features import CANDIDATES, CLUSTER, kind_name
from ooco_gym.policy import spelling_of

UNKNOWN = -1  # the partner's answer where there is none
FOLDS, SIMPLER = 4, 0.01  # of windows; a smaller tree may agree so much less on those left out
_BATCH = 2048  # observations that a policy answers at a time
_FEATURES = {feature.name: feature for feature in (*CLUSTER, *CANDIDATES)}


@dataclass(frozen=True)
class Recording:
    """N decisions of one kind, over several windows.

    Attributes:
        kind: slot of the observation's `decision`.
        cluster, candidates, mask, decision: as observed: (N, H Fc), (N, K, F), (N, A), (N, D).
        window: (N,), which of the windows.
        partner: (N,), the action that says what the partner would do; `UNKNOWN` where it cannot be said.
        actions: what the policy answered: (N,) or (N, P).
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
    history: int = 1

    @property
    def now(self) -> np.ndarray:
        """The cluster at the decision, without what was before: (N, Fc)."""
        return self.cluster[:, : self.cluster.shape[1] // self.history]

    @property
    def legal(self) -> np.ndarray:
        """Which candidates are legal: bool (N, K)."""
        return self.mask[:, -self.candidates.shape[1] :] > 0

    @property
    def name(self) -> str:
        """Of the kind of decision."""
        return kind_name(self.kind)

    def __len__(self) -> int:
        return len(self.cluster)


class Recorder(BatchPlayer):
    """Plays as a policy does and keeps decisions of each window and kind, each as likely as another (Vitter 1985)."""

    def __init__(self, policy: LearnedPolicy, windows: Sequence[Window], most: int, seed: int) -> None:
        super().__init__("explained", policy.decide, policy.history)
        self._most, self._random = max(1, most // len(windows)), np.random.default_rng([seed, 23])
        self._places = {(int(w.seed), int(w.number)): place for place, w in enumerate(windows)}
        self._kept: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        self._seen: dict[tuple[int, int], int] = {}

    def act(self, envs: Sequence[Any], observations: Observations) -> Sequence[Any]:
        """The policy's answers."""
        actions = super().act(envs, observations)
        for env, observation, action in zip(envs, observations, actions, strict=True):
            if observation["decision"].any():  # else a window in which nothing is asked
                self._consider(env, observation, action)
        return actions

    def _consider(self, wrapped: Any, observation: Mapping[str, np.ndarray], action: Any) -> None:
        env = wrapped.unwrapped
        window: Any = getattr(env, "window", None) or getattr(env, "key", None)
        place, kind = self._places.get(window, 0), int(np.argmax(observation["decision"]))
        kept = self._kept.setdefault((place, kind), [])
        seen = self._seen[place, kind] = self._seen.get((place, kind), 0) + 1
        at = len(kept) if len(kept) < self._most else int(self._random.integers(seen))
        if at < self._most:
            parts = {key: np.copy(observation[key]) for key in OBSERVATION_KEYS}
            parts["candidates"] = parts["candidates"].reshape(candidate_shape(wrapped.observation_space["candidates"]))
            kept[at : at + 1] = [(*parts.values(), place, partner_answer(env), np.copy(action))]

    def recordings(self) -> Iterator[Recording]:
        """What was kept, a recording a kind of decision, in the order of their slots."""
        for kind in sorted({kind for _, kind in self._kept}):
            rows = [row for place, other in sorted(self._kept) if other == kind for row in self._kept[place, other]]
            yield Recording(kind, *map(np.array, zip(*rows, strict=True)), history=self.history)


def record(config: Mapping[str, Any], policy: LearnedPolicy, windows: Sequence[Window], most: int, seed: int
           ) -> tuple[list[Recording], list[dict[str, Any]]]:
    """Plays windows with a policy; at most about `most` decisions of each kind that it was asked, and the records."""
    recorder = Recorder(policy, windows, most, seed)
    records = play(config, recorder, windows)
    return list(recorder.recordings()), records


def partner_answer(env: Any) -> int:
    """The action that says what the partner would do at the open decision; `UNKNOWN` where that is no choice."""
    if not isinstance(env, DecisionEnv) or env.episodes.controls is not None:
        return UNKNOWN
    return int(env.rule_action(spelling_of(env.config.partner)))


def canonical(actions: np.ndarray, recording: Recording) -> np.ndarray:
    """Actions with all that does what the partner would do as the partner's: so they compare by what they do."""
    if actions.ndim > 1:
        return actions
    return np.where((recording.partner != UNKNOWN) & (actions == recording.partner), PARTNER_ACTION, actions)


def labels(recording: Recording) -> np.ndarray:
    """What the network said: `no`, `partner` (its action, or the candidate that it would choose), or `another`."""
    ours = canonical(recording.actions, recording)
    return np.select([ours == PARTNER_ACTION, ours == DECLINE_ACTION], [rules.PARTNER, rules.NO], rules.ANOTHER)


def agreement(rule: Mapping[str, Any], recording: Recording) -> np.ndarray:
    """Whether a rule does what the network did, for each decision: bool (N,)."""
    found = rules.answer(rule, recording.now, recording.candidates, recording.mask)
    same = canonical(found, recording) == canonical(recording.actions, recording)
    return same if same.ndim == 1 else same.all(axis=1)


# --- Importance -------------------------------------------------------------------------------------------------------
class _Asked:
    """A policy as an estimator of scikit-learn. A row of its table is a decision, and says for each feature from which
    of the decisions it is taken: shuffling a column shuffles a feature with its past, or that of all candidates."""

    def __init__(self, policy: LearnedPolicy, recording: Recording) -> None:
        self.decide, self.recording = policy.decide, recording
        count, places, _ = recording.candidates.shape
        self.cluster = recording.cluster.reshape(count, recording.history, -1)
        legal = recording.legal  # where another decision has fewer candidates, its own come again
        order = np.argsort(~legal, axis=1, kind="stable")
        again = order[np.arange(count)[:, None], np.arange(places) % np.maximum(legal.sum(axis=1), 1)[:, None]]
        self.candidates = recording.candidates[np.arange(count)[:, None], again]
        self.candidates[legal] = recording.candidates[legal]

    def fit(self, *_: Any) -> _Asked:
        """Nothing is fitted."""
        return self

    def same(self, table: np.ndarray) -> float:
        """The share of decisions that come out as they did."""
        features, recording = self.cluster.shape[2], self.recording
        cluster = np.take_along_axis(self.cluster, table[:, None, :features], axis=0).reshape(len(table), -1)
        candidates = np.take_along_axis(self.candidates, table[:, None, features:], axis=0)
        parts = (cluster, candidates, recording.mask, recording.decision)
        actions = np.concatenate([self.decide(*(part[at : at + _BATCH] for part in parts))
                                  for at in range(0, len(table), _BATCH)])
        return float((actions == recording.actions).reshape(len(table), -1).all(axis=1).mean())


def importances(policy: LearnedPolicy, recording: Recording, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Permutation importance (Breiman 2001): the share of decisions that come out otherwise where a feature is shuffled
    among decisions of the same kind, with its deviation over the shuffles; the largest first."""
    from sklearn.inspection import permutation_importance

    names = [(part, name) for part, size in (("cluster", recording.now.shape[-1]),
                                             ("candidates", recording.candidates.shape[-1]))
             for name in rules.names_of(part, size)]
    table = np.tile(np.arange(len(recording))[:, None], (1, len(names)))
    found: Any = permutation_importance(_Asked(policy, recording), table, None, n_repeats=repeats, random_state=seed,
                                        scoring=lambda asked, rows, _: asked.same(rows))
    listed = [{"decision": recording.name, "part": part, "feature": name, "changed": float(mean),
               "changed_sd": float(deviation)} for (part, name), mean, deviation in
              zip(names, found.importances_mean, found.importances_std, strict=True)]
    return sorted(listed, key=lambda one: -one["changed"])


# --- The rule --------------------------------------------------------------------------------------------------------
def distilled(recording: Recording, leaves: int, seed: int, parameters: Mapping[str, Sequence[float]] | None = None
              ) -> tuple[dict[str, Any], list[str]]:
    """The rule that answers most like the network on recorded decisions of one kind, and its lines of text.

    Args:
        leaves: of a tree, at most.
        parameters: of an action of several parts, what they are called, and the value of each level.
    """
    words = kinds().get(recording.name)
    lines = [f"{recording.name}: {words.question}" if words is not None else recording.name]
    if parameters:
        names, parts = rules.names_of("cluster", recording.now.shape[-1]), []
        for place, (name, values) in enumerate(parameters.items()):
            model = fitted(recording.now, recording.actions[:, place], recording.window, leaves, seed)
            parts.append({"name": name, "tree": plain(model)})
            lines += [f"{name}:", *text(model, names, {str(level): f"{value:g}" for level, value in enumerate(values)})]
        return {"parameters": parts}, lines
    answers, names = labels(recording), rules.whether_names(recording.now.shape[-1], recording.candidates.shape[-1])
    table = rules.whether_table(recording.now, recording.candidates, recording.legal)
    model = fitted(table, answers, recording.window, leaves, seed)
    rule = {"whether": plain(model), "which": None, "most": False}
    lines += text(model, names, {rules.NO: f"no: {words.no}" if words is not None else rules.NO,
                                 rules.PARTNER: "as the partner would", rules.ANOTHER: "another candidate"})
    if rules.ANOTHER in rule["whether"]["says"]:
        rule |= _which(recording, answers == rules.ANOTHER)
        lines.append(f"another candidate: that with the {'most' if rule['most'] else 'least'} {rule['which']}")
    return rule, lines


def fitted(table: np.ndarray, said: np.ndarray, window: np.ndarray, leaves: int, seed: int) -> Any:
    """A tree of the fewest leaves that agrees nearly as well as any on windows that it was not fitted to: otherwise it
    would tell windows apart by their time of day and learn them by heart."""
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(min_samples_leaf=max(1, round(0.005 * len(table))), random_state=seed)
    folds = min(FOLDS, len(np.unique(window)))
    if folds < 2:  # one window: nothing to judge by
        return model.set_params(max_leaf_nodes=leaves).fit(table, said)
    sizes = [*(count for count in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count < leaves), leaves]
    grid = [{"ccp_alpha": [1.0]}, {"max_leaf_nodes": sizes}]  # the first: no split at all

    def simplest(results: Mapping[str, Any]) -> int:
        shares = results["mean_test_score"]
        return int(np.argmax(shares >= shares.max() - SIMPLER))

    search: Any = GridSearchCV
    return search(model, grid, cv=GroupKFold(folds), refit=simplest).fit(table, said, groups=window).best_estimator_


def plain(model: Any) -> dict[str, list[Any]]:
    """A fitted tree as plain data."""
    tree = model.tree_
    return {"feature": tree.feature.tolist(), "at": tree.threshold.tolist(), "below": tree.children_left.tolist(),
            "above": tree.children_right.tolist(), "says": model.classes_[tree.value[:, 0].argmax(axis=1)].tolist()}


def text(model: Any, names: Sequence[str], meanings: Mapping[str, str]) -> list[str]:
    """A tree as scikit-learn writes it, with what answers mean and features in their units."""
    from sklearn.tree import export_text

    if len(model.classes_) == 1:  # which export_text leaves out
        return [f"|--- {meanings[str(model.classes_[0])]}"]
    lines = export_text(model, feature_names=list(names), decimals=6).splitlines()
    lines = [re.sub(r"class: (.*)$", lambda found: meanings.get(found[1], found[1]), line) for line in lines]
    return [re.sub(r"--- (.+?) +(<=|>) +(-?[\d.]+)$", _condition, line) for line in lines]


def _condition(found: re.Match[str]) -> str:
    name, side, at = found[1], "≤" if found[2] == "<=" else ">", float(found[3])
    feature = _FEATURES.get(re.sub("^(partner's|least|most) ", "", name))
    if feature is None:
        return f"--- {name} {side} {at:.4g}"
    if is_flag(feature):
        return f"--- {name} is {'no' if side == '≤' else 'yes'}"
    figure, unit = in_unit(feature, at)
    return f"--- {name} {side} {float(f'{figure:.3g}'):,g} {unit}".rstrip()


def _which(recording: Recording, rows: np.ndarray) -> dict[str, Any]:
    """The feature whose most or least tells best which candidate is taken."""
    candidates, legal, chosen = recording.candidates[rows], recording.legal[rows], recording.actions[rows] - FIXED
    every = [{"which": name, "most": most} for name in rules.names_of("candidates", candidates.shape[-1])
             for most in (False, True)]
    return max(every, key=lambda rule: np.mean(rules.best_candidate(rule, candidates, legal) == chosen))
