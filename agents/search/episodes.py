"""`ooco-gym train agent=cma`: search over whole episodes, beside the gradients of `agents.learning`.

A generation's candidates (`agents.search.space`) play the same windows (`ooco_gym.population`), are judged against a
reference in these windows (`agents.search.judging`), and CMA-ES (`agents.search.optimisers`) is told. Candidates
that are behind after a few windows play no more of them. The policy as it ships is the first candidate of all; every
few generations the best and the middle of the distribution play windows of the validation split, and what is best there
is kept, if it is not behind the policy as it ships on its own windows either (docs/search.md).
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agents.environments import check_ours, make_env, split_seeds
from agents.search import kept
from agents.search.judging import UNPLAYED, Judge, Judged, by_condition, rungs, said
from agents.search.optimisers import Cma, population_of
from agents.search.space import Space, space_of
from ooco_gym.envs.config import EpisodeConfig, under
from ooco_gym.errors import UserError, signal_of
from ooco_gym.policy import get_policy, policy_of, spelling_of
from ooco_gym.population import Candidate, Population, Stopped
from ooco_gym.report.terminal import Bar, progress

FIXED = ("layer_resume", "prefix_caching", "swap_overlap", "bidirectional", "reserved_blocks", "engine_version",
         "fitted", "profile_seed", "profile_windows", "profile_duration_s", "profile_steps")  # as in conf/tune.yaml
SPARE = 1.1  # what is foreseen of a time is taken so many times


@dataclass
class Memory:
    """Where a search stands: all that the rest of it depends on.

    Attributes:
        method: the distribution that is drawn from; None before the first generation.
        generation: how many are over.
        restarts: how often it has begun anew.
        candidates: how many were asked for, the policy as it ships included.
        waited: validations since the last that found something better.
        best: the numbers that are kept; 0 is the policy as it ships.
        judged: what `best` came to on validation windows.
        contender: the best of all windows since the last validation, with its worth.
        rows: of the table of generations.
    """

    method: Cma | None
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
    """The windows of one split under all conditions: condition after condition, so that the first few have them all.

    Attributes:
        conditions: int64[windows].
        games: (seed, number) of each window.
    """

    def __init__(self, configs: Sequence[EpisodeConfig], seeds: Sequence[int], count: int, threads: int | None) -> None:
        rows = [(seeds[i % len(seeds)], i // len(seeds)) for i in range(count // len(configs))]
        self.games = [game for game in rows for _ in configs]
        self.conditions = np.tile(np.arange(len(configs)), len(rows))
        latest: Any = [None] * len(configs)
        scenarios = []
        for (seed, number), condition in zip(self.games, self.conditions.tolist(), strict=True):
            latest[condition] = configs[condition].window(seed, number).resolve(like=latest[condition])
            scenarios.append(latest[condition])
        self.population = Population(scenarios, threads)


class Search:
    """One search: what it turns, its windows, its memory.

    Args:
        config: of the command, checked.
        agent: its part `agent`, checked.
        out: where the run is kept.
        memory: where it stood; None: at the beginning.
    """

    def __init__(self, config: Mapping[str, Any], agent: Mapping[str, Any], out: Path, memory: Memory | None) -> None:
        self.config, self.agent, self.out, self.seed = config, agent, out, int(config["seed"])
        self.policy = get_policy(agent["policy"])
        self.space: Space = space_of(self.policy, agent, FIXED)
        self.names, self.training, self.validation = fields_of(config, agent)
        if agent["standardise"]:
            from agents.search.standardising import standards  # which compiles

            played = [one.scenario for one in self.training.population.windows[: int(agent["windows"])]]
            self.space = self.space.standardised(*standards(played, self.policy))
        self.numbers = len(self.space.names)
        self.ships = np.zeros(self.numbers)
        self.steps = rungs(int(agent["windows"]), int(agent["halving"]["first"]), float(agent["halving"]["keep"]),
                           len(self.names))
        self.memory = memory or Memory(None, self.ships)
        self.started, self.window_s, self.stopped_by = time.monotonic(), 0.0, ""
        self.signal: dict[str, str] = {}  # the one that stopped it
        self.playing_s, self.played = 0.0, 0  # seconds of playing, and windows, of this call
        self.threads = self.training.population.threads
        limit = config.get("max_wall_s")
        self.until = math.inf if limit is None else self.started + float(limit)
        self._bar: Bar = Bar()
        self._share = 0.0  # of a generation that a window is

    # --- Playing ---------------------------------------------------------------------------------------------------
    def play(self, field_: Field, numbers: np.ndarray, places: np.ndarray | None = None, limited: bool = True
             ) -> np.ndarray:
        """Plays windows with candidates (c, n): OUTCOME[c, windows]; one that cannot play violates everywhere."""
        started = time.monotonic()
        found = field_.population.play([self.space.candidate(one) for one in numbers],
                                       None if places is None else places.tolist(),
                                       lambda: self._bar.advance(self._share),
                                       (lambda: time.monotonic() > self.until) if limited else (lambda: False),
                                       refuse=bool(numbers.any()))
        taken_s = time.monotonic() - started
        self.playing_s, self.played = self.playing_s + taken_s, self.played + found.size
        self.window_s = taken_s / found.size if self.window_s == 0.0 else 0.5 * (self.window_s + taken_s / found.size)
        return found

    def speed(self) -> float:
        """Windows a second of playing, in this call."""
        return self.played / max(self.playing_s, 1e-9)

    def simulated_per_s(self) -> float:
        """Seconds of measured windows a second of playing."""
        simulated_s = self.training.population.simulated_s + self.validation.population.simulated_s
        return simulated_s / max(self.playing_s, 1e-9)

    @staticmethod
    def names_of(agent: Mapping[str, Any]) -> tuple[str, ...]:
        """The numbers that a search with these settings turns."""
        return space_of(get_policy(agent["policy"]), agent, FIXED).names

    def begin(self) -> None:
        """Plays the policy as it ships, and the reference, through all windows.

        Raises:
            UserError: one of them cannot play here.
        """
        named, limit = self.agent["reference"], float(self.config["validation"]["violation_limit"])
        ships = self.ships[None]
        self.judges, self.own, self.own_outcomes = [], [], []
        for one, share in ((self.training, float(self.agent["training_limit"])), (self.validation, 1.0)):
            mine = self.play(one, ships, limited=False)[0]
            other = mine
            if named is not None:
                other = one.population.play([Candidate(get_policy(named))])[0]
            judge = Judge(other, one.conditions, share * limit, self.agent["score"], self.agent["price"])
            self.judges.append(judge)
            self.own.append(judge.judged(mine))
            self.own_outcomes.append(mine)
        memory = self.memory
        if memory.judged is None:
            memory.judged = self.own[1]
            first = self.own[0]
            memory.rows.append({
                "generation": 0, "restart": 0, "candidates": 1, "windows": 0, "best_score": first.score,
                "best_service": first.service, "best_violation_rate": first.violation_rate,
                "best_violation_upper_limit": first.violation_upper_limit, "best_feasible": first.excess <= 0.0,
                "median_score": first.score, "feasible_share": float(first.excess <= 0.0),
                "sigma": float(self.agent["sigma"]), "moved": 0.0,
                "kept_score": memory.judged.score, "kept_feasible": memory.judged.excess <= 0.0})

    # --- Generations -------------------------------------------------------------------------------------------------
    def places_of(self, generation: int) -> np.ndarray:
        """The windows that a generation plays: all, or some of each condition, drawn anew for each generation."""
        groups, count = len(self.names), int(self.agent["windows"]) // len(self.names)
        rows = len(self.training.conditions) // groups
        if count >= rows:
            return np.arange(rows * groups)
        random = np.random.default_rng((self.seed, 17, generation))
        chosen = np.stack([random.permutation(rows)[:count] * groups + one for one in range(groups)], axis=1)
        return chosen.ravel()

    def begin_method(self) -> Cma:
        """A method at the numbers that are kept so far; after each restart with twice the population (IPOP)."""
        memory = self.memory
        population = population_of(self.agent, self.numbers) * 2**memory.restarts
        seed = int(np.random.SeedSequence([self.seed, 19, memory.restarts]).generate_state(1)[0])
        return Cma(memory.best, float(self.agent["sigma"]), self.space.bounds, population, seed,
                   bool(self.agent["separable"]), bool(self.agent["lr_adapt"]))

    def step(self) -> None:
        """One generation.

        Raises:
            Stopped: the time is over; the memory must be put back to where it was.
        """
        memory = self.memory
        if memory.method is None:
            memory.method = self.begin_method()
        places, drawn = self.places_of(memory.generation), memory.method.ask()
        self._share = 1.0 / self.windows_of(len(drawn))
        values, outcome, whole = self.halved(drawn, places)
        memory.played += self.windows_of(len(drawn))
        judge = self.judges[0]
        found = [judge.judged(one, places) for one in outcome]
        values[whole] = [judge.worth(one) for one in found]
        memory.method.tell(drawn, values)
        best = whole[int(np.argmax(values[whole]))]
        first = found[whole.tolist().index(best)]
        if memory.contender is None or values[best] > memory.contender[0]:
            memory.contender = (float(values[best]), drawn[best].copy())
        memory.candidates += len(drawn)
        memory.generation += 1
        memory.rows.append({
            "generation": memory.generation, "restart": memory.restarts, "candidates": memory.candidates,
            "windows": memory.played, "best_score": first.score, "best_service": first.service,
            "best_violation_rate": first.violation_rate, "best_violation_upper_limit": first.violation_upper_limit,
            "best_feasible": first.excess <= 0.0, "median_score": float(np.median([one.score for one in found])),
            "feasible_share": float(np.mean([one.excess <= 0.0 for one in found])), "sigma": memory.method.sigma,
            "moved": float(np.linalg.norm(memory.method.mean)) / math.sqrt(self.numbers)})

    def windows_of(self, population: int) -> int:
        """How many windows a generation plays in all."""
        return sum(count * (after - before) for count, before, after in
                   zip(self.survivors(population), [0, *self.steps], self.steps, strict=False))

    def survivors(self, population: int) -> list[int]:
        """How many candidates play on at each step of the halving."""
        keep = float(self.agent["halving"]["keep"])
        return [max(2, math.ceil(population * keep**turn)) for turn in range(len(self.steps))]

    def halved(self, drawn: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Plays a generation by successive halving.

        Returns:
            What candidates are worth (those that were dropped behind all others), float64[c]; the outcome of those that
            played all windows; and which these are.
        """
        left, values, outcome = np.arange(len(drawn)), np.zeros(len(drawn)), None
        counts = self.survivors(len(drawn))
        for turn, (before, after) in enumerate(zip([0, *self.steps], self.steps, strict=False)):
            more = self.play(self.training, drawn[left], places[before:after])
            outcome = more if outcome is None else np.concatenate([outcome, more], axis=1)
            if after == self.steps[-1]:
                break
            worth = self.judges[0].quick(outcome, places[:after], len(places))
            values[left] = worth - UNPLAYED * (len(self.steps) - 1 - turn)
            ahead = np.sort(np.argsort(-worth, kind="stable")[: counts[turn + 1]])
            left, outcome = left[ahead], outcome[ahead]
        assert outcome is not None
        return values, outcome, left

    # --- Validation --------------------------------------------------------------------------------------------------
    def validate(self, limited: bool = True) -> None:
        """Plays validation windows with the best since the last time and with the middle of the distribution, and keeps
        what is better there than what is kept, and on its own windows not behind the policy as it ships.

        Raises:
            Stopped: the time is over.
        """
        memory = self.memory
        if memory.contender is None or memory.method is None:
            return
        numbers = np.stack([memory.contender[1], memory.method.mean])
        self._share = 0.0
        own = self.play(self.training, numbers, limited=limited)
        held = self.play(self.validation, numbers, limited=limited)
        memory.played += own.size + held.size
        assert memory.judged is not None
        row, better = memory.rows[-1], False
        for name, one, mine, other in zip(("best", "mean"), numbers, own, held, strict=True):
            trained, found = self.judges[0].judged(mine), self.judges[1].judged(other)
            row |= {f"validation_{name}_score": found.score, f"validation_{name}_violation_rate": found.violation_rate,
                    f"validation_{name}_violation_upper_limit": found.violation_upper_limit,
                    f"training_{name}_score": trained.score}
            if found.order > memory.judged.order and trained.order >= self.own[0].order:
                memory.best, memory.judged, better = one.copy(), found, True
        memory.contender = None
        memory.waited = 0 if better else memory.waited + 1
        row["kept_score"], row["kept_feasible"] = memory.judged.score, memory.judged.excess <= 0.0

    def after_validation(self) -> bool:
        """Begins anew where nothing better has come for long, or the method has converged; False: it is over."""
        memory, settings = self.memory, self.agent["validation"]
        converged = memory.method is not None and memory.method.converged
        if memory.waited < int(settings["patience"]) and not converged:
            return True
        if memory.restarts >= int(self.agent["restarts"]):
            self.stopped_by = "converged" if converged else "patience"
            return False
        memory.restarts, memory.waited, memory.method = memory.restarts + 1, 0, None
        return True

    # --- The whole ---------------------------------------------------------------------------------------------------
    def run(self, log: Any = None) -> None:
        """Searches until the budget is used up, and keeps the best.

        Args:
            log: called with the search after each generation; None: nothing.
        """
        total, every = self.agent["generations"], int(self.agent["validation"]["every"])
        with progress(f"{self.agent['name']}: {self.policy.name} as it ships", total) as bar:
            self._bar = bar
            bar.advance(float(self.memory.generation))
            self.begin()
            saved = kept.write(self)
            try:
                while not self.stopped_by:
                    if total is not None and self.memory.generation >= int(total):
                        self.stopped_by = "generations"
                    elif not self.time_for_another():
                        self.stopped_by = "max_wall_s"
                    if self.stopped_by:
                        break
                    bar.text(self.words())
                    self.step()
                    if self.memory.generation % every == 0 or (
                            self.memory.method is not None and self.memory.method.converged):
                        self.validate()
                        self.after_validation()
                    saved = kept.write(self)
                    if log is not None:
                        log(self)
            except (KeyboardInterrupt, Stopped) as error:
                self.memory = pickle.loads(saved)
                self.stopped_by = "max_wall_s" if isinstance(error, Stopped) else "interrupt"
                self.signal = signal_of(error) if isinstance(error, KeyboardInterrupt) else {}
            if self.stopped_by != "interrupt" and self.memory.contender is not None:
                bar.text("validating")
                self.validate(limited=False)
                kept.write(self)
                if log is not None:
                    log(self)

    def time_for_another(self) -> bool:
        """Whether another generation, and the validation after it, are over before the time is."""
        population = population_of(self.agent, self.numbers) * 2**self.memory.restarts
        more = self.windows_of(population) + 2 * (len(self.training.conditions) + len(self.validation.conditions))
        return time.monotonic() + SPARE * more * self.window_s <= self.until

    def words(self) -> str:
        """Where the search stands, in a line."""
        memory, total = self.memory, self.agent["generations"]
        words = f"{self.policy.name}: generation {memory.generation + 1}" + (f" of {total}" if total else "")
        if memory.judged is not None:
            reference = self.agent["reference"] or "what ships"
            words += f", best so far {said(self.agent['score'], memory.judged.score, reference)}"
        return words

    def of_best(self) -> list[Judged]:
        """What is kept, on all windows of training and of validation."""
        if not self.memory.best.any():
            self.best_outcomes = self.own_outcomes
            return self.own
        self.best_outcomes = [self.play(one, self.memory.best[None], limited=False)[0]
                              for one in (self.training, self.validation)]
        return [judge.judged(outcome) for judge, outcome in zip(self.judges, self.best_outcomes, strict=True)]

    def conditions_of(self, kept: bool) -> dict[str, Any]:
        """Score and violation rate on validation windows in each condition: of what is kept, or as it ships."""
        outcome = (self.best_outcomes if kept else self.own_outcomes)[1]
        return by_condition(self.names, outcome, self.validation.conditions, self.judges[1])


def fields_of(config: Mapping[str, Any], agent: Mapping[str, Any]) -> tuple[list[str], Field, Field]:
    """The names of the conditions, and the windows of training and validation.

    Raises:
        UserError: a condition that the scenario cannot have, or numbers of windows that conditions do not divide.
    """
    env = dict(config["env"])
    check_ours(env, "search")
    listed = agent["conditions"] or [{}]
    shorter = {**env, **({} if config.get("window_s") is None else {"window_s": config["window_s"]})}
    if agent["warmup_s"] is not None:
        shorter["warmup_s"] = agent["warmup_s"]
    names = [condition_name(one) for one in listed]
    fields = []
    for settings, split, key, count in ((shorter, "train", "pool", agent["pool"] or agent["windows"]),
                                        (env, "validation", "validation.windows", agent["validation"]["windows"])):
        if int(count) % len(listed):
            raise UserError(f"agent.{key}={count} must be a multiple of the {len(listed)} conditions, which play as "
                            "many windows each")
        made = make_env(settings)
        base: EpisodeConfig = made.unwrapped.config  # type: ignore[attr-defined]
        made.close()
        configs = [under(base, {key: value for key, value in one.items() if key != "name"},
                         f"agent.conditions[{place}]") for place, one in enumerate(listed)]
        fields.append(Field(configs, split_seeds(env, split), int(count), agent["threads"]))
    return names, *fields


def condition_name(condition: Mapping[str, Any]) -> str:
    """What a condition is called: its `name`, or what it changes."""
    return str(condition.get("name") or ", ".join(f"{key}={value}" for key, value in condition.items()) or "as it is")


def policy_name(config: Mapping[str, Any], agent: Mapping[str, Any]) -> str:
    """The policy that is searched: as named, or the environment's partner."""
    if agent.get("policy") is not None:
        return str(agent["policy"])
    env: Any = make_env(config["env"])
    partner = env.unwrapped.config.partner
    env.close()
    return spelling_of(partner) if not isinstance(partner, str) else policy_of(partner) and partner
