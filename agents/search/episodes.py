"""Search over whole episodes (`ooco-gym train agent=cma`): its windows, generations, validation and files.

A generation's candidates (`agents.search.space`) run on the same windows (`ooco_gym.study.population`), and are scored
against a reference (`agents.search.judging`) for CMA-ES (`agents.search.optimisers`). The loop is our own, beside the
executor of `ooco_gym.study`, because a generation is one batch of compiled calls, which share their windows' initial
states. Candidates that are behind after a few windows are dropped. The first candidate is the policy with default
parameters. Every few generations, the best candidate and the mean of the distribution run on validation windows. The
best one there is kept, unless it is behind the default on its training windows (docs/training.md).

After every generation `policy.yaml` and, for a policy with weights, `weights.npz` are the best policy so far (commands
take the YAML as a policy's name), and `generations.csv` is the table. A search resumes from `checkpoints/latest.state`,
exactly. No file contains a time, so that the same search writes the same bytes. The state is a pickle, which can carry
code: resume only what you trust.
"""

from __future__ import annotations

import csv
import math
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.environments import check_ours, make_env, split_seeds
from agents.policies.runs import GENERATIONS_FILE, SEARCHED_FILE, SEARCHED_WEIGHTS, STATE_FILE, read_pickled
from agents.search.judging import UNPLAYED, Judge, Judged, format_score
from agents.search.optimisers import Cma
from agents.search.space import space_of
from ooco_gym.envs.config import under
from ooco_gym.errors import UserError, signal_of
from ooco_gym.files import atomic_write
from ooco_gym.policy import Policy, get_policy, policy_of
from ooco_gym.policy.registry import policy_named
from ooco_gym.policy.weights import write_weights
from ooco_gym.report.terminal import Bar, progress
from ooco_gym.study.population import Candidate, Population, Stopped

SPARE = 1.1  # safety factor on predicted durations
_SCHEMA = "ooco-gym/search/1"
COLUMNS = ("generation", "restart", "candidates", "windows", "best_score", "best_service", "best_violation_rate",
           "best_violation_upper_limit", "best_feasible", "median_score", "feasible_share", "sigma", "moved",
           "training_best_score", "training_mean_score",
           *(f"validation_{name}_{quantity}" for name in ("best", "mean")
             for quantity in ("score", "violation_rate", "violation_upper_limit")), "kept_score", "kept_feasible")


@dataclass
class Memory:
    """The state of a search, on which all the rest of it depends.

    `best` are the best numbers so far (0: default parameters), `judged` their validation result. `candidates` counts
    the default too, `played` windows, `waited` validations since the last gain. `contender` is the best candidate
    since the last validation, with its value; `rows` are the table's.
    """

    method: Cma | None  # None before the first generation, and after a restart
    best: np.ndarray
    judged: Judged | None = None
    generation: int = 0
    restarts: int = 0
    candidates: int = 1
    played: int = 0
    waited: int = 0
    contender: tuple[float, np.ndarray] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)


class Field:
    """The windows of a split under all conditions, in turn, so that the first few windows cover every condition.

    `games` are (seed, number) of each window, `conditions` int64[windows] its condition.

    Args:
        env: the environment's configuration.
        conditions: changes of its scenario; None: the environment as it is.
        where: what the user calls them.
        seeds: of the windows.
        count: number of windows, a multiple of the conditions.
        threads: windows under way at a time; None: one for each core.
    """

    def __init__(self, env: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]] | None, where: str,
                 seeds: Sequence[int], count: int, threads: int | None = None) -> None:
        conditions, configs = conditions or [{}], []
        with closing(make_env(env)) as made:
            self._base_policy = policy_of(made.unwrapped.config.base_policy)
            for place, condition in enumerate(conditions):
                changes = {key: value for key, value in condition.items() if key != "name"}
                configs.append(under(made.unwrapped.config, changes, f"{where}[{place}]"))
        rows = [(seeds[i % len(seeds)], i // len(seeds)) for i in range(count // len(configs))]
        self.games = [game for game in rows for _ in configs]
        self.conditions = np.tile(np.arange(len(configs)), len(rows))
        latest: Any = [None] * len(configs)
        scenarios = []
        for (seed, number), condition in zip(self.games, self.conditions.tolist(), strict=True):
            latest[condition] = configs[condition].window(seed, number).resolve(like=latest[condition])
            scenarios.append(latest[condition])
        self.population = Population(scenarios, threads)
        self.window_s = 0.0  # wall time of one of its windows, lately

    def play(self, policies: Sequence[str], played: Callable[[], None] = lambda: None) -> np.ndarray:
        """Runs policies by name on all windows: OUTCOME[policies, windows]."""
        return self.population.play([Candidate(self.policy(policy)) for policy in policies], played=played)

    def policy(self, name: str) -> Policy:
        """A policy by name; after `retention=` the environment's base policy with this rule for its prefix cache."""
        return policy_named(name, self._base_policy)


class Search:
    """One search: its space, windows and memory.

    Args:
        config: of the command, with its checked part `agent` (`agents.search.command.checked`).
        out: the run's folder.
        resumed: continues the search in that folder.
        started: when the call began, on the monotonic clock; `max_wall_s` counts from then, to the end of the summary.
    """

    def __init__(self, config: Mapping[str, Any], out: Path, resumed: bool, started: float) -> None:
        agent = config["agent"]
        self.config, self.agent, self.out, self.seed = config, agent, out, int(config["seed"])
        listed = agent["conditions"] or [{}]
        self.names = [_name_of(one) for one in listed]
        self.training, self.validation = self._fields(listed)
        self.space = space_of(self.training.policy(agent["policy"]), agent)
        self.numbers = len(self.space.names)
        self.ships = np.zeros(self.numbers)
        self.memory = read_memory(out, self.space.names) if resumed else Memory(None, self.ships)
        self.steps = rungs(int(agent["windows"]), int(agent["halving"]["first"]), float(agent["halving"]["keep"]),
                           len(self.names))
        self.stopped_by, self.signal = "", {}  # and by which signal
        self.playing_s, self.played = 0.0, 0  # seconds of simulation, and windows, of this call
        self.until = math.inf if config["max_wall_s"] is None else started + float(config["max_wall_s"])
        self._bar: Bar = Bar()
        self._share = 0.0  # progress of a generation by one window

    def _fields(self, conditions: Sequence[Mapping[str, Any]]) -> list[Field]:
        env, agent = dict(self.config["env"]), self.agent
        check_ours(env, "search")
        changes = {"window_s": self.config["window_s"], "warmup_s": agent["warmup_s"]}
        shorter = {**env, **{key: value for key, value in changes.items() if value is not None}}
        if int(count := agent["validation"]["windows"]) % len(conditions):
            raise UserError(f"agent.validation.windows={count} must be a multiple of the {len(conditions)} conditions, "
                            "which get equally many windows")
        return [Field(settings, conditions, "agent.conditions", split_seeds(env, split), int(windows), agent["threads"])
                for settings, split, windows in ((shorter, "train", agent["windows"]), (env, "validation", count))]

    # --- Running
    # ---------------------------------------------------------------------------------------------------
    def play(self, on: Field, numbers: np.ndarray, places: np.ndarray | None = None, limited: bool = True
             ) -> np.ndarray:
        """Runs candidates (c, n) on windows: OUTCOME[c, windows]; a candidate that cannot run violates everywhere."""
        started = time.monotonic()
        found = on.population.play([self.space.candidate(number) for number in numbers],
                                   None if places is None else places.tolist(),
                                   lambda: self._bar.advance(self._share),
                                   lambda: limited and not self._fits(0), refuse=bool(numbers.any()))
        taken_s = time.monotonic() - started
        self.playing_s, self.played = self.playing_s + taken_s, self.played + found.size
        latest = taken_s / found.size
        on.window_s = latest if on.window_s == 0.0 else 0.5 * (on.window_s + latest)
        return found

    def play_whole(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Runs one candidate on all windows of training and of validation, without time limit: OUTCOME[windows]."""
        return [self.play(one, numbers[None], limited=False)[0] for one in (self.training, self.validation)]

    def speed(self) -> float:
        """Windows per second of simulation, in this call."""
        return self.played / max(self.playing_s, 1e-9)

    def begin(self) -> None:
        """Runs the default policy, and the reference, on all windows.

        Raises:
            UserError: one of them cannot run here.
        """
        agent, limit, fields = self.agent, float(self.config["validation"]["violation_limit"]), (
            self.training, self.validation)
        self.own_outcomes = others = self.play_whole(self.ships)
        if agent["reference"] is not None:
            others = [one.play([agent["reference"]])[0] for one in fields]
        limits = (float(agent["training_limit"]) * limit, limit)
        self.judges = [Judge(other, one.conditions, mine, agent["score"])
                       for one, other, mine in zip(fields, others, limits, strict=True)]
        self.own = [judge.judged(mine) for judge, mine in zip(self.judges, self.own_outcomes, strict=True)]
        if self.memory.judged is None:
            self.memory.judged = self.own[1]
            self._tabulate(self.own[0], self.own[:1], float(agent["sigma"]), 0.0)
            self._tabulate_kept()

    def _tabulate(self, best: Judged, found: Sequence[Judged], sigma: float, moved: float) -> None:
        """Adds a generation's row to the table."""
        memory = self.memory
        memory.rows.append({
            "generation": memory.generation, "restart": memory.restarts, "candidates": memory.candidates,
            "windows": memory.played, "best_score": best.score, "best_service": best.service,
            "best_violation_rate": best.violation_rate, "best_violation_upper_limit": best.violation_upper_limit,
            "best_feasible": best.excess <= 0.0, "median_score": float(np.median([one.score for one in found])),
            "feasible_share": float(np.mean([one.excess <= 0.0 for one in found])), "sigma": sigma, "moved": moved})

    def _tabulate_kept(self) -> None:
        judged = self.memory.judged
        assert judged is not None
        self.memory.rows[-1] |= {"kept_score": judged.score, "kept_feasible": judged.excess <= 0.0}

    # --- Generations -------------------------------------------------------------------------------------------------
    def _population(self) -> int:
        """Candidates of a generation: as configured, or 4 + 3 ln n (Hansen 2016), even; doubled by each restart."""
        given = self.agent["population"]
        count = 4 + math.floor(3 * math.log(self.numbers)) if given is None else int(given)
        return max(4, count + count % 2) * 2**self.memory.restarts

    def _begin_method(self) -> Cma:
        """Starts CMA-ES at the best numbers so far; after each restart with twice the population (IPOP)."""
        memory, agent = self.memory, self.agent
        seed = int(np.random.SeedSequence([self.seed, 19, memory.restarts]).generate_state(1)[0])
        return Cma(memory.best, float(agent["sigma"]), self.space.bounds, self._population(), seed)

    def _generation(self) -> None:
        """Runs one generation.

        Raises:
            Stopped: the time is over; the caller must restore the memory.
        """
        memory, judge = self.memory, self.judges[0]
        method = memory.method = memory.method or self._begin_method()
        drawn = method.ask()
        windows = self._windows_of(len(drawn))
        self._share = 1.0 / windows
        values, outcome, whole = self._halved(drawn)
        memory.played += windows
        found = [judge.judged(one) for one in outcome]
        values[whole] = [judge.worth(one) for one in found]
        method.tell(drawn, values)
        first = int(np.argmax(values[whole]))
        best = whole[first]
        if memory.contender is None or values[best] > memory.contender[0]:
            memory.contender = (float(values[best]), drawn[best].copy())
        memory.candidates += len(drawn)
        memory.generation += 1
        self._tabulate(found[first], found, method.sigma, float(np.linalg.norm(method.mean)) / math.sqrt(self.numbers))

    def _survivors(self, population: int) -> list[int]:
        """The number of candidates left at each step of the halving."""
        keep = float(self.agent["halving"]["keep"])
        return [max(2, math.ceil(population * keep**turn)) for turn in range(len(self.steps))]

    def _windows_of(self, population: int) -> int:
        """The total number of windows of a generation."""
        return int(np.dot(self._survivors(population), np.diff(self.steps, prepend=0)))

    def _halved(self, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs a generation by successive halving.

        Returns:
            The candidates' values (dropped ones behind all others), float64[c]; the outcomes of
            those that ran on all windows; and their indices.
        """
        places = np.arange(len(self.training.conditions))
        left, values = np.arange(len(drawn)), np.zeros(len(drawn))
        outcome = self.play(self.training, drawn, places[: self.steps[0]])
        for turn, (after, count) in enumerate(zip(self.steps[1:], self._survivors(len(drawn))[1:], strict=True)):
            before = self.steps[turn]
            worth = self.judges[0].quick(outcome, places[:before], len(places))
            values[left] = worth - UNPLAYED * (len(self.steps) - 1 - turn)
            ahead = np.sort(np.argsort(-worth, kind="stable")[:count])
            left = left[ahead]
            more = self.play(self.training, drawn[left], places[before:after])
            outcome = np.concatenate([outcome[ahead], more], axis=1)
        return values, outcome, left

    # --- Validation --------------------------------------------------------------------------------------------------
    def _validate(self) -> None:
        """Runs the best candidate since the last validation and the mean of the distribution on validation windows.
        Keeps one that is better than the best so far, and on training windows not behind the default."""
        memory = self.memory
        if memory.contender is None or memory.method is None:
            return
        assert memory.judged is not None
        numbers = np.stack([memory.contender[1], memory.method.mean])
        self._share = 0.0
        own, held = (self.play(one, numbers, limited=False) for one in (self.training, self.validation))
        memory.played += own.size + held.size
        row, better = memory.rows[-1], False
        for name, one, mine, other in zip(("best", "mean"), numbers, own, held, strict=True):
            trained, found = self.judges[0].judged(mine), self.judges[1].judged(other)
            row |= {f"validation_{name}_{quantity}": getattr(found, quantity)
                    for quantity in ("score", "violation_rate", "violation_upper_limit")}
            row[f"training_{name}_score"] = trained.score
            if found.order > memory.judged.order and trained.order >= self.own[0].order:
                memory.best, memory.judged, better = one.copy(), found, True
        memory.contender = None
        memory.waited = 0 if better else memory.waited + 1
        self._tabulate_kept()

    def _restart_or_stop(self) -> None:
        """Restarts after long without a gain or if CMA-ES has converged; stops when no restart is left."""
        memory = self.memory
        converged = memory.method is not None and memory.method.converged
        if memory.waited < int(self.agent["validation"]["patience"]) and not converged:
            return
        if memory.restarts >= int(self.agent["restarts"]):
            self.stopped_by = "converged" if converged else "patience"
        else:
            memory.restarts, memory.waited, memory.method = memory.restarts + 1, 0, None

    # --- The whole ---------------------------------------------------------------------------------------------------
    def run(self, log: Callable[[Search], None]) -> None:
        """Searches until the budget is used up, and keeps the best; `log` is called after each generation."""
        every = int(self.agent["validation"]["every"])
        text = f"{self.agent['name']}: default {self.space.policy.searched.name}"
        with progress(text, self.agent["generations"]) as bar:
            self._bar = bar
            bar.advance(float(self.memory.generation))
            self.begin()
            saved = self.write()
            try:
                while not self._over():
                    bar.text(self._words())
                    self._generation()
                    method = self.memory.method
                    if self.memory.generation % every == 0 or (method is not None and method.converged):
                        self._validate()
                        self._restart_or_stop()
                    saved = self.write()
                    log(self)
            except (KeyboardInterrupt, Stopped) as error:
                self.memory = pickle.loads(saved)
                self.stopped_by = "max_wall_s" if isinstance(error, Stopped) else "interrupt"
                self.signal = signal_of(error) if isinstance(error, KeyboardInterrupt) else {}
            if self.stopped_by != "interrupt" and self.memory.contender is not None:
                bar.text("validating")
                self._validate()
                self.write()
                log(self)

    def _fits(self, windows: int) -> bool:
        """Whether training windows fit into the time, beside a validation of two candidates and the kept one's run."""
        whole_s = sum(len(one.conditions) * one.window_s for one in (self.training, self.validation))
        return time.monotonic() + SPARE * (windows * self.training.window_s + 3 * whole_s) < self.until

    def _over(self) -> bool:
        """Whether the budget is used up; a generation starts only if all that follows it fits, too."""
        total = self.agent["generations"]
        if not self.stopped_by and total is not None and self.memory.generation >= int(total):
            self.stopped_by = "generations"
        if not self.stopped_by and not self._fits(self._windows_of(self._population())):
            self.stopped_by = "max_wall_s"
        return bool(self.stopped_by)

    def _words(self) -> str:
        """The state of the search, in a line."""
        memory, total = self.memory, self.agent["generations"]
        assert memory.judged is not None
        best = format_score(self.agent["score"], memory.judged.score, self.agent["reference"] or "the default")
        return (f"{self.space.policy.searched.name}: generation {memory.generation + 1}"
                + (f" of {total}" if total else "") + f", best so far {best}")

    def write(self) -> bytes:
        """Writes the search's files; returns its memory, pickled."""
        memory, out = pickle.dumps(self.memory), self.out
        write_policy(out, self.space.candidate(self.memory.best))
        with atomic_write(out / GENERATIONS_FILE) as path, open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.memory.rows)
        state = {"schema": _SCHEMA, "names": self.space.names, "memory": memory}
        with atomic_write(out / STATE_FILE) as path:  # last, so that a resumed search finds all other files complete
            path.write_bytes(pickle.dumps(state))
        return memory


def _name_of(condition: Mapping[str, Any]) -> str:
    """A condition's own name, or its changes in words."""
    changes = ", ".join(f"{key}={value}" for key, value in condition.items())
    return str(condition.get("name") or changes or "unchanged")


def rungs(windows: int, first: int, keep: float, step: int) -> list[int]:
    """Returns the number of windows that candidates have run before each selection (successive halving); the last is
    all of them.

    Args:
        windows: number of all windows.
        first: windows before the first selection, at least.
        keep: share of candidates kept at each selection; 1: no selection.
        step: number of conditions, of which all results are multiples.
    """
    listed, count = [], float(first)
    while keep < 1.0 and count < windows:
        listed.append(min(windows, -(-round(count) // step) * step))
        count /= keep
    return [*dict.fromkeys(one for one in listed if one < windows), windows]


def read_memory(folder: Path, names: Sequence[str]) -> Memory:
    """Reads the memory of the search in a folder; `names` are its numbers.

    Raises:
        UserError: the state is missing, damaged, or of another search or version of this package.
    """
    def load(path: Path) -> Any:
        state = pickle.loads(path.read_bytes())
        if tuple(state["names"]) != tuple(names):
            raise ValueError("other parameters of the policy, which has changed since")
        return {**state, "memory": pickle.loads(state["memory"])}

    return read_pickled(folder / STATE_FILE, _SCHEMA, load)["memory"]


def write_policy(folder: Path, candidate: Candidate) -> None:
    """Writes a candidate as a policy's YAML, with its weights beside it."""
    policy, group = candidate.policy.searched, "retention" if candidate.policy.kept_by else "policy"
    lines: dict[str, Any] = {"name": policy.name}
    if policy.file:  # a registered policy's name suffices
        path, colon, wanted = policy.file.partition(":")
        lines["file"] = os.path.relpath(path, folder) + colon + wanted
    known = get_policy(policy.file or policy.name, group=group).values
    lines |= {key: value for key, value in policy.values.items() if known.get(key) != value and key != "weights"}
    if candidate.weights is not None:
        assert policy.layout is not None
        write_weights(folder / SEARCHED_WEIGHTS, policy.layout, candidate.weights)
        lines["weights"] = SEARCHED_WEIGHTS
    with atomic_write(folder / SEARCHED_FILE) as temporary:
        temporary.write_text("# Found by a search (ooco-gym train); summary.json describes it.\n"
                             + yaml.safe_dump(lines, sort_keys=False, width=120), encoding="utf-8")
