"""`slack` pulls only what fits when all have grown; `least_urgent` evicts the request that arrived last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ooco_gym import Scenario, Simulation, get_policy, simulate
from ooco_gym.sim import state as s

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


def test_who_is_pulled_counts_with_all_that_it_has_generated() -> None:
    late, always = Simulation(Scenario(**TIGHT), "slack"), Simulation(Scenario(**TIGHT), "slack")
    assert late.state.config.rules_flush == 1
    always.state.config.rules_flush = 0  # every record is written before each decision
    for simulation in (late, always):
        simulation.advance()
    assert np.array_equal(late.state.requests["finish_ps"], always.state.requests["finish_ps"])
    assert np.count_nonzero(late.state.requests["migrations"]) > 0


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


@pytest.mark.parametrize("name", ["slack", "least_urgent"])
def test_all_else_is_ooco(name: str) -> None:
    changed = {"slack": {"interrupt", "compose", "pull"}, "least_urgent": {"evict"}}[name]
    points = ("route", "interrupt", "gate", "compose", "evict", "pull")
    pairs = zip(points, get_policy(name).hooks(), get_policy("ooco").hooks(), strict=True)
    assert {point for point, one, other in pairs if one is not other} == changed
    ours, theirs = get_policy(name).values, get_policy("ooco").values
    assert {key for key in theirs if ours[key] != theirs[key]} <= {"interrupt"}
