"""OOCO's rules beside the paper (arXiv 2511.21862, section 3.4), on states made by hand and in short episodes."""

from __future__ import annotations

import pytest

from ooco_gym.sim import state as s
from tests.baselines.hand_made_states import RELAXED, STRICT, Desk
from tests.sim.harness import Episode, Setup, play


# --- Algorithm 1: migration -----------------------------------------------------------------------------------------
def test_no_pull_while_a_resident_was_left_out() -> None:
    desk = Desk("ooco", {"online": [500], "offline": [500], "relaxed": [100, 200]})
    assert desk.ask("pull") > 0
    desk.state.instances[STRICT]["all_included"] = 0
    assert desk.ask("pull") == s.FULL


def test_no_pull_once_the_step_is_within_the_margin_of_the_bound() -> None:
    lengths = {"online": [1000] * 40, "relaxed": [100]}
    latency_s = Desk("ooco", lengths).latency_s([1000] * 40)
    fits = Desk("ooco", lengths, tpot_s=1.05 * latency_s / 0.85)
    assert fits.ask("pull") == 1
    assert Desk("ooco", lengths, tpot_s=0.999 * latency_s / 0.85).ask("pull") == s.FULL


def test_saturated_pulls_the_longest_that_fits() -> None:
    """Line 5: batch at saturation; memory and SLO leave room for the longest, or only for less."""
    lengths = {"online": [200] * 4, "relaxed": [100, 500, 900]}
    desk = Desk("ooco", lengths, bs_sat=4, max_pull=1)
    assert desk.ask("pull") == 1
    assert desk.picked(1) == [desk.slots["relaxed"][2]]
    tight = Desk("ooco", lengths, bs_sat=4, max_pull=1, free_tokens=640)
    assert tight.ask("pull") == 1
    assert tight.picked(1) == [tight.slots["relaxed"][1]]


def test_saturated_pulls_what_the_slo_allows() -> None:
    lengths = {"online": [2000] * 30, "relaxed": [100, 20_000, 60_000]}
    desk = Desk("ooco", lengths)
    bound_s = (desk.latency_s([2000] * 30 + [20_000]) + desk.latency_s([2000] * 30 + [60_000])) / 2
    desk = Desk("ooco", lengths, bs_sat=30, max_pull=1, tpot_s=bound_s / 0.85)
    assert desk.ask("pull") == 1
    assert desk.picked(1) == [desk.slots["relaxed"][1]]


def test_below_saturation_a_group_that_exists_is_pulled_long() -> None:
    """Line 8: two more requests would saturate and fit, so the longest length that two may have is preferred."""
    desk = Desk("ooco", {"online": [200] * 2, "relaxed": [100, 300, 700]}, bs_sat=4, max_pull=1)
    assert desk.ask("pull") == 1
    assert desk.picked(1) == [desk.slots["relaxed"][2]]


@pytest.mark.parametrize("free_tokens", [None, 350])
def test_below_saturation_without_such_a_group_the_shortest_go_first(free_tokens: int | None) -> None:
    """Line 10: not enough requests exist, or memory holds no such group."""
    bs_sat = 10 if free_tokens is None else 4
    desk = Desk("ooco", {"online": [200] * 2, "relaxed": [700, 100, 300]}, bs_sat=bs_sat, max_pull=2,
                free_tokens=free_tokens)
    count = desk.ask("pull")
    assert desk.picked(count)[0] == desk.slots["relaxed"][1]
    if free_tokens is None:
        assert desk.picked(count) == [desk.slots["relaxed"][1], desk.slots["relaxed"][2]]
    else:
        assert count == 1, "the next one does not fit the memory"


# --- Algorithm 2: mix decoding selection ----------------------------------------------------------------------------
def test_without_random_tries_the_shortest_prefix_is_taken() -> None:
    offline = [9000, 100, 5000, 300, 2000, 700]
    lengths = {"online": [1000] * 20, "offline": offline}
    desk = Desk("ooco", lengths)
    for taken in range(len(offline)):
        ordered = sorted(offline)
        low = desk.latency_s([1000] * 20 + ordered[:taken])
        high = desk.latency_s([1000] * 20 + ordered[:taken + 1])
        one = Desk("ooco", lengths, random_tries=0, tpot_s=(low + high) / 2 / 0.9)
        count = one.ask("compose")
        assert count == 20 + taken
        picked = one.picked(count)
        assert picked[:20] == one.slots["online"]
        assert sorted(offline[slot - 20] for slot in picked[20:]) == ordered[:taken]
    all_fit = Desk("ooco", lengths, tpot_s=1.05 * desk.latency_s([1000] * 20 + offline) / 0.9)
    assert all_fit.ask("compose") == s.ALL


def test_random_tries_keep_the_long_ones_from_starving() -> None:
    offline = [4000] + [1000] * 40
    lengths = {"online": [1000] * 5, "offline": offline}
    bound_s = Desk("ooco", lengths).latency_s([1000] * 5 + [1000] * 30)
    included = {}
    for tries in (0, 8):
        desk = Desk("ooco", lengths, random_tries=tries, tpot_s=bound_s / 0.9)
        included[tries] = 0
        for step in range(200):
            desk.state.instances[STRICT]["steps_begun"] = step
            count = desk.ask("compose")
            picked = desk.picked(count)
            assert len(set(picked)) == count
            assert desk.latency_s([int(desk.state.requests["prompt_tokens"][slot]) for slot in picked]) <= bound_s
            included[tries] += desk.slots["offline"][0] in picked
    assert included[0] == 0
    assert 20 <= included[8] <= 60, "8 of 41 are drawn in each step"


def test_overload_best_effort_or_sacrifice() -> None:
    """3.4.4: online requests alone exceed the SLO."""
    online = [1000] * 10 + [30_000, 50_000]
    desk = Desk("ooco", {"online": online, "offline": [100]})
    bound_s = desk.latency_s([1000] * 10) * 1.001
    best = Desk("ooco", {"online": online, "offline": [100]}, tpot_s=bound_s / 0.9)
    assert best.picked(best.ask("compose")) == best.slots["online"]
    less = Desk("ooco", {"online": online, "offline": [100]}, tpot_s=bound_s / 0.9, overload="sacrifice")
    assert less.picked(less.ask("compose")) == less.slots["online"][:10]


# --- Eviction and gating --------------------------------------------------------------------------------------------
def test_the_bottleneck_decides_who_is_evicted() -> None:
    """3.4.1: compute-bound evicts the longest, else the shortest."""
    lengths = {"online": [500], "offline": [700, 300, 900]}
    for bs_sat, longest in ((4, True), (5, False)):
        desk = Desk("ooco", lengths, bs_sat=bs_sat)
        assert desk.ask("evict", desk.slots["offline"]) == (2 if longest else 1)
    for mode, place in (("longest", 2), ("shortest", 1)):
        desk = Desk("ooco", lengths, evict=mode)
        assert desk.ask("evict", desk.slots["offline"]) == place


def test_the_gate_weighs_latency_saved_against_recomputation() -> None:
    """3.4.2: the sign of gain minus cost."""
    lengths = {"relaxed": [800] * 4, "waiting": [900, 900]}
    desk = Desk("ooco", lengths)
    waiting = desk.slots["waiting"]
    assert desk.ask("gate", waiting, RELAXED) == 0, "weights are read once for a larger batch, nothing is ever evicted"
    desk.state.observed.offline_evicted_share = 1.0
    desk.state.observed.offline_output_mean = 2.0
    assert desk.ask("gate", waiting, RELAXED) == s.HOLD, "two tokens each save less than a prefill costs"
    desk.state.observed.offline_output_mean = 2000.0
    assert desk.ask("gate", waiting, RELAXED) == 0
    empty = Desk("ooco", {"waiting": [900]})
    empty.state.observed.offline_evicted_share = 1.0
    assert empty.ask("gate", empty.slots["waiting"], RELAXED) == 0, "nothing to decode: always prefill"


# --- Preemption at layer boundaries ---------------------------------------------------------------------------------
ROWS = ((0.0, 8000, 4, False), (0.3, 200, 4, True))


def test_an_online_arrival_stops_offline_prefill_at_the_next_layer() -> None:
    alone = play(Setup(ROWS[:1], window_s=(0.0, 5.0), values=(("interrupt", "never"),))).state
    whole_ps = int(alone.requests["first_token_ps"][0])
    layers = int(alone.tables["layers"][0])
    episode = Episode(Setup(ROWS, window_s=(0.0, 5.0)))
    arrival_ps = round(0.3 * s.PS_PER_S)
    episode.advance(arrival_ps)
    done = -(-arrival_ps * layers // whole_ps)
    assert 0 < done < layers
    stop_ps = int(episode.state.instances["end_ps"][RELAXED])
    assert stop_ps == done * whole_ps // layers
    assert stop_ps - arrival_ps <= whole_ps / layers
    state = episode.play().state
    assert int(state.requests["wasted_tokens"][0]) == 8000 * done // layers, "the layers done, not the whole prompt"
    assert int(state.requests["wasted_ps"][0]) == stop_ps
    assert int(state.requests["interruptions"][0]) == 1
    assert int(state.totals.interruptions) == 1
    assert state.requests["first_token_ps"][1] < state.requests["first_token_ps"][0]


def test_slack_interrupts_only_where_the_first_token_needs_it() -> None:
    for ttft_s, interrupted in ((5.0, 0), (0.3, 1)):
        state = play(Setup(ROWS, window_s=(0.0, 5.0), values=(("interrupt", "slack"),), rules={"ttft_s": ttft_s})).state
        assert state.totals.interruptions == interrupted


def test_resuming_at_the_layer_reached_wastes_nothing() -> None:
    setup = Setup(ROWS, window_s=(0.0, 5.0), values=(("layer_resume", 1),))
    state = play(setup).state
    alone = play(setup.with_(requests=ROWS[:1])).state
    assert state.totals.interruptions == 1
    assert state.totals.wasted_tokens == 0 == state.totals.wasted_ps
    spent = int(state.instances["offline_prefill_ps"][RELAXED]) - int(alone.instances["offline_prefill_ps"][RELAXED])
    assert abs(spent) <= 2, "no layer is computed twice (rounded to a picosecond)"


def test_offline_decode_is_interrupted_too() -> None:
    rows = ((0.0, 2000, 400, False), (1.0037, 200, 2, True))
    waits = []
    for interrupt in ("never", "always"):
        setup = Setup(rows, window_s=(0.0, 5.0), values=(("interrupt", interrupt), ("pull_margin", 0.9)))
        state = play(setup).state
        waits.append(int(state.requests["first_token_ps"][1]))
        assert (state.totals.wasted_ps > 0) == (interrupt == "always")
    assert waits[1] < waits[0]
