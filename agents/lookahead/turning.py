"""`deadline` whose parameters are turned by looking ahead: what following the engine could be worth, at most.

Every `every_s` each instance is looked at: nothing moved, and each parameter of `ADJUSTED` moved by each of some steps,
is kept for `every_s` and played on for `horizon_s` (`agents.lookahead.probing`); what scores best is done. The score is
service (with what is credited for unfinished work) less `price` reference GPU-seconds for each violation. On the true
future it is clairvoyant: it knows arrivals and lengths, which no policy does. On `samples` drawn futures (`Futures`) it
knows what the workload's model knows. An action of `Batching-v0` lasts an iteration; these last seconds, which is what
a setting of `deadline` means, and what `adaptive_deadline` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from agents.lookahead.probing import PARAMETERS, Probes, turn_now
from agents.lookahead.rollout import Futures
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Simulation

POLICY, TURNS = "adaptive_deadline", "deadline"
_TIE = 1e-9
_FUTURES = 8  # traces from which futures are drawn


def policy_of(partner: Any) -> dict[str, Any]:
    """`adaptive_deadline` without weights, of the parameters of a partner that is `deadline`.

    Raises:
        UserError: the partner is another policy.
    """
    policy = get_policy(partner)
    if policy.name != TURNS:
        raise UserError(f"turning looks ahead over the parameters of '{TURNS}'; this environment's partner is "
                        f"'{policy.name}': take partner={TURNS}, or turning=null")
    return {"name": POLICY, **policy.values}


def turned(scenario: Scenario, partner: Any, settings: Mapping[str, Any], price: float, samples: int = 0,
           seed: int = 0) -> dict[str, float]:
    """Plays a window by looking ahead.

    Args:
        scenario: the window.
        partner: `deadline`, with its parameters.
        settings: `every_s`, `horizon_s` and `steps` (by how many of its steps a parameter may be moved).
        price: reference GPU-seconds of offline service that a violation is held to cost.
        samples: futures that are drawn at a look; 0: the true one.
        seed: of the drawn futures.

    Returns:
        `offline_reference_gpu_s_per_s`, `violation_rate`, `looks` and `moves` (looks after which something was moved).

    Raises:
        UserError: futures of these requests cannot be drawn.
    """
    simulation = Simulation(scenario, policy_of(partner))
    options = [(0, 0.0), *((place, float(step)) for place in range(len(PARAMETERS)) for step in settings["steps"])]
    futures = Futures(SimpleNamespace(simulations=[simulation], windows=[(int(scenario.seed), seed)]), seed,  # type: ignore[arg-type]  # what it reads of episodes
                      _FUTURES) if samples else None
    probes = Probes(simulation, len(options), template=simulation.state if futures is None else futures.state)
    now_s, end_s = simulation.window_s
    every_s, horizon_s, looks, moved = float(settings["every_s"]), float(settings["horizon_s"]), 0, 0
    while now_s < end_s:
        simulation.advance(now_s)
        for instance in range(len(simulation.state.instances)):
            moves = [(instance, place, step) for place, step in options]
            drawn = [simulation.state] if futures is None else futures.draw(simulation.state, samples)
            worth = np.zeros(len(moves))
            for state in drawn:
                played = probes.play(moves, every_s, min(horizon_s, end_s - now_s), state)
                worth += played[:, 0] - price * played[:, 1]
            best = int(np.argmax(worth > worth.max() - _TIE))
            turn_now(simulation, moves[best], now_s + every_s)
            looks, moved = looks + 1, moved + (best > 0)
        now_s += every_s
    simulation.advance()
    totals = simulation.state.totals
    return {"offline_reference_gpu_s_per_s": totals.service_ps / PS_PER_S / scenario.duration_s,
            "violation_rate": totals.violations / max(1, totals.online_arrived), "looks": looks, "moves": moved}
