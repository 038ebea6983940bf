"""Learned policies where a policy's name is expected: `learned:FOLDER`, or several, one for each decision.

`learned:ZOO/gating/seed_3+ZOO/eviction/seed_1` is the partner that they were trained beside, with these decisions taken
by the network of the folder that was trained on them; names of the zoo stand for its folders. They decide in the
measured window; warm-up and drain are the partner's, as in the environments. `…@ooco:interrupt=slack` at the end says
beside whom, instead of the partner of their training. Where a folder holds several training runs, as `seed_<n>`, the
one that was best on validation is taken, as the zoo ships it, and a note says which. `…@tuned:ooco` is for
`compare sustain=true`, which puts OOCO there as it is tuned for each cell.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.environments import OBSERVATION_KEYS, ClusterStack
from agents.evaluation.players import LearnedPolicy, digest_of, environment_of, is_policy, load_learned, runs_of
from experiments.common.policies import BESIDE, LEARNED, tuned_partner
from experiments.common.store import PLAYED_BY_SEATS, code_digest
from ooco_gym.envs import buffers as b
from ooco_gym.envs.colocation import ColocationEnv
from ooco_gym.envs.config import EpisodeConfig, episode_config
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError
from ooco_gym.policy import spelling_of
from ooco_gym.scenario import Scenario
from ooco_gym.sim.driver import Run
from ooco_gym.workload import workload_peak_start_s
from ooco_gym.zoo import placed

JOIN = "+"
DEFAULT_PARTNER = "ooco"
CLOCKED = ("levels", "interval_s")  # of `conf/env`


def identity_of(policy: str) -> dict[str, Any]:
    """What the answers of learned policies depend on beside the partner: the files of each, and the code that observes
    and decides (the simulator's own is in the key of every answer)."""
    return {"learned": [digest_of(folder) for folder in _folders(policy)], "decisions": list(team_of(policy).seats),
            "code": code_digest(PLAYED_BY_SEATS)}


class Team(NamedTuple):
    """Who takes which decision, and the policy that takes all others."""

    partner: str
    seats: dict[str, LearnedPolicy]
    clocks: dict[str, Any]  # levels and interval that who packs was trained with


class _Whole(EpisodeConfig):
    """Episodes of one scenario as it is: the window is the scenario's own."""

    def window(self, seed: int, number: int) -> Scenario:
        return self.scenario


def _folders(policy: str) -> list[str]:
    named = policy.removeprefix(LEARNED).partition(BESIDE)[0]
    folders = [part.strip() for part in named.split(JOIN) if part.strip()]
    if not folders:
        raise UserError(f"'{policy}' names no folder; expected such as {LEARNED}ZOO/gating/seed_1")
    return [_run_of(placed(folder)) for folder in folders]


@lru_cache(maxsize=64)
def _run_of(folder: str) -> str:
    """The one policy that a folder stands for.

    Raises:
        UserError: it holds several training runs, none of them with a validation.
    """
    runs = runs_of(folder)
    if len(runs) == 1:
        return next(iter(runs.values()))
    from agents.zoo.ship import best_run

    best, validation, _ = best_run(Path(folder))
    if multiprocessing.parent_process() is None:  # said once, not by every worker
        warnings.warn(f"{LEARNED}{folder} holds {len(runs)} training runs; {best.name} is taken, the best on "
                      f"validation (reward {validation['reward']:.4g}, violations {validation['violation_rate']:.2%})",
                      UserWarning, stacklevel=2)
    return str(best)


@lru_cache(maxsize=4)
def team_of(policy: str) -> Team:
    """Who takes which decision under a name.

    Raises:
        UserError: a folder that is no policy, a decision that two of them take, different partners, or one that is
            still to be tuned.
    """
    if tuned_partner(policy):
        raise UserError(f"'{policy}': who is tuned where is known to ooco-gym compare sustain=true alone; name the "
                        f"partner with its parameters, as {BESIDE}{tuned_partner(policy)}:interrupt=slack")
    seats: dict[str, LearnedPolicy] = {}
    partners: list[str] = []
    clocks: dict[str, Any] = {}
    for folder in _folders(policy):
        if not is_policy(Path(folder)):
            raise UserError(f"'{policy}': '{folder}' is no learned policy; expected the out of train or export, joined "
                            f"by {JOIN}")
        one = load_learned(folder)
        for decision in one.decisions:
            if decision in seats:
                raise UserError(f"'{policy}': two of its policies were trained to {decision}; leave one of them out")
            seats[decision] = one
        trained = environment_of(folder)
        partners.append(_partner_of(trained))
        if "pack" in one.decisions:
            clocks = {key: trained[key] for key in CLOCKED if key in trained}
    asked = policy.partition(BESIDE)[2].strip()
    if len(set(partners)) > 1 and not asked:
        raise UserError(f"'{policy}': its policies were trained beside different partners, {' and '.join(partners)}; "
                        f"name the one they are to play beside, as {BESIDE}{partners[0]} at the end")
    if "control" in seats:
        raise UserError(f"'{policy}': a policy of Control turns all parameters at once, and cannot play beside others")
    return Team(asked or partners[0], seats, clocks)


def _partner_of(trained: Mapping[str, Any]) -> str:
    """The partner of a policy's training, spelled; the default where nothing is said."""
    return spelling_of(trained.get("partner") or DEFAULT_PARTNER)


def simulate_learned(scenario: Scenario, policy: str) -> Run:
    """Plays a scenario with learned policies in their seats.

    Args:
        scenario: what is played.
        policy: `learned:FOLDER+FOLDER…`, or with `@PARTNER` at the end.

    Raises:
        UserError: a policy that was trained on other observations than its seat has here.
    """
    begun = time.perf_counter()
    team = team_of(policy)
    episodes = _episodes(scenario, team)
    episodes.start(0, scenario.seed, 0)
    player = _Player(episodes, team.seats)
    while episodes.open(0):
        player.act()
        episodes.step(0, 1)
    simulation = episodes.simulations[0]
    assert simulation is not None
    state = simulation.state
    return Run(simulation.scenario, policy, dict(simulation.policy.values), state.requests, state.instances, state.itl,
               simulation.window_s, state.totals.as_dict(), {},
               simulation.events(), simulation.now_s, time.perf_counter() - begun, simulation.notes)


def _episodes(scenario: Scenario, team: Team) -> Episodes:
    decisions = [one for one in ColocationEnv.decisions if one.name in team.seats]
    start_s = scenario.start_s
    if start_s is None:
        start_s = workload_peak_start_s(scenario.workload, scenario.duration_s)
    sizes = {one.shapes["candidates"][0] for one in team.seats.values()}
    config = episode_config("colocation", scenario=scenario.with_(start_s=start_s), partner=team.partner,
                            window_s=scenario.duration_s, candidates=max(sizes), **team.clocks)
    whole = _Whole(**{field.name: getattr(config, field.name) for field in fields(EpisodeConfig)})
    episodes = Episodes(whole, decisions, 1)
    shapes = {"cluster": episodes.buffers.cluster[0].shape, "candidates": episodes.buffers.candidates[0].shape,
              "action_mask": episodes.buffers.mask[0].shape, "decision": episodes.buffers.decision[0].shape}
    for name, one in team.seats.items():
        if {key: tuple(shape) for key, shape in shapes.items()} != one.shapes:
            raise UserError(f"the policy that was trained to {name} expects observations {one.shapes}, but side by "
                            f"side these policies see {shapes}; train them with the same number of candidates, and of "
                            "levels")
    return episodes


class _Player:
    """Answers each open decision by the policy in its seat."""

    def __init__(self, episodes: Episodes, seats: Mapping[str, LearnedPolicy]) -> None:
        self._buffers = episodes.buffers
        self._seats = {one.kind: seats[one.name] for one in episodes.decisions}
        self._stacks: dict[int, ClusterStack] = {}

    def act(self) -> None:
        buffers = self._buffers
        kind = int(buffers.turns[0, b.KIND])
        if kind == b.NO_KIND:
            buffers.actions[0] = b.PARTNER_ACTION
            return
        one = self._seats[kind]
        observation = {"cluster": buffers.cluster[0], "candidates": buffers.candidates[0],
                       "action_mask": buffers.mask[0], "decision": buffers.decision[0]}
        parts = self._seen(kind, one, observation)
        buffers.actions[0] = int(one.decide(*(part[None] for part in parts))[0])

    def _seen(self, kind: int, one: LearnedPolicy, observation: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The observation as its policy takes it, with the last cluster vectors where it looks back."""
        history = one.history
        if history > 1:
            stack = self._stacks.get(kind)
            if stack is None:
                stack = self._stacks[kind] = ClusterStack(history)
                observation = stack.begin(observation)
            else:
                observation = stack.push(observation)
        return [observation[key] for key in OBSERVATION_KEYS]
