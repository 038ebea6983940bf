"""What must hold after every event, whatever cluster, trace and rules: tokens, memory, lists, roles."""

from __future__ import annotations

import numpy as np
from episodes import setups
from harness import BASELINES, POINT_NAMES, Episode, Setup, play
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.sim import state as s
from ooco_gym.sim.lanes import BASE, FINISH, GAP, LATEST, UNKNOWN
from ooco_gym.sim.waiting import FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH

MANY_EVENTS = 6000
HOLDING = (s.PREFILLING, s.PUSH_WAITING, s.RESIDENT, s.LEAVING, s.MOVING)
LISTED = (s.PUSH_WAITING, s.RESIDENT, s.LEAVING, s.MOVING)


def chain(requests: np.ndarray, head: int, tail: int) -> list[int]:
    """The slots of a linked queue, checked from both ends."""
    slots, slot, before = [], head, -1
    while slot >= 0:
        assert requests[slot]["previous"] == before
        slots.append(int(slot))
        before, slot = slot, requests[slot]["next"]
    assert tail == before
    return slots


def check_memory(state: s.State) -> None:
    requests = state.requests
    holds = np.isin(requests["status"], HOLDING)
    assert (requests["blocks"][~holds] == 0).all()
    assert (requests["target_blocks"][~np.isin(requests["status"], (s.LEAVING, s.MOVING))] == 0).all()
    for i, spec in enumerate(state.instances):
        held = int(requests["blocks"][holds & (requests["instance"] == i)].sum())
        reserved = int(requests["target_blocks"][requests["target"] == i].sum())
        assert held + reserved == spec["total_blocks"] - spec["free_blocks"]
        assert spec["free_blocks"] >= 0
        assert (requests["blocks"][holds & (requests["instance"] == i)] > 0).all()
    size = state.config.block_tokens
    resident = np.isin(requests["status"], (s.RESIDENT, s.PUSH_WAITING))
    tokens = requests["prompt_tokens"] + requests["generated_tokens"]
    assert (requests["blocks"] * size >= tokens)[resident].all()


def check_lists(state: s.State) -> None:
    requests, places = state.requests, []
    status = requests["status"]
    for i, spec in enumerate(state.instances):
        waiting = {}
        for name, urgent in (("online", 1), ("offline", 0)):
            slots = chain(requests, int(spec[f"{name}_head"]), int(spec[f"{name}_tail"]))
            assert len(slots) == spec[f"{name}_waiting"]
            assert all(status[slot] == s.WAITING and requests["instance"][slot] == i for slot in slots)
            assert all(requests["urgent"][slot] == urgent for slot in slots)
            tokens = requests["prompt_tokens"][slots].sum() + requests["generated_tokens"][slots].sum()
            assert tokens == spec[f"{name}_waiting_tokens"]
            waiting[name] = slots
            places += slots
        listed = []
        for row, count in ((s.URGENT, spec["urgent_members"]), (s.OFFLINE, spec["offline_members"])):
            slots = [int(slot) for slot in state.members[row, i, :count]]
            assert len(set(slots)) == count
            assert all(status[slot] in LISTED and requests["instance"][slot] == i for slot in slots)
            assert all(requests["urgent"][slot] == (row == s.URGENT) for slot in slots)
            listed += slots
        places += listed
        decodes = [slot for slot in listed if status[slot] == s.RESIDENT]
        urgent = [slot for slot in decodes if requests["urgent"][slot]]
        tokens = requests["prompt_tokens"] + requests["generated_tokens"]
        assert spec["decodable"] == len(decodes)
        assert spec["urgent_decodable"] == len(urgent)
        assert spec["urgent_context"] == tokens[urgent].sum()
        assert spec["offline_context"] == tokens[decodes].sum() - tokens[urgent].sum()
        coming = np.flatnonzero((requests["target"] == i) & (requests["target_blocks"] > 0))
        assert spec["arriving"] == len(coming)
        assert spec["arriving_pulls"] == np.count_nonzero(requests["urgent"][coming] == 0)
        assert spec["arriving_context"] == requests["target_context"][coming].sum()
        assert spec["leaving"] == np.count_nonzero((status == s.LEAVING) & (requests["instance"] == i))
        assert len(listed) + spec["arriving"] + spec["suspended"] <= state.members.shape[2]
    queued = []
    for queue in state.push_queues:
        queued += chain(requests, int(queue["head"]), int(queue["tail"]))
    assert sorted(queued) == sorted(np.flatnonzero(status == s.PUSH_WAITING).tolist())
    assert len(places) == len(set(places)), "a request in two places"
    assert sorted(places) == sorted(np.flatnonzero(np.isin(status, (s.WAITING, *LISTED))).tolist())


def check_front(state: s.State) -> None:
    """What gates look at is the window of the queue, in its order and in that of lengths."""
    requests, room = state.requests, state.waiting_window.shape[2]
    for i, spec in enumerate(state.instances):
        slots = chain(requests, int(spec["offline_head"]), int(spec["offline_tail"]))[:room]
        lengths = [int(requests["prompt_tokens"][slot] + requests["generated_tokens"][slot]) for slot in slots]
        assert spec["window_size"] == len(slots)
        window = state.waiting_window[i, :, : len(slots)].tolist()
        assert window[FIRST] == slots and window[FIRST_LENGTH] == lengths
        order = sorted(range(len(slots)), key=lambda place: lengths[place])
        assert window[SHORTEST] == [slots[place] for place in order]
        assert window[SHORTEST_LENGTH] == [lengths[place] for place in order]


def check_lanes(state: s.State) -> None:
    """What a run has begun with is true of its batch, and lanes say what the records say, which are up to date."""
    requests, size = state.requests, state.config.block_tokens
    left = requests["output_tokens"] - requests["generated_tokens"]
    tokens = requests["prompt_tokens"].astype(np.int64) + requests["generated_tokens"]
    for i, spec in enumerate(state.instances):
        if spec["activity"] == s.DECODE:
            batch = state.members[s.BATCH, i, : spec["running"]]
            assert (requests["blocks"][batch] * size >= tokens[batch] + 1).all()
            assert len(batch) < spec["batch_size"] or spec["left"] == left[batch].min()
        if not spec["lanes"]:
            continue
        assert not spec["stale"]
        finish, ends = [s.NEVER], np.zeros(size, np.int64)
        for row, name in ((s.URGENT, "urgent"), (s.OFFLINE, "offline")):
            count, seasoned = spec[f"laned_{name}"], spec[f"seasoned_{name}"]
            assert seasoned <= count <= spec[f"{name}_members"]
            slots, lanes = state.members[row, i, :count], state.lanes[i, :, :count] - spec["lane_steps"]
            assert (lanes[FINISH + row] == left[slots]).all()
            held = state.lanes[i, BASE + row, :count] + spec["lane_held"]
            assert (requests["blocks"][slots] == -(-held // size)).all()
            ends += np.bincount((held - spec["lane_held"]) % size, minlength=size)
            assert (lanes[BASE + row] + 2 * spec["lane_steps"] == tokens[slots]).all()
            assert (requests["last_token_ps"][slots[:seasoned]] == spec["lane_token_ps"]).all()
            finish += state.lanes[i, FINISH + row, :count].tolist()
        assert spec["lane_first"] in (UNKNOWN, min(finish))
        assert (state.ends[i] == ends).all()
        urgent = state.members[s.URGENT, i, : spec["laned_urgent"]]
        gaps, online = state.gaps[i, :, : len(urgent)], requests["online"][urgent] == 1
        assert (gaps[GAP] == requests["max_gap_ps"][urgent])[online].all()
        assert (gaps[GAP] >= spec["lane_gap_ps"])[online].all()
        assert (gaps[LATEST] == requests["latest_ps"][urgent]).all()
        assert spec["lane_miss_ps"] in (UNKNOWN, min((s.NEVER, *gaps[LATEST])))
        counts = (online & (requests["counted"][urgent] == 1))[: spec["seasoned_urgent"]]
        assert spec["lane_counted"] == np.count_nonzero(counts)


def check_running(state: s.State) -> None:
    for i, spec in enumerate(state.instances):
        batch = [int(slot) for slot in state.members[s.BATCH, i, : spec["running"]]]
        if spec["activity"] == s.DECODE:
            assert len(batch) == len(set(batch))
            assert all(state.requests["status"][slot] in (s.RESIDENT, s.LEAVING) for slot in batch)
            assert all(state.requests["instance"][slot] == i for slot in batch)
            assert spec["urgent_running"] == sum(int(state.requests["urgent"][slot]) for slot in batch)
            if spec["role"] == s.RELAXED:
                assert not any(state.requests["urgent"][slot] for slot in batch), "online decode on relaxed"
        elif spec["activity"] != s.IDLE:
            assert spec["role"] == s.RELAXED, "a strict instance prefills"
            assert all(state.requests["status"][slot] == s.PREFILLING for slot in batch)
            urgent = spec["activity"] == s.PREFILL_ONLINE
            assert all(state.requests["urgent"][slot] == urgent for slot in batch)
        suspended = state.members[s.SUSPENDED, i, : spec["suspended"]]
        assert (state.requests["status"][suspended] == s.PREFILLING).all()


def check_tokens(state: s.State) -> None:
    requests, now = state.requests, state.clock.now_ps
    status, made, asked = requests["status"], requests["generated_tokens"], requests["output_tokens"]
    arrived = int(state.clock.next_arrival)
    assert (status[:arrived] != s.FUTURE).all() and (status[arrived:] == s.FUTURE).all()
    assert (made <= asked).all() and (made >= 0).all()
    assert (made[status == s.FINISHED] == asked[status == s.FINISHED]).all()
    assert (made[status != s.FINISHED] < asked[status != s.FINISHED]).all()
    assert ((made > 0) == (requests["first_token_ps"] > 0)).all()
    assert (requests["first_token_ps"] <= now).all() and (requests["finish_ps"] <= now).all()
    assert (requests["kv_lost"][np.isin(status, LISTED)] == 0).all()
    strict = state.instances["role"][requests["instance"]] == s.STRICT
    assert not (strict & (status == s.PREFILLING)).any()
    decoded = int(state.instances["decoded_tokens"].sum())
    prefilled = int(made.sum()) - decoded
    assert prefilled >= np.count_nonzero(made > 0)
    assert prefilled <= np.count_nonzero(made > 0) + int(requests["evictions"].sum())


def check(state: s.State) -> None:
    """All of them."""
    check_memory(state)
    check_lists(state)
    check_front(state)
    check_lanes(state)
    check_running(state)
    check_tokens(state)


@given(setups())
def test_everything_holds_after_every_event(setup: Setup) -> None:
    episode = Episode(setup)
    for _ in range(MANY_EVENTS):
        at_ps = episode.next_event_ps()
        if at_ps >= s.NEVER or episode.advance(at_ps) != s.HORIZON:
            break
        check(episode.state)
    episode.play()
    check(episode.state)


@given(setups())
def test_everything_holds_at_open_decisions(setup: Setup) -> None:
    """Answered from outside, memory and queues also hold in the middle of an event."""
    episode, answer = Episode(setup, outside=POINT_NAMES), s.ASK
    for _ in range(400):
        if episode.advance(None, answer) != s.ASKED:
            break
        assert (episode.state.instances["free_blocks"] >= 0).all()
        answer = episode.rule_answer()


@given(setups(random_rules=False), st.booleans())
def test_everything_ends(setup: Setup, late: bool) -> None:
    """Every request that could run has run once the load is over; none starves, none is forgotten."""
    end_s = max(row[0] for row in setup.requests) + (0.5 if late else 0.0)
    episode = Episode(setup.with_(window_s=(0.0, end_s + 1.0)))
    episode.state.gauges.open_online = 1 << 30
    episode.play(round((end_s + 3600.0) * s.PS_PER_S))
    status = episode.state.requests["status"]
    assert np.isin(status, (s.FINISHED, s.REJECTED)).all(), np.unique(status)
    assert (episode.state.instances["free_blocks"] == episode.state.instances["total_blocks"]).all()


def expected_misses(state: s.State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(TTFT missed, TPOT missed, whether the latter is settled) from the times alone, in whole picoseconds."""
    requests = state.requests
    deadline = requests["arrival_ps"] + requests["ttft_slo_ps"]
    first = requests["first_token_ps"]
    ttft = np.where(first > 0, first > deadline, deadline < state.clock.now_ps) | (requests["status"] == s.REJECTED)
    tokens, finish = requests["output_tokens"].astype(np.int64) - 1, requests["finish_ps"]
    begin = first
    if state.config.tpot_from_decode:
        begin = np.where(requests["first_decode_ps"] > 0, requests["first_decode_ps"], first)
    few = requests["output_tokens"] < state.config.tpot_min_tokens
    latest = np.where(few, deadline, begin) + tokens * requests["tpot_slo_ps"]
    return ttft, (finish > latest) & (tokens > 0), requests["status"] == s.FINISHED


@given(setups())
def test_misses_are_charged_as_the_protocol_says(setup: Setup) -> None:
    state = play(setup).state
    requests, online = state.requests, state.requests["online"] == 1
    ttft, tpot, finished = expected_misses(state)
    arrived = requests["status"] != s.FUTURE
    assert (((requests["violated"] & 1) > 0) == ttft)[online & arrived].all()
    assert (((requests["violated"] & 2) > 0) == tpot)[online & finished].all()
    assert (requests["violated"][~online & (requests["status"] != s.REJECTED)] == 0).all()
    counted = online & (requests["counted"] == 1)
    assert state.totals.ttft_misses == np.count_nonzero(requests["violated"][counted] & 1)
    assert state.totals.tpot_misses == np.count_nonzero(requests["violated"][counted] & 2)
    assert state.totals.violations == np.count_nonzero(requests["violated"][counted])
    done = (requests["status"] == s.FINISHED) | (requests["violated"] > 0)
    assert state.gauges.open_online == np.count_nonzero(counted & ~done)


@given(setups())
def test_sums_are_those_of_the_requests(setup: Setup) -> None:
    state = play(setup).state
    requests, clock, totals = state.requests, state.clock, state.totals
    start, end = clock.window_start_ps, clock.window_end_ps
    done = ((requests["online"] == 0) & (requests["status"] == s.FINISHED) & (requests["finish_ps"] >= start)
            & (requests["finish_ps"] < end))
    assert totals.offline_finished == np.count_nonzero(done)
    assert totals.offline_output_tokens == requests["output_tokens"][done].sum()
    assert totals.service_ps == requests["service_ps"][done].sum()
    counted = (requests["online"] == 1) & (requests["counted"] == 1)
    assert totals.online_finished == np.count_nonzero(counted & (requests["status"] == s.FINISHED))
    gaps = np.maximum(requests["generated_tokens"][counted] - 1, 0).sum()
    assert state.itl.sum() == gaps, "an inter-token time for each token after the first"
    for key in ("wasted_tokens", "evictions", "migrations"):
        assert getattr(totals, key) <= requests[key].sum()
    busy = sum(state.instances[key] for key in ("online_prefill_ps", "offline_prefill_ps", "decode_ps"))
    assert (busy <= clock.now_ps).all()


@given(setups(), st.lists(st.integers(-5, 2**31 - 1) | st.integers(-5, 12), min_size=1, max_size=30))
def test_illegal_answers_do_no_harm(setup: Setup, answers: list[int]) -> None:
    """Whatever comes from outside, in the answer and in State.picks, the books stay right."""
    episode, answer = Episode(setup, outside=POINT_NAMES), s.ASK
    for i in range(1500):
        if episode.advance(None, answer) != s.ASKED:
            check(episode.state)
            break
        if i % 2:
            answer = episode.rule_answer()
            continue
        answer = answers[i % len(answers)]
        if answer == s.ASK:
            answer = s.HOLD
        picks = episode.state.picks
        picks[: len(answers)] = np.array(answers)[: picks.size]
    assert (episode.state.instances["free_blocks"] >= 0).all()


@given(setups(policies=("ooco",), noisy=False, random_rules=False))
def test_mixed_decoding_stays_within_the_bound(setup: Setup) -> None:
    """Algorithm 2: no strict step with an offline request in it is believed to take longer than slo_margin * S."""
    episode = Episode(setup)
    state, margin = episode.state, dict(setup.values)["slo_margin"]
    bound_ps = int(margin * state.config.default_tpot_ps)
    for _ in range(MANY_EVENTS):
        at_ps = episode.next_event_ps()
        if at_ps >= s.NEVER or episode.advance(at_ps) != s.HORIZON:
            break
        for i, spec in enumerate(state.instances):
            batch = state.members[s.BATCH, i, : spec["running"]]
            mixed = not state.requests["urgent"][batch].all()
            if spec["role"] != s.STRICT or spec["activity"] != s.DECODE or not mixed:
                continue
            n = spec["batch_size"]
            last = spec["context"] + (spec["steps"] - 1) * n
            base, slope, other_base, other_slope = state.decode_lines[spec["belief"], n]
            assert max(base + slope * last, other_base + other_slope * last) <= bound_ps


def test_episodes_are_rich_enough() -> None:
    """What the random episodes are made of does come up: else the tests above prove little."""
    rows = tuple(sorted([(0.11 * i, 300 + 37 * (i % 11), 40 + 13 * (i % 7), True) for i in range(60)]
                        + [(0.07 * i, 200 + 61 * (i % 13), 60 + 17 * (i % 5), False) for i in range(90)]
                        + [(3.0, 6000, 4, True)]))
    found = {policy: play(Setup(rows, policy=policy, kv_tokens=4000, window_s=(0.0, 20.0))).state
             for policy in BASELINES}
    for policy, state in found.items():
        assert state.totals.evictions > 0, policy
        assert (state.requests["status"] == s.REJECTED).any(), policy
    assert all(found[policy].totals.migrations > 0 for policy in ("ooco", "ooco_xllm"))
    assert all(found[policy].totals.interruptions > 0 for policy in ("ooco", "ooco_xllm"))
    assert all(found[policy].totals.wasted_tokens > 0 for policy in BASELINES[:2])


def test_promises_without_end_are_never_missed() -> None:
    rows = ((0.0, 100, 3000, True), (0.1, 2000, 1, True), (0.2, 50, 200, False))
    for policy in BASELINES:
        state = play(Setup(rows, policy=policy, rules={"ttft_s": 9e5, "tpot_s": 9e5})).state
        assert (state.requests["violated"] == 0).all()
        assert (state.requests["status"] == s.FINISHED).all()
