"""Plays windows with any kind of player, in processes, and keeps each record on disk by all that it depends on."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agents.environments import Window, make_env
from agents.evaluation.heuristics import HeuristicPlayer, looking, play_heuristic
from agents.evaluation.players import BatchPlayer, digest_of, kept, play
from experiments.cache import Cache
from experiments.jobs import begin
from experiments.source_code import NETWORKS, PLAYED, code_digest
from ooco_gym.peak import file_stamps

CHUNK = 8  # windows that one job plays side by side; fixed, so that a network's batches are, too
HEURISTIC, LEARNED, LOOKING, BOUND = "heuristic", "learned", "looking", "bound"


class Task(NamedTuple):
    """Some windows of one environment by one player.

    Attributes:
        kind: of player.
        config: the `env` configuration.
        player: a heuristic's name, a run's folder, or settings of the look-ahead (with its `place` in `looking`).
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


class Store:
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

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def ask(self, kind: str, config: Mapping[str, Any], player: Any, games: Sequence[Window]) -> Asked:
        """Begins to play windows; `Asked.records()` waits for them.

        Args:
            kind: HEURISTIC, LEARNED, LOOKING or BOUND.
            config: the `env` configuration.
            player: as in `Task`.
            games: the windows.
        """
        size = CHUNK if kind in (HEURISTIC, LEARNED) else 1
        parts = [list(games[i : i + size]) for i in range(0, len(games), size)]
        code = code_digest(PLAYED + NETWORKS if kind == LEARNED else PLAYED)
        tasks = [Task(kind, dict(config), player, part, [_key(kind, config, player, game) for game in part],
                      self.folder, code) for part in parts]
        return Asked([self._known(task) or self._submit(task) for task in tasks])

    def _known(self, task: Task) -> list[dict[str, Any]]:
        """The records of a task where all are on disk; else none of them, so that it is played as it always is."""
        cache = Cache(task.folder)
        found = [one for one in (cache.get(key) for key in task.keys) if one is not None]
        others = sum(one["code"] != task.code for one in found)
        if len(found) < len(task.keys) or (others and not self._trust):
            return []
        self.by_other_code += others
        return [one["record"] for one in found]

    def _submit(self, task: Task) -> Future[list[dict[str, Any]]] | list[dict[str, Any]]:
        if self._workers <= 1:
            return played(task)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._workers, mp_context=multiprocessing.get_context("spawn"),
                                             initializer=begin)
        return self._pool.submit(played, task)


class Asked:
    """Records that are there, or will be."""

    def __init__(self, parts: Sequence[Future[list[dict[str, Any]]] | list[dict[str, Any]]]) -> None:
        self._parts = parts

    def records(self) -> list[dict[str, Any]]:
        """One record a window, in order."""
        return [record for part in self._parts for record in (part if isinstance(part, list) else part.result())]


def played(task: Task) -> list[dict[str, Any]]:
    """Plays a task and keeps its records; runs in a worker process."""
    records, cache = _PLAY[task.kind](task), Cache(task.folder)
    for key, record in zip(task.keys, records, strict=True):
        cache.put(key, {"code": task.code, "record": record})
    return records


def _heuristic(task: Task) -> list[dict[str, Any]]:
    return play_heuristic(task.config, task.player, task.games, CHUNK)


def _learned(task: Task) -> list[dict[str, Any]]:
    from agents.settings import limit_torch_threads

    limit_torch_threads()
    return play(task.config, BatchPlayer("learned", kept(task.player).decide), task.games, CHUNK)


def _looking(task: Task) -> list[dict[str, Any]]:
    settings = {key: value for key, value in task.player.items() if key != "place"}
    return play(task.config, HeuristicPlayer(looking(settings)[task.player["place"]]), task.games, 1)


def _bound(task: Task) -> list[dict[str, Any]]:
    from agents.lookahead.headroom import bound_of

    env = make_env(task.config).unwrapped
    return [{"seed": game.seed, "window": game.number, "bound": bound_of(env, (game.seed, game.number), task.player)}
            for game in task.games]


_PLAY = {HEURISTIC: _heuristic, LEARNED: _learned, LOOKING: _looking, BOUND: _bound}


def _key(kind: str, config: Mapping[str, Any], player: Any, game: Window) -> str:
    """Digest of all that a record depends on beside the code: the environment, the player, the window."""
    conditions = {key: value for key, value in config.items() if key not in ("splits", "description", "name", "shifts")}
    if config.get("shift"):
        conditions["shifted"] = config["shifts"][config["shift"]]
    stamps = file_stamps(conditions)
    if stamps:
        conditions["files"] = stamps
    who = _digest_of(str(player)) if kind == LEARNED else player
    text = json.dumps([kind, conditions, who, list(game)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=256)
def _digest_of(folder: str) -> str:
    return digest_of(folder)
