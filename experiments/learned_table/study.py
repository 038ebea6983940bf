"""One environment of the learned table: who plays what, and what is read out of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import Window, make_env, split_seeds, windows
from agents.evaluation.heuristics import CLAIRVOYANT, RANDOM, heuristics_of, looking
from agents.evaluation.players import SEEDS, check_fit, environment_of, is_policy, runs_of
from agents.evaluation.scoring import VIOLATION_LIMIT, best_heuristic
from agents.learning.runs import SUMMARY_FILE
from agents.lookahead.headroom import check_looking
from agents.search.tune import POLICY_FILE, read_tuned
from agents.settings import number, plain, whole
from agents.zoo.command import JOB_FILE, VARIANTS
from experiments.learned_table.figures import beside_searched, compared, row_of, shifted, variant_of
from experiments.learned_table.players import BOUND, HEURISTIC, LEARNED, LOOKING, Asked, Store
from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml

LABEL = "learned"
BOUND_NAME = "fluid bound"
_LOOKING = ("weights", "samples", "every", "honest_every", "horizon_s", "progress")
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """An environment under study.

    Attributes:
        name: its short name, of `conf/env`.
        config: its configuration, with the windows' lengths.
        runs: training runs, name → folder.
        variants: what was tried beside: name → the folder of a run with one thing changed.
        tuned: policies tuned for it, spelled, and where they come from.
        table: settings of the study, those of this environment over the common ones.
    """

    name: str
    config: dict[str, Any]
    runs: dict[str, str]
    variants: dict[str, str]
    tuned: dict[str, dict[str, Any]]
    table: dict[str, Any]

    @classmethod
    def of(cls, name: str, folder: Path, table: Mapping[str, Any]) -> Setting:
        """Reads what a zoo's folder has of an environment.

        Raises:
            UserError: settings that are none, or a file of the zoo that cannot be read.
        """
        own = {**table, **plain(table["environments"][name] or {})}
        for key, least in (("episodes", 2), ("validation_episodes", 2), ("shift_episodes", 0), ("rollout_episodes", 2)):
            whole(own, key, least, f"table.{key}")
        check_looking(own)
        if not isinstance(own.get("also") or [], list):
            raise UserError(f"table.environments.{name}.also={own['also']!r} must be a list of heuristics' names")
        runs = runs_of(folder) if is_policy(folder) or any(folder.glob(SEEDS)) else {}
        runs = {run: path for run, path in runs.items() if _whole(Path(path))}
        beside = {path.name: str(path) for path in sorted(folder.glob(f"{VARIANTS}/*")) if _whole(path)}
        trained = next(iter(map(environment_of, runs.values())), None)
        config = {key: value for key, value in (trained or load_yaml("env", name)).items() if key != "shift"}
        for key in ("window_s", "warmup_s"):
            config[key] = number(own, key, name=f"table.{key}")
        found = [read_tuned(path) for path in sorted(folder.glob(f"tuned/*/{POLICY_FILE}"))]
        tuned = {one["policy"]: plain(one.get("provenance") or {}) for one in found}
        setting = cls(name, config, runs, beside, tuned, own)
        for key in ("episodes", "validation_episodes", *(("shift_episodes",) if own["shift_episodes"] else ())):
            setting.games(key)
        return setting

    def games(self, key: str) -> list[Window]:
        """As many windows as the setting `key` says, the first ones of the validation or the test split.

        Raises:
            UserError: they cannot be spread over the split's seeds.
        """
        seeds = split_seeds(self.config, "validation" if key == "validation_episodes" else "test")
        try:
            return windows(seeds, self.table[key])
        except UserError as error:
            raise UserError(f"table.{key}={self.table[key]}: {error}") from error


def _whole(folder: Path) -> bool:
    """Whether a policy is trained to its end: a job of the zoo that was stopped has no summary yet."""
    return is_policy(folder) and ((folder / SUMMARY_FILE).is_file() or not (folder / JOB_FILE).is_file())


def measured(setting: Setting, store: Store) -> dict[str, Any]:
    """Plays all and returns the environment's part of learned_table.json."""
    started, table = time.monotonic(), setting.table
    env = make_env(setting.config).unwrapped
    for folder in setting.runs.values():
        check_fit(setting.name, folder, env)
    listed: list[str] = [*(one.name for one in heuristics_of(env, None)), *(table.get("also") or []), *setting.tuned]
    names = list(dict.fromkeys(listed))
    best, searched = _chosen(setting, store, names)
    games = setting.games("episodes")
    played, bounds = _played(setting, store, names, games)
    kinds = {name: "tuned" if name in setting.tuned else "heuristic" for name in names}
    rows = [row_of(name, kinds.get(name, _kind(name)), records, played[best]) for name, records in played.items()]
    if bounds is not None:
        rows.append(row_of(BOUND_NAME, "bound", None, None, bounds))
    shifts = _shifts(setting, store, best) if table["shift_episodes"] and setting.runs else []
    return {"name": setting.name, "env": setting.config["id"], "n_seeds": len(setting.runs), "n_windows": len(games),
            "seeds": split_seeds(setting.config, "test"), "window_s": setting.config["window_s"],
            "warmup_s": setting.config["warmup_s"], "best_tuned": best,
            "chosen_on": {"split": "validation", "n_windows": table["validation_episodes"], "among": len(names)},
            "tuned": setting.tuned, "searched": beside_searched(played, searched, LABEL),
            **compared(played, best, LABEL, bounds), "rows": rows, "shifts": shifts,
            "rollout": {key: table[key] for key in ("rollout_episodes", *_LOOKING)} if table["rollouts"] else None,
            "tried": tried(setting.name), VARIANTS: beside(setting, store), "wall_s": time.monotonic() - started}


def _kind(name: str) -> str:
    if name in (LABEL, RANDOM):
        return "learned" if name == LABEL else "random"
    return "clairvoyant" if name.startswith(CLAIRVOYANT) else "honest"


def _chosen(setting: Setting, store: Store, names: Sequence[str]) -> tuple[str, str | None]:
    """The best of the heuristics, tuned ones among them, on validation windows; and the best tuned one."""
    games = setting.games("validation_episodes")
    asked = {name: store.ask(HEURISTIC, setting.config, name, games) for name in names}
    played = {name: one.records() for name, one in asked.items()}
    best = best_heuristic(played, VIOLATION_LIMIT)
    assert best is not None  # the partner is always among them
    return best, best_heuristic({name: played[name] for name in setting.tuned}, VIOLATION_LIMIT)


def _played(setting: Setting, store: Store, names: Sequence[str],
            games: Sequence[Window]) -> tuple[dict[str, Records], np.ndarray | None]:
    """The records of the test windows by policy, and their bounds."""
    table, config = setting.table, setting.config
    asked = {name: store.ask(HEURISTIC, config, name, games) for name in (RANDOM, *names)}
    runs = _ask_runs(setting, store, games)
    looked = games[: table["rollout_episodes"]]
    bound = store.ask(BOUND, config, VIOLATION_LIMIT, looked) if table["bound"] else None
    if table["rollouts"]:
        how = {key: table[key] for key in _LOOKING}
        for place, one in enumerate(looking(how)):
            asked[one.name] = store.ask(LOOKING, config, {**how, "place": place}, looked)
    played = {name: one.records() for name, one in asked.items()}
    if runs:
        played[LABEL] = _of_runs(runs)
    return played, None if bound is None else np.array([[record["bound"] for record in bound.records()]])


def _ask_runs(setting: Setting, store: Store, games: Sequence[Window], **changes: Any) -> dict[str, Asked]:
    return {run: store.ask(LEARNED, {**setting.config, **changes}, folder, games)
            for run, folder in setting.runs.items()}


def _of_runs(asked: Mapping[str, Asked]) -> Records:
    """The records of all training runs, each with the name of its own."""
    return [{**record, "run": run} for run, one in asked.items() for record in one.records()]


def _shifts(setting: Setting, store: Store, best: str) -> list[dict[str, Any]]:
    """Each distribution shift: the learned policy beside the best heuristic of the unshifted validation windows."""
    games = setting.games("shift_episodes")
    found = []
    for shift in setting.config.get("shifts") or {}:
        heuristic = store.ask(HEURISTIC, {**setting.config, "shift": shift}, best, games)
        runs = _ask_runs(setting, store, games, shift=shift)
        found.append(shifted(shift, _of_runs(runs), heuristic.records(), best))
    return found


def beside(setting: Setting, store: Store) -> list[dict[str, Any]]:
    """What was tried, beside the recipe's run of the same seed, on validation windows: the test is not for choosing."""
    if not (setting.variants and setting.runs):
        return []
    games = setting.games("validation_episodes")
    recipe = store.ask(LEARNED, setting.config, next(iter(setting.runs.values())), games)
    asked = {name: store.ask(LEARNED, setting.config, folder, games) for name, folder in setting.variants.items()}
    records = recipe.records()
    return [variant_of(name, one.records(), records) for name, one in (("the recipe", recipe), *asked.items())]


def tried(name: str) -> list[str]:
    """What was tried for an environment, in the words of `conf/zoo.yaml`; empty where it says nothing."""
    if not (conf_root() / "zoo.yaml").is_file():
        return []
    zoo = load_yaml("zoo", str(conf_root() / "zoo.yaml"))
    own = plain(plain(zoo.get("environments") or zoo).get(name) or {})
    return [str(line) for line in own.get("tried") or []]
