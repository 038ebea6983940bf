"""`ooco-gym evaluate +preset=learned_table zoo=ZOO`: learned policies against tuned heuristics and look-ahead.

For each environment of a zoo's working folder (`ZOO/<env>/seed_<n>/`, `ZOO/<env>/tuned/<policy>/policy.yaml`) all play
the same held-out windows: chance, every heuristic, every tuned policy, the learned one (all its training runs),
sampled-future and clairvoyant look-ahead, beside the fluid bound. The best heuristic, tuned ones among them, is chosen
on validation windows. What has been played is kept on disk, window by window, and is played again only where what it
depends on has changed (docs/evaluation.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agents.environments import Window, make_env, split_seeds, windows
from agents.evaluation.heuristics import CLAIRVOYANT, RANDOM, heuristics_of, look_aheads, play_heuristic
from agents.evaluation.players import (
    SEEDS,
    check_fit,
    digest_of,
    environment_of,
    is_policy,
    load_learned,
    play,
    runs_of,
)
from agents.evaluation.scoring import VIOLATION_LIMIT, best_heuristic
from agents.learning.runs import SUMMARY_FILE
from agents.lookahead.headroom import bound_of, check_looking
from agents.search.tune import POLICY_FILE, read_tuned
from agents.settings import limit_torch_threads, number, plain, whole
from agents.zoo.command import JOB_FILE, VARIANTS
from experiments.common.output import write_texts
from experiments.common.store import Store, code_digest, key_of
from experiments.studies.learned_table_page import (
    BY_OTHER_CODE,
    SCHEMA,
    beside_searched,
    compared,
    markdown,
    row_of,
    shifted,
    show,
    variant_of,
)
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import write_json
from ooco_gym.jobs import pool
from ooco_gym.peak import file_stamps
from ooco_gym.resources import load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

CHUNK = 8  # windows that one job plays side by side; fixed, so that a network's batches are, too
Records = list[dict[str, Any]]
Asked = list[Future[Records] | Records]  # records of windows that are there, or will be
HEURISTIC, LEARNED, LOOKING, BOUND = "heuristic", "learned", "looking", "bound"


class Task(NamedTuple):
    """Some windows of one environment by one player.

    Attributes:
        kind: of player.
        config: the `env` configuration.
        player: a heuristic's name, a run's folder, or settings of the look-ahead (with its `index` in `look_aheads`).
        games: the windows.
        keys: of their records on disk.
        folder: where those are.
        code: digest of the code that plays, which lies beside each record.
    """

    kind: str
    config: dict[str, Any]
    player: Any
    games: list[Window]
    keys: list[str]
    folder: Path
    code: str


class WindowStore:
    """Players' records, from disk or played now in `workers` processes.

    Args:
        folder: of the records.
        workers: processes.
        trust: take records that other code has played, too; `by_other_code` counts them.
    """

    def __init__(self, folder: Path, workers: int, trust: bool = False) -> None:
        self.folder, self._workers, self._trust = folder, workers, trust
        self._pool: Executor | None = None
        self.by_other_code = 0

    def __enter__(self) -> WindowStore:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def ask(self, kind: str, config: Mapping[str, Any], player: Any, games: Sequence[Window]) -> Asked:
        """Begins to play windows; `records_of` waits for them.

        Args:
            kind: HEURISTIC, LEARNED, LOOKING or BOUND.
            config: the `env` configuration.
            player: as in `Task`.
            games: the windows.
        """
        size = CHUNK if kind in (HEURISTIC, LEARNED) else 1
        parts = [list(games[i : i + size]) for i in range(0, len(games), size)]
        code = code_of(kind, str(config["id"]))
        tasks = [Task(kind, dict(config), player, part, [_key(kind, config, player, game) for game in part],
                      self.folder, code) for part in parts]
        return [self._known(task) or self._submit(task) for task in tasks]

    def _known(self, task: Task) -> list[dict[str, Any]]:
        """The records of a task where all are on disk; else none of them, so that it is played as it always is."""
        store = Store(task.folder)
        found = [one for one in (store.get(key) for key in task.keys) if one is not None]
        others = sum(one["code"] != task.code for one in found)
        if len(found) < len(task.keys) or (others and not self._trust):
            return []
        self.by_other_code += others
        return [one["record"] for one in found]

    def _submit(self, task: Task) -> Future[list[dict[str, Any]]] | list[dict[str, Any]]:
        if self._workers <= 1:
            return played(task)
        if self._pool is None:
            self._pool = pool(self._workers)
        return self._pool.submit(played, task)


def records_of(asked: Asked) -> Records:
    """One record a window, in order; waits for those that are still played."""
    return [record for part in asked for record in (part if isinstance(part, list) else part.result())]


def played(task: Task) -> Records:
    """Plays a task and keeps its records; runs in a worker process."""
    records, store = _PLAY[task.kind](task), Store(task.folder)
    for key, record in zip(task.keys, records, strict=True):
        store.put(key, {"code": task.code, "record": record})
    return records


def _heuristic(task: Task) -> Records:
    return play_heuristic(task.config, task.player, task.games, CHUNK)


def _learned(task: Task) -> Records:
    limit_torch_threads()
    return play(task.config, load_learned(task.player).player("learned"), task.games, CHUNK)


def _looking(task: Task) -> Records:
    settings = {key: value for key, value in task.player.items() if key != "index"}
    return play(task.config, look_aheads(settings)[task.player["index"]], task.games, 1)


def _bound(task: Task) -> Records:
    env = make_env(task.config).unwrapped
    return [{"seed": game.seed, "window": game.number, "bound": bound_of(env, (game.seed, game.number), task.player)}
            for game in task.games]


_PLAY = {HEURISTIC: _heuristic, LEARNED: _learned, LOOKING: _looking, BOUND: _bound}
_CODE = {HEURISTIC: "agents.evaluation.heuristics", LEARNED: "agents.evaluation.players",
         LOOKING: "agents.evaluation.heuristics", BOUND: "agents.lookahead.headroom"}


def code_of(kind: str, env: str) -> str:
    """Digest of the code that plays: of the kind of player, of the environment with this id, and of all baselines."""
    import gymnasium

    import ooco_gym.envs  # noqa: F401  registers them

    return code_digest([_CODE[kind], str(gymnasium.spec(env).entry_point).partition(":")[0], "baselines.*"])


def _key(kind: str, config: Mapping[str, Any], player: Any, game: Window) -> str:
    """Digest of all that a record depends on beside the code: the environment, the player, the window."""
    conditions = {key: value for key, value in config.items() if key not in ("splits", "description", "name", "shifts")}
    if config.get("shift"):
        conditions["shifted"] = config["shifts"][config["shift"]]
    stamps = file_stamps(conditions)
    if stamps:
        conditions["files"] = stamps
    return key_of([kind, conditions, _digest_of(str(player)) if kind == LEARNED else player, list(game)])


@lru_cache(maxsize=256)
def _digest_of(folder: str) -> str:
    return digest_of(folder)


LABEL = "learned"
BOUND_NAME = "fluid bound"
_LOOKING = ("weights", "samples", "every", "honest_every", "horizon_s", "progress")


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


def measured(setting: Setting, store: WindowStore) -> dict[str, Any]:
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
            VARIANTS: beside(setting, store), "wall_s": time.monotonic() - started}


def _kind(name: str) -> str:
    if name in (LABEL, RANDOM):
        return "learned" if name == LABEL else "random"
    return "clairvoyant" if name.startswith(CLAIRVOYANT) else "honest"


def _chosen(setting: Setting, store: WindowStore, names: Sequence[str]) -> tuple[str, str | None]:
    """The best of the heuristics, tuned ones among them, on validation windows; and the best tuned one."""
    games = setting.games("validation_episodes")
    asked = {name: store.ask(HEURISTIC, setting.config, name, games) for name in names}
    played = {name: records_of(one) for name, one in asked.items()}
    best = best_heuristic(played, VIOLATION_LIMIT)
    assert best is not None  # the partner is always among them
    return best, best_heuristic({name: played[name] for name in setting.tuned}, VIOLATION_LIMIT)


def _played(setting: Setting, store: WindowStore, names: Sequence[str],
            games: Sequence[Window]) -> tuple[dict[str, Records], np.ndarray | None]:
    """The records of the test windows by policy, and their bounds."""
    table, config = setting.table, setting.config
    asked = {name: store.ask(HEURISTIC, config, name, games) for name in (RANDOM, *names)}
    runs = _ask_runs(setting, store, games)
    looked = games[: table["rollout_episodes"]]
    bound = store.ask(BOUND, config, VIOLATION_LIMIT, looked) if table["bound"] else None
    if table["rollouts"]:
        how = {key: table[key] for key in _LOOKING}
        for index, one in enumerate(look_aheads(how)):
            asked[one.name] = store.ask(LOOKING, config, {**how, "index": index}, looked)
    played = {name: records_of(one) for name, one in asked.items()}
    if runs:
        played[LABEL] = _of_runs(runs)
    return played, None if bound is None else np.array([[record["bound"] for record in records_of(bound)]])


def _ask_runs(setting: Setting, store: WindowStore, games: Sequence[Window], **changes: Any) -> dict[str, Asked]:
    return {run: store.ask(LEARNED, {**setting.config, **changes}, folder, games)
            for run, folder in setting.runs.items()}


def _of_runs(asked: Mapping[str, Asked]) -> Records:
    """The records of all training runs, each with the name of its own."""
    return [{**record, "run": run} for run, one in asked.items() for record in records_of(one)]


def _shifts(setting: Setting, store: WindowStore, best: str) -> list[dict[str, Any]]:
    """Each distribution shift: the learned policy beside the best heuristic of the unshifted validation windows."""
    games = setting.games("shift_episodes")
    found = []
    for shift in setting.config.get("shifts") or {}:
        heuristic = store.ask(HEURISTIC, {**setting.config, "shift": shift}, best, games)
        runs = _ask_runs(setting, store, games, shift=shift)
        found.append(shifted(shift, _of_runs(runs), records_of(heuristic), best))
    return found


def beside(setting: Setting, store: WindowStore) -> list[dict[str, Any]]:
    """What was tried, beside the recipe's run of the same seed, on validation windows: the test is not for choosing."""
    if not (setting.variants and setting.runs):
        return []
    games = setting.games("validation_episodes")
    recipe = store.ask(LEARNED, setting.config, next(iter(setting.runs.values())), games)
    asked = {name: store.ask(LEARNED, setting.config, folder, games) for name, folder in setting.variants.items()}
    records = records_of(recipe)
    return [variant_of(name, records_of(one), records) for name, one in (("the recipe", recipe), *asked.items())]


def main(cfg: Any) -> dict[str, Any]:
    """Makes the table of the environments in `cfg.zoo`; writes learned_table.md and learned_table.json.

    Raises:
        UserError: no such folder, nothing in it, or settings that are none.
    """
    config = plain(cfg)
    started = time.monotonic()
    zoo = Path(str(config["zoo"]))
    table = plain(config.get("table") or {})
    names = environments_of(zoo, table)
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with WindowStore(Path(table.get("cache") or zoo / "played"), whole(config, "workers", 1),
                     bool(table.get("trust_cache"))) as store:
        for name in names:
            before = store.by_other_code
            row = measured(Setting.of(name, zoo / name, table), store)
            row[BY_OTHER_CODE] = store.by_other_code - before
            found[row["env"]] = row
            summary = {"command": "evaluate", "schema_of_table": SCHEMA, "environments": found,
                       "wall_s": time.monotonic() - started}
            _write(out, summary)  # after each, so that what is done can be read while the rest is played
    show(summary)
    return summary


def environments_of(zoo: Path, table: Mapping[str, Any]) -> list[str]:
    """The environments to be measured: those of the settings that have a folder in the zoo, or those of `only`.

    Raises:
        UserError: no zoo, none of these environments in it, or `only` names another.
    """
    if not zoo.is_dir():
        raise UserError(f"zoo folder '{zoo}' does not exist; expected the 'out' of 'ooco-gym zoo'")
    known = list(plain(table.get("environments") or {}))
    if not known:
        raise UserError("table.environments is empty; expected the settings of conf/preset/learned_table.yaml: add "
                        "+preset=learned_table")
    only = table.get("only")
    asked = [only] if isinstance(only, str) else list(only or [])
    for name in asked:
        if name not in known:
            raise unknown("environment", name, known)
    there = [name for name in asked or known if (zoo / name).is_dir()]
    if not there or len(there) < len(asked):
        missing = [name for name in asked or known if name not in there]
        raise UserError(f"zoo folder '{zoo}' has no folder {' or '.join(missing)}; expected the 'out' of 'ooco-gym "
                        "zoo', with the runs of an environment in <env>/seed_<n>")
    return there


def _write(out: Path, summary: Mapping[str, Any]) -> None:
    write_json(out / "learned_table.json", summary)
    write_texts({out / "learned_table.md": markdown(summary)})


OTHERS = ("policies", "episodes", "seeds", "window_s", "warmup_s", "shift", "bound")  # that the learned table has not


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Evaluates what `cfg` asks for (docs/evaluation.md).

    Raises:
        UserError: one of `zoo` and `table` without the other, or what either evaluation refuses.
    """
    if cfg.get("zoo") is None and cfg.get("table") is None:
        from agents.evaluation.evaluate import main as evaluate_one

        return evaluate_one(cfg)
    if cfg.get("zoo") is None or cfg.get("table") is None:
        raise UserError("zoo and table belong together; expected 'ooco-gym evaluate +preset=learned_table "
                        "zoo=FOLDER', the working folder of 'ooco-gym zoo'")
    config = plain(cfg)
    given = [key for key, default in load_yaml("", "evaluate").items()
             if key in OTHERS and config.get(key, default) != default]
    if given:
        raise UserError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} not for the learned table; its "
                        "windows and policies are set by table.episodes, table.environments.<env>.window_s and the "
                        "like (docs/evaluation.md)")
    return main(cfg)
