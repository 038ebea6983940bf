"""`slack` pulls what fits when all have grown, `least_urgent` evicts the last, `memory_gate` keeps a share free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym import Scenario, Simulation, get_policy, simulate
from ooco_gym.sim import state as s
from tests.sim.episodes import setups
from tests.sim.harness import play

TIGHT: dict[str, Any] = {"workload": "azure_conv", "cluster": "pair_llama2_7b_40g", "slo": "chat", "rate_scale": 0.03,
                         "offline": {"mode": "rate", "rate": 1.0}, "duration_s": 240.0}


def counters(policy: str) -> dict[str, int]:
    return simulate(Scenario(**TIGHT), policy).counters


def test_without_growth_it_is_ooco_that_interrupts_by_slack() -> None:
    first, second = (simulate(Scenario(**TIGHT), name) for name in ("slack:growth=0", "ooco:interrupt=slack"))
    assert first.counters == second.counters
    assert np.array_equal(first.requests["finish_ps"], second.requests["finish_ps"])


def test_where_memory_is_short_fewer_pulls_are_followed_by_fewer_evictions() -> None:
    loose, tight = counters("slack:growth=0"), counters("slack")
    assert 0 < tight["migrations"] < loose["migrations"]
    assert tight["evictions"] < loose["evictions"]


def test_a_pull_fits_when_all_have_grown_to_mean_lengths() -> None:
    simulation = Simulation(Scenario(**TIGHT), "slack", outside=("pull",))
    plain, state, seen, cut = get_policy("slack:growth=0"), simulation.state, 0, 0
    while simulation.advance() and (seen < 30 or not cut):
        instance = state.instances[int(state.pending.instance)]
        state.params[:] = plain.vector()
        before = simulation.rule_answer()
        state.params[:] = simulation.policy.vector()
        answer = simulation.rule_answer()
        assert answer <= max(before, 0) or before <= 0
        cut += 0 < answer < before or (before > 0 and answer == s.FULL)
        if answer > 0:
            seen += 1
            block = int(state.config.block_tokens)
            offline, online = float(state.observed.offline_output_mean), float(state.observed.online_output_mean)
            residents = instance["urgent_decodable"] * min(offline, online)
            residents += (instance["decodable"] - instance["urgent_decodable"]) * offline
            pulled = [state.requests[slot] for slot in state.picks[:answer]]
            grown = sum(int(one["prompt_tokens"]) + int(one["generated_tokens"]) + offline for one in pulled)
            assert residents + grown <= int(instance["free_blocks"]) * block + block * (answer + 1)
        simulation.answer(answer)
    assert seen >= 30 and cut > 0


def test_steps_beyond_the_bound_are_banked_and_nobody_joins_after_them() -> None:
    tpot_ps, margin = 0.04 * s.PS_PER_S, 0.9
    scenario = Scenario(workload="azure_conv", rate_scale=0.085, slo={"ttft_s": 2.0, "tpot_s": 0.04},
                        offline={"mode": "rate", "rate": 8.0}, duration_s=120.0)
    simulation = Simulation(scenario, f"slack:bank=2,slo_margin={margin},pull_margin=0", outside=("compose",))
    state, beyond, kept = simulation.state, 0, 0
    while simulation.advance() and (beyond < 200 or kept < 20):
        answer, place = simulation.rule_answer(), int(state.pending.instance)
        spec = state.instances[place]
        if spec["role"] == s.STRICT:
            members = [state.members[row, place, : spec[f"{name}_members"]]
                       for row, name in ((s.URGENT, "urgent"), (s.OFFLINE, "offline"))]
            rows = state.requests[np.concatenate(members) if answer == s.ALL else state.picks[:answer]]
            context = int((rows["prompt_tokens"].astype(np.int64) + rows["generated_tokens"]).sum())
            base, slope, other_base, other_slope = state.decode_lines[spec["belief"], len(rows)]
            latency = max(base + slope * context, other_base + other_slope * context)
            online = rows[rows["online"] == 1]
            due = online["first_token_ps"] + online["generated_tokens"] * online["tpot_slo_ps"]
            ahead = min(due - state.clock.now_ps, default=float(s.NEVER))
            joins = spec["arriving"] > spec["arriving_pulls"] or state.push_queues[s.URGENT]["head"] >= 0
            banked = 0.0 if joins else margin * min(2.0 * tpot_ps, ahead)
            assert latency <= max(margin * tpot_ps, banked) or len(online) == len(rows)
            beyond += latency > margin * tpot_ps and len(online) < len(rows)
            kept += joins and answer != s.ALL
        simulation.answer(answer)
    assert beyond >= 200 and kept >= 20


def test_it_stops_offline_work_only_where_the_first_token_would_be_late() -> None:
    assert counters("slack")["interruptions"] < counters("slack:interrupt=always")["interruptions"]
    assert counters("slack:interrupt=never")["interruptions"] == 0


def test_the_least_urgent_is_who_arrived_last() -> None:
    simulation = Simulation(Scenario(**TIGHT), "least_urgent", outside=("evict",))
    seen = 0
    while simulation.advance() and seen < 50:
        state = simulation.state
        candidates = state.picks[: int(state.pending.count)]
        answer = simulation.rule_answer()
        arrivals = state.requests["arrival_ps"][candidates]
        assert arrivals[answer] == arrivals.max()
        seen += len(candidates) > 1
        simulation.answer(answer)
    assert seen == 50


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
    policy = str(theirs.policy).replace("slack", "memory_gate")  # and what is beside it
    ours = replace(theirs, policy=policy, values=(*theirs.values, ("reserve", 0.0)))
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


def test_where_memory_binds_fewer_are_evicted_and_more_finish() -> None:
    loose, tight = (simulate(Scenario(**TIGHT), name) for name in ("slack", "memory_gate"))
    assert tight.counters["evictions"] < 0.5 * loose.counters["evictions"]
    finished = [int(((one.requests["online"] == 0) & (one.requests["finish_ps"] > 0)).sum()) for one in (tight, loose)]
    assert finished[0] > finished[1]
