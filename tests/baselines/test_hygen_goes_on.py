"""HyGen and HyGen* never stand still while there is something that they may do; beliefs reach what policies fit."""

from __future__ import annotations

import numpy as np
from harness import DEFAULT_RULES, Episode, Setup, machines_of

from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s
from ooco_gym.sim.build import Rules, facts_of

SEATS = ("max_num_seqs", 63)
MIXED = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),)}


def test_a_budget_that_no_decode_keeps_stops_nobody() -> None:
    """The budget lets prompts in, whose decodes then exceed it one by one: they go on, one at a time."""
    rows = tuple((0.0, 90_000, 5, False) for _ in range(4))
    setup = Setup(rows, policy="hygen", window_s=(0.0, 3000.0), values=(("latency_budget_s", 1.0), SEATS), **MIXED)
    fitted = get_policy("hygen", dict(setup.values))
    coefficients = fitted.prepare(fitted, facts_of(machines_of(setup), setup.trace(), Rules(**DEFAULT_RULES)))
    decode_ps = coefficients["decode_token_ps"] * 90_000 + coefficients["decode_ps"]
    chunk_ps = coefficients["prefill_ps"] + 64 * coefficients["prefill_token_ps"]
    assert 0.0 < chunk_ps < decode_ps
    budget_s = (coefficients["one_ps"] + chunk_ps) / s.PS_PER_S
    state = Episode(setup.with_(values=(("latency_budget_s", budget_s), SEATS))).play().state
    assert (state.requests["status"] == s.FINISHED).all()


def test_a_fixed_rate_goes_on_for_hours() -> None:
    """Late in a run the time at which the next is due rounds to just before it: the alarm must ring again."""
    rows = tuple((0.0, 200, 5, False) for _ in range(310))
    setup = Setup(rows, policy="hygen_star", window_s=(0.0, 15_000.0), values=(("offline_qps", 0.0207), SEATS), **MIXED)
    state = Episode(setup).play().state
    assert (state.requests["status"] == s.FINISHED).sum() >= 309


def test_what_policies_fit_is_what_is_believed() -> None:
    setup = Setup(((0.0, 100, 5, True),), **MIXED)
    true = facts_of(machines_of(setup), setup.trace(), Rules(**DEFAULT_RULES))
    believed = facts_of(machines_of(setup), setup.trace(), Rules(**DEFAULT_RULES, belief_factor=3.0))
    assert np.array_equal(believed.strict.decode_lines, 3 * true.strict.decode_lines)
    policy = get_policy("hygen", {"latency_budget_s": 0.02})
    ratio = policy.prepare(policy, believed)["one_ps"] / policy.prepare(policy, true)["one_ps"]
    assert abs(ratio - 3.0) < 1e-4  # fitted parameters have six digits
