"""`ooco-gym explain`: which features move a policy's decisions, on held-out windows (scikit-learn's permutation
importance)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import (
    OBSERVATION_KEYS,
    Window,
    candidate_shape,
    decision_names,
    make_env,
    parameter_count,
    split_seeds,
    windows,
)
from agents.evaluation.players import BatchPlayer, LearnedPolicy, Observations, check_fit, load_learned, play
from agents.policies.describing import feature_table
from agents.settings import plain, require, whole
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.report import Section, Table, percent, write_page
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml

SCHEMA, PAGE_FILE, RESULT_FILE = "ooco-gym/explanation/6", "explain.html", "explain.json"


def main(cfg: Any) -> dict[str, Any]:
    """Explains the policy `cfg.policy` and writes explain.html and explain.json.

    Raises:
        UserError: the policy is no run or bundle or does not fit the environment, a value is out of range, or
            scikit-learn is not installed.
    """
    config = plain(cfg)
    for key in ("episodes", "decisions", "repeats", "seed"):
        whole(config, key, 0 if key == "seed" else 1)
    folder, seed = str(config["policy"]), int(config["seed"])
    if not os.path.isdir(folder):
        raise UserError(f"policy folder '{folder}' does not exist; expected the 'out' of 'ooco-gym train' or of "
                        "'ooco-gym export'")
    require("explain")
    policy, name, started = load_learned(folder), Path(folder).name, time.monotonic()
    env = _environment(config, policy, folder)
    games = windows(split_seeds(env, "test"), int(config["episodes"]))
    with progress("explaining", 2) as bar:
        bar.text(f"{name} plays")
        recorded = record(env, policy, games, int(config["decisions"]), seed)
        if not recorded:
            raise UserError("no decision came up in the windows of the test split: give longer ones (window_s) or more "
                            "(episodes)")
        bar.advance()
        bar.text("measuring what each feature changes")
        moved = [row for one in recorded for row in importances(policy, one, int(config["repeats"]), seed)]
    result = {
        "command": "explain", "policy": name, "env": env["id"], "shift": env.get("shift"),
        "held_out": {"split": "test", "windows": len(games),
                     "decisions": {one.name: len(one.actions) for one in recorded}},
        "importance": moved, "wall_s": time.monotonic() - started,
    }
    out, shown = Path(config["out"]), tables(result)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULT_FILE, {"schema": SCHEMA, **result})
    write_page(out / PAGE_FILE, f"What moves '{name}' on {env['id']}", [Section("", (), shown)],
               f"Measured on {len(games)} windows of the test split.")
    for table in shown:
        table.show()
    print(f"the page: {out / PAGE_FILE}")
    return {key: result[key] for key in ("command", "policy", "env", "wall_s")} | {"files": [RESULT_FILE, PAGE_FILE]}


def _environment(config: Mapping[str, Any], policy: LearnedPolicy, folder: str) -> dict[str, Any]:
    """The configuration of the environment in which the policy plays."""
    given = config.get("env")
    env = dict(policy.env if given is None else load_yaml("env", given) if isinstance(given, str) else plain(given))
    env |= {key: config[key] for key in ("shift", "window_s", "warmup_s") if config.get(key) is not None}
    with closing(make_env(env)) as made, closing(make_env(policy.env)) as expected:
        if made.observation_space != expected.observation_space or made.action_space != expected.action_space:
            raise UserError(f"'{folder}' was trained on {policy.env['id']}, whose observations or actions are not "
                            f"those of {env['id']}; leave env=null for its own")
        check_fit(Path(folder).name, folder, made)
    return env


# --- What the policy was asked ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recording:
    """N decisions of one kind, over several windows.

    Attributes:
        name: of the kind.
        features: names of the features of a part of the observation, of `cluster` and `candidates`.
        cluster, candidates, mask, decision: as observed: (N, Fc), (N, K, F), (N, A), (N, D).
        actions: what the policy answered: (N,) or (N, P).
    """

    name: str
    features: Mapping[str, Sequence[str]]
    cluster: np.ndarray
    candidates: np.ndarray
    mask: np.ndarray
    decision: np.ndarray
    actions: np.ndarray

    @property
    def legal(self) -> np.ndarray:
        """Which candidates are legal: bool (N, K)."""
        return self.mask[:, -self.candidates.shape[1] :] > 0


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
                    candidate_shape(wrapped.observation_space, parameter_count(wrapped)))
                kept[at : at + 1] = [(*parts.values(), np.copy(action))]
        return actions


def record(config: Mapping[str, Any], policy: LearnedPolicy, games: Sequence[Window], most: int, seed: int
           ) -> list[Recording]:
    """Plays windows with a policy; at most about `most` decisions of each kind that it was asked."""
    recorder = Recorder(policy, games, most, seed)
    play(config, recorder, games)
    with closing(make_env(config)) as env:
        asked = decision_names(env)
        space: Any = env.observation_space
        widths = {"cluster": space["cluster"].shape[0], "candidates": candidate_shape(space, parameter_count(env))[1]}
        named = {key: [row["name"] for row in feature_table(env, space[key], key, width)]
                 for key, width in widths.items()}
    return [Recording(asked[kind] if kind < len(asked) else f"decision {kind}", named, *map(np.array, zip(*(
        row for key in sorted(recorder.kept) if key[0] == kind for row in recorder.kept[key]), strict=True)))
        for kind in sorted({kind for kind, _ in recorder.kept})]


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

    named = [(part, name) for part, names in recording.features.items() for name in names]
    found: Any = permutation_importance(DummyClassifier(), np.tile(each, (1, len(named))), None, n_repeats=repeats,
                                        random_state=seed, scoring=same)
    return sorted(({"decision": recording.name, "part": part, "feature": name, "changed": float(mean),
                    "changed_sd": float(deviation)} for (part, name), mean, deviation in
                   zip(named, found.importances_mean, found.importances_std, strict=True)),
                  key=lambda one: -one["changed"])


# --- What is shown ----------------------------------------------------------------------------------------------------
def tables(result: Mapping[str, Any]) -> list[Table]:
    """Importance by kind of decision, the twelve features that change the most."""
    return [Table(f"What moves '{decision}'", ("feature", "of", "decisions changed"), [
        (one["feature"], one["part"], f"{percent(one['changed'])} ± {100 * one['changed_sd']:.2f}")
        for one in result["importance"] if one["decision"] == decision][:12],
        f"Shuffled among {count:,} held-out decisions, mean ± deviation over the shuffles.")
        for decision, count in result["held_out"]["decisions"].items()]
