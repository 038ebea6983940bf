"""`ooco-gym train agent=cma_linear`: CMA-ES over the weights of a linear scorer (`agents.policies.linear`), from zero.

A generation's candidates play the same few windows of the training split, side by side in one compiled call, and are
ranked by their mean reward. The mean of the distribution plays the validation windows every `validation.every_steps`
decisions and at the end; the best one there is kept, as by other agents.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box

from agents.environments import (
    Window,
    check_ours,
    levels_of,
    make_env,
    observed_shapes,
    random_legal,
    split_seeds,
    windows,
    with_length,
)
from agents.evaluation.players import BatchPlayer, close_all, play
from agents.evaluation.scoring import feasible_first, validated
from agents.policies.linear import LinearScorer
from agents.policies.runs import clear, write_config
from agents.search.optimisers import CMA_LINEAR, Cma
from agents.settings import Population, Windows, require
from ooco_gym.envs.vector import WINDOWS
from ooco_gym.errors import UserError, signal_of
from ooco_gym.report.terminal import Bar, progress
from ooco_gym.schema import Model, Positive, plain

SCALED_BY = 4096  # decisions of random play whose clusters and legal candidates scale the features


@dataclass(frozen=True)
class LinearAgent(Model):
    """A search over a linear scorer's weights; conf/agent/cma_linear.yaml has what each key means."""

    PLACE = "agent"

    name: Literal["cma_linear"]
    sigma: Positive
    population: Population
    windows: Windows


def search(config: dict[str, Any], out: Path, started: float) -> dict[str, Any]:
    """Searches, saves the best scorer, and returns the summary.

    Raises:
        UserError: a number is out of range, or the environment is not ours.
    """
    agent = plain(config["agent"])
    LinearAgent.read(agent)
    check_ours(config["env"], f"agent={CMA_LINEAR}")
    require("search")
    found = LinearSearch(config, agent, out, started)
    if config.get("overwrite"):
        clear(out)
    write_config(out, config)
    try:
        with progress(CMA_LINEAR, int(config["total_timesteps"])) as bar:
            found.run(bar)
    finally:
        close_all(found.training)
        close_all(found.judges)
    return found.summary()


class LinearSearch:
    """One search: its scorer, its environments, what it has found."""

    def __init__(self, config: dict[str, Any], agent: Mapping[str, Any], out: Path, started: float) -> None:
        self.config, self.agent, self.out, self.started = config, agent, out, started
        self.seed, self.most_s = int(config["seed"]), config.get("max_wall_s")
        self.env = with_length(config["env"], config.get("window_s"))
        self.checks = plain(config.get("validation") or {})
        self.judged_env = with_length(config["env"], self.checks.get("window_s"))
        self.training: list[Any] = []
        self.judges: list[Any] = []
        with closing(make_env(self.env)) as env:
            if isinstance(env.action_space, Box):
                raise UserError(f"agent={CMA_LINEAR} takes actions from lists; leave env.action=discrete")
            levels = levels_of(env.action_space)
            self.shapes, self.levels = observed_shapes(env.observation_space, levels), levels
        self.timesteps = self.generation = 0
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] | None = None
        self.judging_s = 0.0
        self.judged_at = -1  # decisions before the last validation
        self.signal: dict[str, str] = {}

    def run(self, bar: Bar) -> None:
        """Searches until the decisions or the seconds are used, or an interrupt; validates the last mean."""
        scorer = self._scaled_by_random_play()
        population = self.agent["population"] or 4 + int(3 * np.log(scorer.weights.size))
        method = Cma(scorer.weights, float(self.agent["sigma"]), None, population, self.seed)
        self.stopped_by, due, once_s = "total_timesteps", 0, 0.0
        try:
            self._judge(scorer)
            while self.timesteps < int(self.config["total_timesteps"]):
                begun = time.monotonic()
                candidates = method.ask()
                method.tell(candidates, self._rewards(scorer, candidates))
                self.generation += 1
                scorer.weights = method.mean
                bar.advance(self.timesteps - bar.done)
                once_s = max(once_s, time.monotonic() - begun)
                if self.most_s is not None and (
                        time.monotonic() - self.started + once_s + 1.5 * self.judging_s > float(self.most_s)):
                    self.stopped_by = "max_wall_s"
                    break
                if self.timesteps >= due + int(self.checks["every_steps"]):
                    due = self.timesteps
                    self._judge(scorer)
            if self.judged_at != self.timesteps:
                self._judge(scorer)
        except KeyboardInterrupt as error:
            self.stopped_by, self.signal = "interrupt", signal_of(error)

    def _windows(self, count: int) -> list[Window]:
        """The windows of the present generation, drawn from the training split."""
        random, seeds = np.random.default_rng([self.seed, self.generation]), split_seeds(self.env, "train")
        return [Window(int(random.choice(seeds)), int(random.integers(WINDOWS))) for _ in range(count)]

    def _scaled_by_random_play(self) -> LinearScorer:
        random, clusters, candidates = np.random.default_rng(self.seed), [], []

        def decide(cluster: np.ndarray, table: np.ndarray, mask: np.ndarray, decision: np.ndarray) -> np.ndarray:
            if len(clusters) * len(cluster) < SCALED_BY:
                clusters.append(np.array(cluster, np.float64))
                if not self.levels:
                    rows = table.reshape(len(table), *self.shapes["candidates"])
                    candidates.append(np.array(rows[mask[:, -rows.shape[1]:] > 0], np.float64))
            if self.levels:
                return random.integers(self.levels, size=(len(mask), len(self.levels)))
            return random_legal(mask, random)

        self.timesteps += _decisions(play(self.env, BatchPlayer(decide), self._windows(int(self.agent["windows"]))))
        rows = np.concatenate(candidates) if candidates else np.zeros((0, self.shapes["candidates"][1]))
        return LinearScorer.fitted(self.shapes, self.levels, np.concatenate(clusters), rows)

    def _rewards(self, scorer: LinearScorer, candidates: np.ndarray) -> np.ndarray:
        """The mean reward of each candidate (float64[population, n]) on the generation's windows."""
        games = self._windows(int(self.agent["windows"]))
        each = LinearScorer(self.shapes, self.levels, scorer.scales, np.repeat(candidates, len(games), axis=0))
        records = play(self.env, BatchPlayer(each.decide), games * len(candidates),
                       side_by_side=len(games) * len(candidates), envs=self.training)
        self.timesteps += _decisions(records)
        return np.array([record["reward"] for record in records]).reshape(len(candidates), len(games)).mean(axis=1)

    def _judge(self, scorer: LinearScorer) -> None:
        """Plays the validation windows, and saves the scorer if it is the best."""
        begun, self.judged_at = time.monotonic(), self.timesteps
        if not self.checks.get("windows"):  # the last one is kept
            scorer.save(self.out)
            return
        games = windows(split_seeds(self.env, "validation"), int(self.checks["windows"]))
        entry = validated(self.timesteps, play(self.judged_env, BatchPlayer(scorer.decide), games, envs=self.judges))
        self.history.append(entry)
        if self.best is None or self._rank(entry) > self._rank(self.best):
            self.best = entry
            scorer.save(self.out)
        self.judging_s = time.monotonic() - begun

    def _rank(self, entry: Mapping[str, float]) -> tuple[bool, float]:
        return feasible_first(entry["violation_rate"], entry["reward"], float(self.checks["violation_limit"]))

    def summary(self) -> dict[str, Any]:
        """The summary of the run, with the keys of other agents' runs."""
        return {"command": "train", "agent": CMA_LINEAR, "env": self.config["env"]["id"], "seed": self.seed,
                "timesteps": self.timesteps, "generations": self.generation, "stopped_by": self.stopped_by,
                **self.signal, "best": self.best, "validation": self.history,
                "validation_window_s": self.judged_env.get("window_s"), "wall_s": time.monotonic() - self.started}


def _decisions(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(record["decisions"]) for record in records)


def show(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"{summary['generations']} generations, {summary['timesteps']:,} decisions, stopped by "
          f"{summary['stopped_by']}, {summary['wall_s']:.0f} s in total")
    best = summary["best"]
    if best:
        print(f"kept the weights of {best['timesteps']:,} decisions: validation reward {best['reward']:.2f}, violation "
              f"rate {best['violation_rate']:.2%} over {best['windows']} windows")
    print(f"policy: {out}")
