"""Plays a scenario with learned policies in their seats (`experiments.common.policies` says what their names mean)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agents.evaluation.players import LearnedPolicy
from agents.settings import limit_torch_threads
from experiments.common import policies
from experiments.common.policies import Team
from ooco_gym.envs import buffers as b
from ooco_gym.envs.colocation import ColocationEnv
from ooco_gym.envs.config import EpisodeConfig, episode_config
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError
from ooco_gym.metrics.summary import summarise
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import Run


def learned_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Plays a scenario; returns its summary with the CPU time it took, `cpu_s`. A worker process runs this."""
    limit_torch_threads()
    begun = time.process_time()
    summary = summarise(simulate_learned(scenario, policy))
    return {**summary, "cpu_s": time.process_time() - begun}


def simulate_learned(scenario: Scenario, policy: str) -> Run:
    """Plays a scenario with learned policies in their seats.

    Args:
        scenario: what is played.
        policy: `learned:FOLDER+FOLDER…`, or with `@PARTNER` at the end.

    Raises:
        UserError: a policy that was trained on other observations than its seat has here.
    """
    begun = time.perf_counter()
    team = policies.team_of(policy)
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
               simulation.window_s, state.totals.as_dict(), {}, simulation.events(), simulation.now_s,
               time.perf_counter() - begun, simulation.notes)


class _Whole(EpisodeConfig):
    """Episodes of one scenario as it is: the window is the scenario's own."""

    def window(self, seed: int, number: int) -> Scenario:
        return self.scenario


def _episodes(scenario: Scenario, team: Team) -> Episodes:
    decisions = [one for one in ColocationEnv.decisions if one.name in team.seats]
    start_s, duration_s = scenario.window()
    sizes = {one.shapes["candidates"][0] for one in team.seats.values()}
    config = episode_config("colocation", scenario=scenario.with_(start_s=start_s, duration_s=duration_s),
                            partner=team.partner, window_s=duration_s, candidates=max(sizes), **team.clocks)
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

    def act(self) -> None:
        buffers = self._buffers
        kind = int(buffers.turns[0, b.KIND])
        if kind == b.NO_KIND:
            buffers.actions[0] = b.PARTNER_ACTION
            return
        parts = (buffers.cluster, buffers.candidates, buffers.mask, buffers.decision)
        buffers.actions[0] = int(self._seats[kind].decide(*(part[:1] for part in parts))[0])
