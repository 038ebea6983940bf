"""Memory gate: without a reserve `slack`, and with one no prefill that leaves less memory free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import setups
from harness import play
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.memory_gate import COLUMNS, LAYOUT
from ooco_gym import Scenario, Simulation, get_policy, simulate
from ooco_gym.policy.weights import write_weights
from ooco_gym.sim import state as s

TIGHT: dict[str, Any] = {"workload": "azure_conv", "cluster": "pair_llama2_7b_40g", "slo": "chat", "rate_scale": 0.03,
                         "offline": {"mode": "rate", "rate": 1.0}, "duration_s": 240.0}


def constant(folder: Path, value: float) -> str:
    """A file of weights whose constant alone is not 0."""
    weights = np.zeros(LAYOUT.size)
    weights[COLUMNS.index("constant")] = value
    write_weights(folder / "constant.npz", LAYOUT, weights)
    return str(folder / "constant.npz")


def by_hand(simulation: Simulation, reserve: float, growth: float) -> bool:
    """Whether the first of the candidates may be prefilled, from the records of all members."""
    state, instance = simulation.state, int(simulation.state.pending.instance)
    spec, block = state.instances[instance], int(state.config.block_tokens)
    members = state.members[s.OFFLINE, instance, : spec["offline_members"]]
    residents = int((state.requests["status"][members] == s.RESIDENT).sum())
    if residents == 0:
        return True
    request = state.requests[state.picks[0]]
    need = -(-(int(request["prompt_tokens"]) + int(request["generated_tokens"]) + 1) // block)
    grown = growth * float(state.observed.offline_output_mean) * (residents + 1) / block
    return (int(spec["free_blocks"]) - need - grown) / int(spec["total_blocks"]) >= reserve


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_without_reserve_and_weights_it_is_slack(data: st.DataObject) -> None:
    theirs = data.draw(setups(policies=("slack",), random_rules=False))
    ours = replace(theirs, policy="memory_gate", values=(*theirs.values, ("reserve", 0.0)))
    expected, found = play(theirs), play(ours)
    assert np.array_equal(expected.state.requests, found.state.requests)
    assert expected.state.totals.as_dict() == found.state.totals.as_dict()


@pytest.mark.parametrize(("reserve", "growth"), [(0.15, 0.0), (0.0, 0.6), (0.1, 0.3)])
def test_a_prefill_starts_only_where_the_share_stays_free(reserve: float, growth: float) -> None:
    simulation = Simulation(Scenario(**TIGHT), f"memory_gate:gate=always,reserve={reserve},gate_growth={growth}",
                            outside=("gate",))
    started, held = 0, 0
    while simulation.advance() and (started < 60 or held < 60):
        answer = simulation.rule_answer()
        assert (answer == 0) == by_hand(simulation, reserve, growth)
        assert answer in (0, s.HOLD_UNTIL_CHANGE)
        started, held = started + (answer == 0), held + (answer != 0)
        simulation.answer(answer)
    assert started >= 60 and held >= 60


def test_the_densest_candidate_starts() -> None:
    many: dict[str, Any] = {**TIGHT, "offline": {"mode": "rate", "rate": 4.0}, "lengths": {"predictor": "true"}}
    simulation = Simulation(Scenario(**many),
                            "memory_gate:gate=always,choose=density,gate_window=16", outside=("gate",))
    state, seen, other = simulation.state, 0, 0
    while simulation.advance() and seen < 60:
        answer, found = simulation.rule_answer(), state.picks[: int(state.pending.count)].copy()
        if answer >= 0:
            rows = state.requests[found]
            left = (rows["output_tokens"] - rows["generated_tokens"]).astype(float)
            context = (rows["prompt_tokens"] + rows["generated_tokens"]).astype(float)
            dense = rows["service_ps"] / (left * (context + 0.5 * left))
            assert dense[answer] >= 0.999 * dense.max()
            seen, other = seen + 1, other + (answer > 0)
        simulation.answer(answer)
    assert seen == 60 and other >= 10


def test_what_slack_holds_is_held() -> None:
    simulation = Simulation(Scenario(**TIGHT), "memory_gate:gate=never", outside=("gate",))
    seen = 0
    while simulation.advance() and seen < 20:
        assert simulation.rule_answer() < 0
        seen += 1
        simulation.answer(0)
    assert seen == 20


def test_a_constant_weight_is_a_reserve(tmp_path: Path) -> None:
    by_rule = simulate(Scenario(**TIGHT), "memory_gate:reserve=0.125")
    by_weight = simulate(Scenario(**TIGHT), f"memory_gate:reserve=0,weights={constant(tmp_path, -0.125)}")
    assert np.array_equal(by_rule.requests["finish_ps"], by_weight.requests["finish_ps"])
    assert by_rule.counters["evictions"] == by_weight.counters["evictions"]


def test_where_memory_binds_fewer_are_evicted_and_more_finish() -> None:
    loose, tight = (simulate(Scenario(**TIGHT), name) for name in ("slack", "memory_gate"))
    assert tight.counters["evictions"] < 0.5 * loose.counters["evictions"]
    finished = [int(((one.requests["online"] == 0) & (one.requests["finish_ps"] > 0)).sum()) for one in (tight, loose)]
    assert finished[0] > finished[1]


def test_all_else_is_slack() -> None:
    points = ("route", "interrupt", "gate", "compose", "evict", "pull")
    pairs = zip(points, get_policy("memory_gate").hooks(), get_policy("slack").hooks(), strict=True)
    assert {point for point, one, other in pairs if one is not other} == {"gate"}
    ours, theirs = get_policy("memory_gate").values, get_policy("slack").values
    assert {name: ours[name] for name in theirs} == dict(theirs)
