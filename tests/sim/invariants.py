"""What must hold of pools at any time, whatever cluster, trace and rules: tokens, memory, lists, lanes, roles."""

from __future__ import annotations

import numpy as np

from ooco_gym.sim import state as s
from ooco_gym.sim.lanes import BASE, FINISH, GAP, LATEST, UNKNOWN
from ooco_gym.sim.pool_caches import ROW_THERE, TABLED
from ooco_gym.sim.waiting import FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH
from tests.sim.pool_checks import queued

HOLDING = (s.PREFILLING, s.PUSH_WAITING, s.RESIDENT, s.LEAVING, s.MOVING, s.HANDED_OVER)
LISTED = (s.PUSH_WAITING, s.RESIDENT, s.LEAVING, s.MOVING)


def chain(requests: np.ndarray, head: int, tail: int) -> list[int]:
    """The slots of a linked queue, checked from both ends."""
    previous, following = requests["previous"], requests["next"]
    slots, slot, before = [], head, -1
    while slot >= 0:
        assert previous[slot] == before
        slots.append(slot)
        before, slot = slot, int(following[slot])
    assert tail == before
    return slots


def check_tables(state: s.State, instance: int) -> None:
    """Blocks of prefix caches: each is in as many tables as it says, or in the queue of free ones; of the latter, some
    are taken by a run that has not been settled."""
    requests, config = state.requests, state.config
    here = np.isin(requests["status"], HOLDING) & (requests["instance"] == instance)
    tables = [(row, count) for row, count in zip(requests["row"][here], state.owned[here, TABLED], strict=True)]
    there = requests["target"] == instance
    tables += list(zip(state.owned[there, ROW_THERE], requests["target_blocks"][there], strict=True))
    begin, blocks, readers = int(config.index_size + 2 * s.LEVELS + config.block_tables), state.blocks[instance], []
    assert len({row for row, _ in tables}) == len(tables)
    for row, count in tables:
        place = begin + int(row) * int(config.blocks_per_table)
        readers += state.kv[instance, place : place + int(count)].tolist()
    references = np.bincount(np.array(readers, int), minlength=len(blocks))
    assert np.array_equal(blocks["references"], references)
    free, spec = queued(state, instance), state.instances[instance]
    assert len(np.unique(free)) == len(free) and (references[free] == 0).all()
    assert len(free) + np.count_nonzero(references) == spec["total_blocks"]
    unsettled = int((requests["blocks"][here] - state.owned[here, TABLED]).sum())
    assert spec["free_blocks"] == len(free) - unsettled


def check_memory(state: s.State) -> None:
    requests = state.requests
    holds = np.isin(requests["status"], HOLDING)
    assert (requests["blocks"][~holds] == 0).all()
    assert (requests["target_blocks"][~np.isin(requests["status"], (s.LEAVING, s.MOVING))] == 0).all()
    for i, spec in enumerate(state.instances):
        held = int(requests["blocks"][holds & (requests["instance"] == i)].sum())
        reserved = int(requests["target_blocks"][requests["target"] == i].sum())
        if state.blocks.shape[1]:
            check_tables(state, i)
        else:
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
        handed_over = (status == s.HANDED_OVER) & (requests["instance"] == i)
        coming = np.flatnonzero(handed_over | (requests["target"] == i) & (requests["target_blocks"] > 0))
        assert spec["arriving"] == len(coming)
        assert spec["arriving_pulls"] == np.count_nonzero(requests["urgent"][coming] == 0)
        assert spec["arriving_context"] == requests["target_context"][coming].sum()
        assert spec["leaving"] == np.count_nonzero((status == s.LEAVING) & (requests["instance"] == i))
        assert len(listed) + spec["arriving"] + spec["suspended"] <= state.members.shape[2]
    relaxed = state.instances["role"] == s.RELAXED
    assert state.gauges.relaxed_decodable == state.instances["decodable"][relaxed].sum()
    queued = []
    for queue in state.push_queues:
        queued += chain(requests, int(queue["head"]), int(queue["tail"]))
    due = requests["latest_ps"][chain(requests, *(int(edge) for edge in state.push_queues[s.LANDING]))]
    assert (due > state.clock.now_ps - 1).all() and (np.diff(due) >= 0).all()
    assert sorted(queued) == sorted(np.flatnonzero(np.isin(status, (s.PUSH_WAITING, s.HANDED_OVER))).tolist())
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
            assert spec["role"] == s.RELAXED or state.config.local_prefill_tokens > 0, "a strict instance prefills"
            assert all(state.requests["status"][slot] == s.PREFILLING for slot in batch)
            urgent = spec["activity"] == s.PREFILL_ONLINE
            assert all(state.requests["urgent"][slot] == urgent for slot in batch)
        suspended = state.members[s.SUSPENDED, i, : spec["suspended"]]
        assert (state.requests["status"][suspended] == s.PREFILLING).all()


def check_tokens(state: s.State) -> None:
    requests, now = state.requests, state.clock.now_ps
    status, made, asked = requests["status"], requests["generated_tokens"], requests["output_tokens"]
    assert ((status != s.FUTURE) == (requests["arrival_ps"] <= now)).all()
    assert (made <= asked).all() and (made >= 0).all()
    assert (made[status == s.FINISHED] == asked[status == s.FINISHED]).all()
    assert (made[status != s.FINISHED] < asked[status != s.FINISHED]).all()
    assert ((made > 0) == (requests["first_token_ps"] > 0)).all()
    assert (requests["first_token_ps"] <= now).all() and (requests["finish_ps"] <= now).all()
    assert (requests["kv_lost"][np.isin(status, LISTED)] == 0).all()
    strict = state.instances["role"][requests["instance"]] == s.STRICT
    assert state.config.local_prefill_tokens > 0 or not (strict & (status == s.PREFILLING)).any()
    decoded = int(state.instances["decoded_tokens"].sum())
    prefilled = int(made.sum()) - decoded
    assert prefilled >= np.count_nonzero(made > 0) * (1 - state.config.decode_first_token)
    assert prefilled <= np.count_nonzero(made > 0) + int(requests["evictions"].sum())


def edges(state: s.State) -> tuple[np.ndarray, np.ndarray]:
    """What closed sessions and trees wait for: (requests, those that wait for them)."""
    n = len(state.requests)
    if not state.followers.size:
        return np.zeros(0, int), np.zeros(0, int)
    return np.repeat(np.arange(n), np.diff(state.followers[: n + 1])), state.followers[n + 1 :]


def check_turns(state: s.State) -> None:
    """In closed sessions a turn arrives its think time after the one before it has finished, and never without; of
    clients the next request in order with each answer, and as many are open as there are clients."""
    requests = state.requests
    if state.config.clients:
        mine, sent = requests["online"] == 1, state.think_ps >= 0
        over = mine & np.isin(requests["status"], (s.FINISHED, s.REJECTED, s.ABORTED))
        arrived = np.sort(requests["arrival_ps"][sent & (requests["arrival_ps"] < s.NEVER)])
        assert len(arrived) == min(np.count_nonzero(over), np.count_nonzero(sent))
        assert not (np.diff(requests["arrival_ps"][sent]) < 0).any()
        ends = np.where(requests["status"] == s.REJECTED, requests["arrival_ps"], requests["finish_ps"])
        assert (arrived == np.sort(ends[over])[: len(arrived)] + 1).all()
        assert np.count_nonzero(mine & ~over & (requests["status"] != s.FUTURE)) <= state.config.clients
        return
    before, after = edges(state)
    turns, place = np.unique(after, return_inverse=True)
    left, last_ps = np.zeros(len(turns), int), np.zeros(len(turns), np.int64)
    np.add.at(left, place, requests["status"][before] != s.FINISHED)
    np.maximum.at(last_ps, place, requests["finish_ps"][before])
    ended, think_ps = left == 0, state.think_ps[turns]
    due = np.where(ended, last_ps + np.maximum(think_ps, 1), s.NEVER)
    assert (requests["arrival_ps"][turns] == due).all() and (think_ps >= 0).all()
    assert (state.unfinished[turns] == left).all()
    for row, ahead in enumerate((requests["status"][turns] == s.FUTURE, requests["online"][turns] == 1)):
        heap = state.turns[row, 1 : 1 + state.turns[row, 0]]
        assert set(turns[ended & ahead].tolist()) >= set(heap.tolist()) and len(set(heap.tolist())) == len(heap)
        assert row == 1 or len(heap) == np.count_nonzero(ended & ahead)


def check_roles(state: s.State) -> None:
    """Relaxed instances first, then those that change, then strict ones; nothing waits where it is not prefilled."""
    config, role = state.config, state.instances["role"]
    assert 1 <= config.relaxed_count <= config.strict_from < len(role)
    assert config.relaxed_count <= config.wanted_relaxed <= config.strict_from
    assert (role[: config.relaxed_count] == s.RELAXED).all() and (role[config.strict_from :] == s.STRICT).all()
    elsewhere = state.instances[config.relaxed_count :]
    idle = elsewhere["activity"] == s.IDLE
    assert not elsewhere["offline_waiting"][idle].any()
    assert config.local_prefill_tokens > 0 or not elsewhere["online_waiting"][idle].any()


def check(state: s.State) -> None:
    """All of them."""
    check_roles(state)
    check_turns(state)
    check_memory(state)
    check_lists(state)
    check_front(state)
    check_lanes(state)
    check_running(state)
    check_tokens(state)
