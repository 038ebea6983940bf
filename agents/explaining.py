"""`ooco-gym explain`: which features move a policy's decisions, and a rule small enough to be read, scored beside it.

The policy plays windows of the validation split, to whose decisions a rule is fitted (scikit-learn's trees), and
windows of the test split, on which importance and agreement are measured and all are scored: the policy, its rule and
the heuristics play the same windows.

For each kind of decision a tree says *whether*: `no`, as the `partner`, or `another` candidate than the partner's,
which is then the one with the most or the least of one feature. Where several parameters are set at once, a tree for
each says its level.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import OBSERVATION_KEYS, Window, candidate_shape, make_env, split_seeds, windows
from agents.evaluation.heuristics import heuristics_of, play_heuristic
from agents.evaluation.players import BatchPlayer, LearnedPolicy, Observations, check_fit, load_learned, play
from agents.evaluation.scoring import score
from agents.evaluation.tables import difference_table, score_table
from agents.settings import plain, require, whole
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import in_unit, is_flag, kinds
from ooco_gym.envs.features import CANDIDATE_SIZE, CANDIDATES, CLUSTER, kind_name
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.metrics.statistics import interval
from ooco_gym.policy import spelling_of
from ooco_gym.report import Section, Table, percent, with_interval, write_page
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml

SCHEMA, PAGE_FILE, RESULT_FILE, RULE = "ooco-gym/explanation/5", "explain.html", "explain.json", "its rule"
NO, PARTNER, ANOTHER = "no", "partner", "another"  # what a rule's tree says
UNKNOWN = -1  # the partner's answer where there is none
FOLDS, SIMPLER = 4, 0.01  # of windows; a smaller tree may agree so much less on those left out
_FEATURES = {feature.name: feature for feature in (*CLUSTER, *CANDIDATES)}


def main(cfg: Any) -> dict[str, Any]:
    """Explains the policy `cfg.policy` and writes explain.html and explain.json.

    Raises:
        UserError: the policy is no run or bundle or does not fit the environment, a value is out of range, or
            scikit-learn is not installed.
    """
    config = plain(cfg)
    for key in ("fit_windows", "episodes", "decisions", "repeats", "leaves", "seed"):
        whole(config, key, {"leaves": 2, "seed": 0}.get(key, 1))
    folder, seed, most = str(config["policy"]), int(config["seed"]), int(config["decisions"])
    if not os.path.isdir(folder):
        raise UserError(f"policy folder '{folder}' does not exist; expected the 'out' of 'ooco-gym train' or of "
                        "'ooco-gym export'")
    require("explain")
    policy, name, started = load_learned(folder), Path(folder).name, time.monotonic()
    env, parameters, heuristics = _environment(config, policy, folder)
    fit_games = windows(split_seeds(env, "validation"), int(config["fit_windows"]))
    games = windows(split_seeds(env, "test"), int(config["episodes"]))
    with progress("explaining", len(heuristics) + 3) as bar:
        bar.text(f"{name} plays")
        fitted, _ = record(env, policy, fit_games, most, seed)
        bar.advance()
        held_out, own = record(env, policy, games, most, seed)
        bar.advance()
        if not fitted or not held_out:
            raise UserError(f"no decision came up in the windows of the {'test' if fitted else 'validation'} split: "
                            "give longer ones (window_s) or more (fit_windows, episodes)")
        found = {one.name: distilled(one, int(config["leaves"]), seed, parameters) for one in fitted}
        rule = {kind: one for kind, (one, _) in found.items()}
        bar.text("its rule plays")
        played = {name: own, RULE: play(env, BatchPlayer(RULE, partial(decide, rule)), games)}
        bar.advance()
        for heuristic in heuristics:
            bar.text(f"{heuristic} plays")
            played[heuristic] = play_heuristic(env, heuristic, games)
            bar.advance()
        bar.text("measuring what each feature changes")
        moved = [row for one in held_out for row in importances(policy, one, int(config["repeats"]), seed)]
    result = {
        "command": "explain", "policy": name, "env": env["id"], "shift": env.get("shift"),
        "fitted_on": {"split": "validation", "windows": len(fit_games),
                      "decisions": {one.name: len(one.actions) for one in fitted}},
        "held_out": {"split": "test", "windows": len(games),
                     "decisions": {one.name: len(one.actions) for one in held_out}},
        "importance": moved,
        "fidelity": [fidelity(rule[one.name], one) for one in held_out if one.name in rule],
        "scores": score(played, str(env.get("name") or env["id"]), {one: one in (name, RULE) for one in played}),
        "rule": [line for _, lines in found.values() for line in lines], "wall_s": time.monotonic() - started,
    }
    out, shown = Path(config["out"]), tables(result)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULT_FILE, {"schema": SCHEMA, **result})
    lines = Table("The rule", ("",), tuple((line.replace("   ", "\u2003"),) for line in result["rule"]))
    write_page(out / PAGE_FILE, f"What '{name}' does on {env['id']}", [Section("", (), [lines, *shown[::-1]])],
               f"The rule was fitted to what the policy does on {len(fit_games)} windows of the validation split; all "
               f"else is measured on {len(games)} windows of the test split.")
    for table in shown:
        table.turned().show()
    print(*result["rule"], sep="\n")
    print(f"the page: {out / PAGE_FILE}")
    return {key: result[key] for key in ("command", "policy", "env", "fidelity", "wall_s")} | {
        "files": [RESULT_FILE, PAGE_FILE]}


def _environment(config: Mapping[str, Any], policy: LearnedPolicy, folder: str
                 ) -> tuple[dict[str, Any], dict[str, list[float]], list[str]]:
    """The environment's configuration; of an action of several parts the values of each; and names of heuristics."""
    given, beside = config.get("env"), config.get("heuristics")
    env = dict(policy.env if given is None else load_yaml("env", given) if isinstance(given, str) else plain(given))
    env |= {key: config[key] for key in ("shift", "window_s", "warmup_s") if config.get(key) is not None}
    with closing(make_env(env)) as made, closing(make_env(policy.env)) as expected:
        if made.observation_space != expected.observation_space or made.action_space != expected.action_space:
            raise UserError(f"'{folder}' was trained on {policy.env['id']}, whose observations or actions are not "
                            f"those of {env['id']}; leave env=null for its own")
        check_fit(Path(folder).name, folder, made)
        inside: Any = made.unwrapped
        controls = getattr(getattr(inside, "episodes", None), "controls", None)
        if beside is None:
            ours = isinstance(inside, DecisionEnv)
            beside = [one.name for one in heuristics_of(inside, None)] if ours else [inside.config.partner]
        return env, {} if controls is None else {
            name: controls.levels[part, : int(controls.counts[part])].tolist()
            for part, name in enumerate(controls.names)}, list(dict.fromkeys(
                [beside] if isinstance(beside, str) else map(str, beside)))


# --- What the policy was asked ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recording:
    """N decisions of one kind (slot of the observation's `decision`), over several windows.

    Attributes:
        cluster, candidates, mask, decision: as observed: (N, Fc), (N, K, F), (N, A), (N, D).
        window: (N,), which of the windows.
        partner: (N,), the action that says what the partner would do; `UNKNOWN` where it cannot be said.
        actions: what the policy answered: (N,) or (N, P).
    """

    kind: int
    cluster: np.ndarray
    candidates: np.ndarray
    mask: np.ndarray
    decision: np.ndarray
    window: np.ndarray
    partner: np.ndarray
    actions: np.ndarray

    @property
    def legal(self) -> np.ndarray:
        """Which candidates are legal: bool (N, K)."""
        return self.mask[:, -self.candidates.shape[1] :] > 0

    @property
    def name(self) -> str:
        """Of the kind of decision."""
        return kind_name(self.kind)

    def canonical(self, actions: np.ndarray) -> np.ndarray:
        """Actions with all that does what the partner would do as the partner's: so they compare by what they do."""
        same = (self.partner != UNKNOWN) & (self.partner == actions.T)
        return np.where(same, PARTNER_ACTION, actions) if actions.ndim == 1 else actions


class Recorder(BatchPlayer):
    """Plays as a policy does and keeps decisions of each window and kind, each as likely as another (Vitter 1985)."""

    def __init__(self, policy: LearnedPolicy, games: Sequence[Window], most: int, seed: int) -> None:
        super().__init__("explained", policy.decide)
        self._most, self._random = max(1, most // len(games)), np.random.default_rng([seed, 23])
        self._places = {(int(w.seed), int(w.number)): place for place, w in enumerate(games)}
        self.kept: dict[tuple[int, int], list[tuple[Any, ...]]] = {}  # by kind and place of the window
        self._seen: dict[tuple[int, int], int] = {}

    def act(self, envs: Sequence[Any], observations: Observations) -> Sequence[Any]:
        """The policy's answers."""
        actions = super().act(envs, observations)
        for wrapped, observation, action in zip(envs, observations, actions, strict=True):
            if not observation["decision"].any():
                continue  # a window in which nothing is asked
            env, kind = wrapped.unwrapped, int(np.argmax(observation["decision"]))
            window: Any = getattr(env, "window", None) or getattr(env, "key", None)
            place = self._places.get(window, 0)
            kept = self.kept.setdefault((kind, place), [])
            seen = self._seen[kind, place] = self._seen.get((kind, place), 0) + 1
            at = len(kept) if len(kept) < self._most else int(self._random.integers(seen))
            if at < self._most:
                parts = {key: np.copy(observation[key]) for key in OBSERVATION_KEYS}
                parts["candidates"] = parts["candidates"].reshape(
                    candidate_shape(wrapped.observation_space["candidates"]))
                asked = isinstance(env, DecisionEnv) and env.episodes.controls is None
                partner = int(env.rule_action(spelling_of(env.config.partner))) if asked else UNKNOWN
                kept[at : at + 1] = [(*parts.values(), place, partner, np.copy(action))]
        return actions


def record(config: Mapping[str, Any], policy: LearnedPolicy, games: Sequence[Window], most: int, seed: int
           ) -> tuple[list[Recording], list[dict[str, Any]]]:
    """Plays windows with a policy; at most about `most` decisions of each kind that it was asked, and the records."""
    recorder = Recorder(policy, games, most, seed)
    records = play(config, recorder, games)
    return [Recording(kind, *map(np.array, zip(*(
        row for key in sorted(recorder.kept) if key[0] == kind for row in recorder.kept[key]), strict=True)))
        for kind in sorted({kind for kind, _ in recorder.kept})], records


def importances(policy: LearnedPolicy, recording: Recording, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Permutation importance (Breiman 2001): the share of decisions that come out otherwise where a feature is shuffled
    among decisions of the same kind, with its deviation over the shuffles; the largest first.

    A row of the table is a decision, and says for each feature from which of the decisions it is taken: shuffling a
    column shuffles a feature, or that of all candidates.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.inspection import permutation_importance

    count, places, _ = recording.candidates.shape
    legal, each = recording.legal, np.arange(count)[:, None]
    order = np.argsort(~legal, axis=1, kind="stable")  # where another decision has fewer candidates, its own come again
    offered = recording.candidates[each, order[each, np.arange(places) % np.maximum(legal.sum(axis=1), 1)[:, None]]]
    offered[legal] = recording.candidates[legal]

    def same(_: Any, table: np.ndarray, __: Any) -> float:
        features = recording.cluster.shape[1]
        parts = (np.take_along_axis(recording.cluster, table[:, :features], axis=0),
                 np.take_along_axis(offered, table[:, None, features:], axis=0), recording.mask, recording.decision)
        actions = np.concatenate([policy.decide(*(part[at : at + 2048] for part in parts))
                                  for at in range(0, count, 2048)])
        return float((actions == recording.actions).reshape(count, -1).all(axis=1).mean())

    named = [(part, name) for part, size in (("cluster", recording.cluster.shape[1]), ("candidates", offered.shape[2]))
             for name in names_of(part, size)]
    found: Any = permutation_importance(DummyClassifier(), np.tile(each, (1, len(named))), None, n_repeats=repeats,
                                        random_state=seed, scoring=same)
    return sorted(({"decision": recording.name, "part": part, "feature": name, "changed": float(mean),
                    "changed_sd": float(deviation)} for (part, name), mean, deviation in
                   zip(named, found.importances_mean, found.importances_std, strict=True)),
                  key=lambda one: -one["changed"])


# --- The rule ---------------------------------------------------------------------------------------------------------
def agreement(rule: Mapping[str, Any], recording: Recording) -> np.ndarray:
    """Whether a rule does what the network did, for each decision: bool (N,)."""
    found = answer(rule, recording.cluster, recording.candidates, recording.mask)
    same = recording.canonical(found) == recording.canonical(recording.actions)
    return same.reshape(len(same), -1).all(axis=1)


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
        names_, parts = names_of("cluster", recording.cluster.shape[-1]), []
        for place, (name, levels) in enumerate(parameters.items()):
            tree, drawn = fitted_tree(recording.cluster, recording.actions[:, place], recording.window, leaves, seed,
                                      names_, {str(level): f"{value:g}" for level, value in enumerate(levels)})
            parts.append({"name": name, "tree": tree})
            lines += [f"{name}:", *drawn]
        return {"parameters": parts}, lines
    ours = recording.canonical(recording.actions)
    answers = np.select([ours == PARTNER_ACTION, ours == DECLINE_ACTION], [PARTNER, NO], ANOTHER)
    table = whether_table(recording.cluster, recording.candidates, recording.legal)
    tree, drawn = fitted_tree(
        table, answers, recording.window, leaves, seed,
        whether_names(recording.cluster.shape[-1], recording.candidates.shape[-1]),
        {NO: f"no: {words.no}" if words is not None else NO, PARTNER: "as the partner would",
         ANOTHER: "another candidate"})
    rule, lines = {"whether": tree, "which": None, "most": False}, lines + drawn
    if ANOTHER in tree.predict(table):  # the feature whose most or least tells best which candidate is taken
        rows = answers == ANOTHER
        candidates, legal, chosen = recording.candidates[rows], recording.legal[rows], recording.actions[rows] - FIXED
        rule |= max(({"which": name, "most": most} for name in names_of("candidates", candidates.shape[-1])
                     for most in (False, True)),
                    key=lambda one: np.mean(best_candidate(one, candidates, legal) == chosen))
        lines.append(f"another candidate: that with the {'most' if rule['most'] else 'least'} {rule['which']}")
    return rule, lines


def fitted_tree(table: np.ndarray, said: np.ndarray, window: np.ndarray, leaves: int, seed: int,
                named: Sequence[str], meanings: Mapping[str, str]) -> tuple[Any, list[str]]:
    """scikit-learn's tree of the fewest leaves that agrees nearly as well as any on windows that it was not fitted to
    (otherwise it would tell windows apart by their time of day and learn them by heart), and its lines of text."""
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.tree import DecisionTreeClassifier, export_text

    model: Any = DecisionTreeClassifier(min_samples_leaf=max(1, round(0.005 * len(table))), random_state=seed)
    folds = min(FOLDS, len(np.unique(window)))
    if folds < 2:  # one window: nothing to judge by
        model.set_params(max_leaf_nodes=leaves).fit(table, said)
    else:
        sizes = [*(count for count in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count < leaves), leaves]
        search: Any = GridSearchCV(model, [{"ccp_alpha": [1.0]}, {"max_leaf_nodes": sizes}], cv=GroupKFold(folds),
                                   refit=lambda found: int(np.argmax(  # type: ignore[arg-type]
                                       found["mean_test_score"] >= found["mean_test_score"].max() - SIMPLER)))
        model = search.fit(table, said, groups=window).best_estimator_  # the first of the grid has no split at all
    if len(model.classes_) == 1:  # which export_text leaves out
        return model, [f"|--- {meanings[str(model.classes_[0])]}"]
    lines = [re.sub(r"class: (.*)$", lambda found: meanings.get(found[1], found[1]), line)
             for line in export_text(model, feature_names=list(named), decimals=6).splitlines()]
    return model, [re.sub(r"--- (.+?) +(<=|>) +(-?[\d.]+)$", _condition, line) for line in lines]


def _condition(found: re.Match[str]) -> str:
    """A tree's condition in the feature's unit."""
    name, side, at = found[1], "≤" if found[2] == "<=" else ">", float(found[3])
    feature = _FEATURES.get(re.sub("^(partner's|least|most) ", "", name))
    if feature is None:
        return f"--- {name} {side} {at:.4g}"
    if is_flag(feature):
        return f"--- {name} is {'no' if side == '≤' else 'yes'}"
    figure, unit = in_unit(feature, at)
    return f"--- {name} {side} {float(f'{figure:.3g}'):,g} {unit}".rstrip()


# --- Playing a rule ---------------------------------------------------------------------------------------------------
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
        return np.stack([part["tree"].predict(cluster) for part in rule["parameters"]], axis=1)
    legal = mask[:, -candidates.shape[1] :] > 0
    whether = rule["whether"].predict(whether_table(cluster, candidates, legal))
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


# --- What is shown ----------------------------------------------------------------------------------------------------
def fidelity(rule: Mapping[str, Any], recording: Recording) -> dict[str, Any]:
    """Share of held-out decisions in which the rule does what the network does, interval over windows."""
    same, played = agreement(rule, recording), np.unique(recording.window)
    found = interval(np.array([same[recording.window == window].mean() for window in played]))
    return {"decision": recording.name, **{key: None if np.isnan(value) else float(value) for key, value in zip(
        ("agreement", "ci_low", "ci_high"), found, strict=True)}, "decisions": len(same), "windows": len(played)}


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Importance by kind of decision, agreement of the rule, and the scores as `evaluate` shows them."""
    found = [Table(f"What moves '{decision}'", ("feature", "of", "decisions changed"), [
        (one["feature"], one["part"], f"{percent(one['changed'])} ± {100 * one['changed_sd']:.2f}")
        for one in result["importance"] if one["decision"] == decision][:12],
        f"Shuffled among {count:,} held-out decisions, mean ± deviation over the shuffles.")
        for decision, count in result["held_out"]["decisions"].items()]
    found.append(Table("The rule does what the network does", ("decision", "held-out decisions", "agreement"), tuple(
        (one["decision"], f"{one['decisions']:,}", with_interval(one["agreement"], one["ci_low"], one["ci_high"],
                                                                 percent)) for one in result["fidelity"]),
        "95 % intervals over windows; an action that does the same by another name counts as the same."))
    scores = result["scores"]
    return [*found, score_table(scores, "Played on the same held-out windows"),
            *([difference_table(scores)] if scores["reference"] else [])]
