"""The engine's OOCO, base P/D and online priority, beside their specifications."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.sim import state as s
from tests.baselines.hand_made_states import RELAXED, STRICT, Desk
from tests.sim.harness import Episode, Setup, play


# --- ooco_xllm ------------------------------------------------------------------------------------------------------
def test_engine_fills_in_queue_order_up_to_098_of_the_slo() -> None:
    offline = [9000, 100, 5000, 300, 2000, 700]
    lengths = {"online": [1000] * 20, "offline": offline}
    desk = Desk("ooco_xllm", lengths)
    for taken in range(1, len(offline)):
        low = desk.latency_s([1000] * 20 + offline[:taken])
        high = desk.latency_s([1000] * 20 + offline[:taken + 1])
        one = Desk("ooco_xllm", lengths, estimate_every=1, tpot_s=(low + high) / 2 / 0.98)
        assert one.picked(one.ask("compose")) == list(range(20 + taken))


@pytest.mark.parametrize("residents,waiting,starts", [(3, 4, True), (3, 5, False), (0, 50, True), (7, 1, False)])
def test_engine_gate_opens_below_saturation(residents: int, waiting: int, starts: bool) -> None:
    desk = Desk("ooco_xllm", {"relaxed": [500] * residents, "waiting": [400] * waiting}, bs_sat=8)
    answer = desk.ask("gate", desk.slots["waiting"][:8], RELAXED)
    assert answer == (0 if starts else s.HOLD_UNTIL_CHANGE)


def test_engine_preempts_prefill_but_not_decode() -> None:
    desk = Desk("ooco_xllm", {"online": [500]})
    for activity, answer in ((s.PREFILL_OFFLINE, s.STOP), (s.DECODE, s.KEEP)):
        desk.state.instances[RELAXED]["activity"] = activity
        assert desk.ask("interrupt", instance=RELAXED, request=0) == answer


def test_engine_pulls_one_at_a_time_and_no_faster_than_every_100_ms() -> None:
    rows = [(0.0, 300, 600, False)] * 30 + [(0.0, 300, 600, True)] * 3
    episode, answer, pulls = Episode(Setup(tuple(sorted(rows)), policy="ooco_xllm", window_s=(0.0, 20.0)),
                                     outside=("pull",)), s.ASK, []
    while episode.advance(None, answer) == s.ASKED:
        answer = episode.rule_answer()
        assert answer in (s.FULL, 0, 1)
        if answer == 1:
            assert episode.state.instances[STRICT]["arriving_pulls"] == 0
            pulls.append(int(episode.state.clock.now_ps))
    assert len(pulls) > 10
    assert np.diff(pulls).min() >= s.PS_PER_S // 10


def test_engine_pulls_only_below_90_percent_of_memory_and_of_the_slo() -> None:
    lengths = {"online": [1000] * 30, "relaxed": [100]}
    latency_s = Desk("ooco_xllm", lengths).latency_s([1000] * 30)
    assert Desk("ooco_xllm", lengths, tpot_s=latency_s / 0.89).ask("pull") == 1
    assert Desk("ooco_xllm", lengths, tpot_s=latency_s / 0.91).ask("pull") == s.FULL
    full = Desk("ooco_xllm", lengths)
    full.state.instances[STRICT]["free_blocks"] = int(0.09 * full.state.instances[STRICT]["total_blocks"])
    assert full.ask("pull") == s.FULL


# --- base P/D -------------------------------------------------------------------------------------------------------
def test_base_pd_serves_in_order_of_arrival_whatever_the_class() -> None:
    rows = tuple((0.01 * i, 1500, 20, i % 3 == 0) for i in range(24))
    state = play(Setup(rows, policy="base_pd", window_s=(0.0, 30.0))).state
    first = state.requests["first_token_ps"]
    assert (np.diff(first) >= 0).all()
    assert (state.requests["urgent"] == 1).all()
    assert state.totals.interruptions == 0
    assert state.instances["decode_steps"][RELAXED] == 0, "roles are fixed"


# --- Online priority ------------------------------------------------------------------------------------------------
def test_online_priority_caps_the_batch_in_order_of_joining() -> None:
    lengths = {"online": [500] * 3, "offline": [400] * 4}
    desk = Desk("online_priority", lengths, batch_cap=5)
    assert desk.picked(desk.ask("compose")) == [0, 1, 2, 3, 4]
    low = Desk("online_priority", lengths, batch_cap=2)
    assert low.picked(low.ask("compose")) == [0, 1, 2], "all online requests, whatever the cap"
    assert Desk("online_priority", lengths, batch_cap=7).ask("compose") == s.ALL


def test_online_priority_at_a_hard_cap_lets_whoever_decodes_go_on() -> None:
    lengths = {"online": [500] * 3, "offline": [400] * 2}
    desk = Desk("online_priority", lengths, batch_cap=4, at_cap="wait")
    desk.state.requests["generated_tokens"][:3] = [1, 1, 2]
    assert desk.picked(desk.ask("compose")) == [3, 4, 2, 0], "offline ones, the online one that decodes, the first new"


def test_online_priority_holds_offline_back_while_online_work_waits() -> None:
    """Offline prefill only with no online request waiting, offline decode only below the cap, roles fixed."""
    rows = tuple(sorted([(0.05 * i, 1500, 30, True) for i in range(40)] + [(0.0, 1500, 30, False)] * 10))
    state = play(Setup(rows, policy="online_priority", values=(("batch_cap", 4),), window_s=(0.0, 30.0))).state
    online, first = state.requests["online"] == 1, state.requests["first_token_ps"]
    later = np.sort(first[~online])[1:]
    assert np.median(later) > np.median(first[online])
    assert state.instances["decode_steps"][RELAXED] == 0
    assert (state.requests["status"] == s.FINISHED).all()
