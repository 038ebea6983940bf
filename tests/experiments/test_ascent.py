"""Play-outs of a moved parameter: copies go on as the episode would, and a move does what its parameter does."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.adaptive_deadline import SET
from experiments.common.probing import PARAMETERS, Probes, both_ways, slopes
from experiments.studies.generalist_ascent import Walk, step_of, walk
from experiments.studies.generalist_learn import COLUMNS, Context, constants
from ooco_gym.runtime.batching_features import ENGINE
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import Simulation

SCENARIO = Scenario(cluster="mixed_7b", workload="azure_conv", online_rate=3.0, duration_s=60.0, warmup_s=10.0, seed=5,
                    offline={"mode": "backlog"})
CHUNK = PARAMETERS.index("offline_chunk")


def running(interval_s: float = 1.0) -> Simulation:
    simulation = Simulation(SCENARIO, {"name": "adaptive_deadline", "interval_s": interval_s})
    simulation.advance(20.0)
    return simulation


def test_what_is_not_moved_goes_on_as_the_episode_does() -> None:
    """A policy of constants has the same settings whenever it looks: the copy ends where the episode ends."""
    simulation = running()
    before = simulation.state.totals.service_ps, simulation.state.clock.now_ps
    probes = Probes(simulation, 3, threads=2)
    found = probes.play([(0, 0, 0.0), (1, CHUNK, 0.0), (0, CHUNK, -3.0)], 10.0, 10.0)
    assert (simulation.state.totals.service_ps, simulation.state.clock.now_ps) == before
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    simulation.advance(30.0)
    again = Probes(simulation, 1).play([(0, 0, 0.0)], 0.0, 0.0)
    assert found[0] == pytest.approx(again[0], rel=1e-12)


def test_a_move_is_in_steps_of_its_parameter_and_ends() -> None:
    simulation = running()
    probes = Probes(simulation, 1)
    probes.play([(1, CHUNK, -1.0)], 5.0, 1.0)
    moved, own = probes._copies[0].memory[:, SET + CHUNK], simulation.state.memory[:, SET + CHUNK]
    assert moved[0] == own[0] and moved[1] == pytest.approx(own[1] * np.exp(-0.7))
    probes.play([(1, CHUNK, -1.0)], 5.0, 8.0)
    assert probes._copies[0].memory[1, SET + CHUNK] == own[1]


def test_looking_at_the_figures_leaves_the_episode_alone() -> None:
    simulation = running()
    memory = simulation.state.memory.copy()
    figures = Probes(simulation, 1).figures(0)
    assert figures.shape == (len(ENGINE),) and np.isfinite(figures).all() and figures.any()
    assert np.array_equal(memory, simulation.state.memory)


def test_slopes_are_differences_of_what_moves_are_worth() -> None:
    played = np.zeros((1 + 2 * len(PARAMETERS), 2))
    assert len(both_ways(0, range(len(PARAMETERS)), 1.0)) == len(played)
    played[:, 0] = 5.0
    played[1:3, 0], played[1, 1] = (7.0, 4.0), 2.0
    first, second, violated = slopes(played, lambda service, violations: service - 0.25 * violations)
    assert first[0] == pytest.approx((6.5 - 4.0) / 2) and second[0] == pytest.approx(6.5 + 4.0 - 10.0)
    assert violated[0] == 1.0 and not first[1:].any() and not second[1:].any()


def test_a_step_goes_up_the_slope_at_these_figures() -> None:
    """Worth is a parabola in one parameter, whose top follows one figure: an undamped step reaches it."""
    random = np.random.default_rng(0)
    figures = random.random((400, len(COLUMNS) - 1))
    place = COLUMNS.index("kv_free")
    top = 2.0 * (figures[:, place] - 0.5)
    played = np.full((400, 1 + 2 * len(PARAMETERS), 2), 10.0)
    played[:, :, 1] = 0.0
    played[:, 0, 0] = 10.0 - top**2
    played[:, 1, 0], played[:, 2, 0] = 10.0 - (1.0 - top) ** 2, 10.0 - (1.0 + top) ** 2
    walks = [Walk(figures[:200], played[:200], 100.0, 0, 50, 0.0), Walk(figures[200:], played[200:], 100.0, 0, 50, 0.0)]
    context = Context(COLUMNS[:-1], figures, np.zeros(400, int))
    settings = {"ridge": 1e-6, "damping": 1.0, "reach": 100.0}
    weights = context.weights(step_of(walks, np.array([8.0, 8.0]), context, settings)).reshape(len(PARAMETERS), -1)
    assert np.allclose(np.c_[figures, np.ones(400)] @ weights[0], top, atol=0.02)
    assert np.allclose(weights[1:], 0.0)


def test_a_walk_samples_every_engine_and_prices_are_of_its_window() -> None:
    settings = {"every_s": 15.0, "hold_s": 4.0, "horizon_s": 10.0, "step": 1.0}
    one = walk(SCENARIO, constants(np.zeros(len(PARAMETERS))), settings)
    assert one.figures.shape == (4, len(ENGINE)) and one.played.shape == (4, 1 + 2 * len(PARAMETERS), 2)
    assert one.arrived > 0 and one.service > 0.0
    assert one.simulated_s == pytest.approx(4 * 10.0 * one.played.shape[1] + 10.0 + 60.0)
    again = walk(SCENARIO, constants(np.zeros(len(PARAMETERS))), settings)
    assert np.array_equal(one.played, again.played) and np.array_equal(one.figures, again.figures)
