"""HyGen and Echo on pools of prefill and decode instances, beside their papers' algorithms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_made_states import RELAXED, STRICT, Desk
from harness import Episode, Setup, play

from ooco_gym.sim import state as s

MEAN = 1000  # context of most requests below


# --- HyGen ----------------------------------------------------------------------------------------------------------
def hygen_ps(desk: Desk, lengths: list[int]) -> float:
    """Equation 1 for a decode step."""
    if not lengths:
        return 0.0
    v, tokens = desk.policy.values, sum(lengths)
    return (v["decode_base_ps"] + v["decode_token_ps"] * tokens + v["decode_square_ps"] * tokens**2
            + v["decode_request_ps"] * len(lengths))


def algorithm_1(desk: Desk, online: list[int], offline: list[int], budget_ps: float) -> list[int]:
    """Lines 6 to 12: which offline decodes enter, by their places."""
    batch, left = list(online), budget_ps - hygen_ps(desk, online)
    taken = []
    for place, length in enumerate(offline):
        more = hygen_ps(desk, [*batch, length]) - hygen_ps(desk, batch)
        if more <= left:
            left -= more
            batch.append(length)
            taken.append(place)
    return taken


@pytest.mark.parametrize("budget_of", [10, 14, 17, 30])
def test_hygen_fills_the_step_up_to_its_budget_and_skips_what_does_not_fit(budget_of: int) -> None:
    online, offline = [MEAN] * 10, [500, 9000, 300, 4000, 200, 700, 30_000, 100]
    desk = Desk("hygen_pd", {"online": online, "offline": offline})
    budget_ps = hygen_ps(desk, [MEAN] * budget_of)
    desk = Desk("hygen_pd", {"online": online, "offline": offline}, tpot_s=budget_ps / 0.9 / s.PS_PER_S * (1 + 1e-9))
    expected = algorithm_1(desk, online, offline, budget_ps * (1 + 1e-9))
    count = desk.ask("compose")
    if count == s.ALL:
        assert expected == list(range(len(offline)))
        return
    assert desk.picked(count)[:10] == desk.slots["online"]
    assert [slot - 10 for slot in desk.picked(count)[10:]] == expected
    assert 0 < len(expected) < len(offline) or budget_of == 10


def test_hygen_holds_prefill_back_where_the_request_could_not_go_on() -> None:
    lengths = {"online": [MEAN] * 30, "waiting": [800, 300]}
    step_ps = hygen_ps(Desk("hygen_pd", lengths), [MEAN] * 30 + [800])
    for tpot_s, answer in ((1.001 * step_ps / 0.9 / s.PS_PER_S, 0), (0.999 * step_ps / 0.9 / s.PS_PER_S, s.HOLD)):
        desk = Desk("hygen_pd", lengths, tpot_s=tpot_s)
        assert desk.ask("gate", desk.slots["waiting"], RELAXED) == answer
    queued = Desk("hygen_pd", lengths)
    queued.state.push_queues[s.OFFLINE]["head"] = queued.slots["waiting"][1]
    assert queued.ask("gate", queued.slots["waiting"][:1], RELAXED) == s.HOLD, "a prefilled request waits already"


@pytest.mark.parametrize("policy", ["hygen_pd", "echo_pd"])
def test_a_long_offline_prefill_makes_room_within_the_budget_and_loses_nothing(policy: str) -> None:
    state = play(Setup(((0.0, 30_000, 4, False), (0.1, 200, 4, True)), policy=policy, window_s=(0.0, 30.0))).state
    wait_ps = int(state.requests["first_token_ps"][1]) - int(state.requests["arrival_ps"][1])
    assert wait_ps < 0.5 * 2.0 * s.PS_PER_S < state.requests["first_token_ps"][0]
    assert state.totals.interruptions == 1 and state.totals.wasted_tokens == 0
    assert (state.requests["status"] == s.FINISHED).all()


# --- Echo -----------------------------------------------------------------------------------------------------------
def echo_ps(desk: Desk, lengths: list[int]) -> float:
    """T_d of 5.2, with a constant, the requests and all contexts."""
    if not lengths:
        return 0.0
    v = desk.policy.values
    return (v["base_ps"] + v["request_ps"] * len(lengths) + v["context_ps"] * sum(lengths)
            + v["longest_ps"] * max(lengths))


def greedy(desk: Desk, online: list[int], last: list[int], others: list[int], limit_ps: float) -> list[int]:
    """4.1 by trying all: edits of the last batch, the best ratio of tokens to time each; lengths of offline ones.

    Slots are told apart by their lengths, which differ.
    """
    inside, outside = list(last), list(others)
    while inside and echo_ps(desk, online + inside) > limit_ps:
        inside.remove(max(inside, key=lambda r: 1.0 / echo_ps(desk, online + [o for o in inside if o != r])))
    if len(inside) < len(last):
        return sorted(inside)
    while outside:
        batch = online + inside
        best = max(outside, key=lambda r: (len(batch) + 1) / echo_ps(desk, [*batch, r]))
        then = echo_ps(desk, [*batch, best])
        improves = not batch or (len(batch) + 1) / then >= len(batch) / echo_ps(desk, batch)
        if then > limit_ps or not improves:
            break
        inside.append(best)
        outside.remove(best)
    return sorted(inside)


@pytest.mark.parametrize("seed", range(5))
def test_echo_plans_what_trying_all_of_them_would(seed: int) -> None:
    draws = np.random.default_rng(seed)
    online = draws.integers(100, 3000, draws.integers(0, 12)).tolist()
    offline = np.unique(draws.integers(50, 8000, 16)).tolist()
    draws.shuffle(offline)
    last = offline[: int(draws.integers(0, 14))]
    lengths = {"online": online, "offline": offline}
    step_ps = echo_ps(Desk("echo_pd", lengths), online + offline[: int(draws.integers(1, len(offline) + 1))])
    desk = Desk("echo_pd", lengths)
    limit_ps = 1.0001 * step_ps if online else s.NEVER
    requests = desk.state.requests
    requests["arrival_ps"] = 0
    requests["ttft_slo_ps"] = round(limit_ps)
    requests["generated_tokens"], requests["tpot_slo_ps"] = 0, 1
    slots = [desk.slots["offline"][offline.index(one)] for one in last]
    desk.state.members[s.BATCH, STRICT, : len(slots)] = slots
    desk.state.instances["running"][STRICT] = len(slots)
    picked = desk.picked(desk.ask("compose"))
    expected = greedy(desk, online, last, [one for one in offline if one not in last], limit_ps)
    found = sorted(int(requests["prompt_tokens"][slot]) for slot in picked if not requests["urgent"][slot])
    assert set(desk.slots["online"]) <= set(picked)
    assert found == (expected if online or expected else found[:1])


def test_echo_takes_the_tightest_slack_of_the_online_requests() -> None:
    """5.1: D(i) = TTFT + (i - 1) TPOT since the arrival, here at 0.9 TPOT; a request behind it is owed one TPOT."""
    lengths = {"online": [MEAN] * 2, "offline": [2000]}
    desk = Desk("echo_pd", lengths)
    step_ps, requests = echo_ps(desk, [MEAN, MEAN, 2000]), desk.state.requests
    requests["generated_tokens"] = 10
    requests["prompt_tokens"] -= 10
    requests["ttft_slo_ps"] = 2 * s.PS_PER_S
    requests["tpot_slo_ps"] = round(0.5 * step_ps)
    line_ps = 2 * s.PS_PER_S + round(10 * 0.9 * 0.5 * step_ps)
    for share, count in ((1.001, 3), (0.999, 2)):
        desk.state.clock.now_ps = line_ps - round(share * step_ps)
        assert desk.ask("compose") == count
    desk.state.clock.now_ps = 5 * s.PS_PER_S
    for share, count in ((1.001, 3), (0.999, 2)):
        requests["tpot_slo_ps"] = round(share * step_ps / 0.9)
        assert desk.ask("compose") == count


def test_echo_keeps_memory_free_for_bursts() -> None:
    """4.2: an offline request joins only if mean plus two sigmas of the online requests to come would still fit."""
    lengths = {"online": [MEAN], "waiting": [1600]}
    for rate, free_blocks, answer in ((0.0, 101, 0), (4.0, 101, s.HOLD), (4.0, None, 0)):
        desk = Desk("echo_pd", lengths, reserve_tokens=MEAN, slo_share=1.0)
        state = desk.state
        state.observed.online_rate_slow, state.observed.online_output_mean = rate, 100.0
        at_a_time = rate * 100.0 * 0.05
        reserve = max(0, int((at_a_time + 2.0 * math.sqrt(at_a_time)) * 63) - 63 - 1)
        state.instances["free_blocks"][STRICT] = 101 + reserve if free_blocks is None else free_blocks
        assert desk.ask("gate", desk.slots["waiting"], RELAXED) == answer
        if free_blocks is None:
            state.instances["free_blocks"][STRICT] -= 1
            assert desk.ask("gate", desk.slots["waiting"], RELAXED) == s.HOLD


def test_echo_takes_prompts_of_the_batchs_own_bucket() -> None:
    """6: buckets by length; in the nearest one the best benefit per time, which grows to where attention counts."""
    waiting = [3000, 100, 900, 700, 5000]
    desk = Desk("echo_pd", {"online": [600] * 4, "waiting": waiting})
    v = desk.policy.values
    ratios = [one / max(v["square_ps"] * one**2 + v["token_ps"] * one, v["least_ps"]) for one in waiting]
    assert desk.ask("gate", desk.slots["waiting"], RELAXED) == max((2, 3), key=lambda i: ratios[i])
    empty = Desk("echo_pd", {"waiting": waiting})
    assert empty.ask("gate", empty.slots["waiting"], RELAXED) == int(np.argmax(ratios))


@pytest.mark.parametrize("worth", [0.0, 1.0])
def test_echo_evicts_whom_the_rest_is_best_off_without(worth: float) -> None:
    offline = [700, 300, 900]
    desk = Desk("echo_pd", {"offline": offline}, prefill_benefit=worth)
    ratios = []
    for i, length in enumerate(offline):
        rest = [one for j, one in enumerate(offline) if j != i]
        ratios.append((2.0 - worth * length) / echo_ps(desk, rest))
    assert desk.ask("evict", desk.slots["offline"]) == int(np.argmax(ratios)) == (1 if worth else 2)


# --- Both -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["hygen_pd", "echo_pd"])
def test_roles_are_fixed_and_online_work_does_not_wait_for_offline_work(policy: str) -> None:
    rows = tuple(sorted([(0.05 * i, 1500, 30, True) for i in range(40)] + [(0.0, 1500, 30, False)] * 10))
    state = play(Setup(rows, policy=policy, window_s=(0.0, 30.0))).state
    online, first = state.requests["online"] == 1, state.requests["first_token_ps"]
    assert np.median(np.sort(first[~online])[1:]) > np.median(first[online])
    assert state.instances["decode_steps"][RELAXED] == 0
    assert (state.requests["status"] == s.FINISHED).all()


@pytest.mark.parametrize("policy", ["hygen_pd", "echo_pd"])
def test_offline_work_leaves_the_tpot_of_online_work_alone(policy: str) -> None:
    """What online priority with its cap does not manage: no step with offline requests in it beyond the budget."""
    rows = tuple(sorted([(0.2 * i, 700, 200, True) for i in range(60)] + [(0.0, 900, 600, False)] * 120))
    episode = Episode(Setup(rows, policy=policy, window_s=(0.0, 12.0), rules={"tpot_s": 0.03, "max_batch": 512}))
    state = episode.play().state
    assert state.totals.tpot_misses == 0
    assert state.requests["generated_tokens"][state.requests["online"] == 0].sum() > 2000
