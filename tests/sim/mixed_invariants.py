"""What must hold of mixed instances at any time, whoever schedules them."""

from __future__ import annotations

import numpy as np

from ooco_gym.sim import state as s
from tests.sim.invariants import chain, check_turns
from tests.sim.pool_checks import check_host, check_pairs, check_pool


def finishing_of(state: s.State, instance: int) -> list[int]:
    """The requests whose last token comes as the iteration in progress ends (asynchronous scheduling)."""
    return state.members[s.FINISHING, instance, : state.instances["suspended"][instance]].tolist()


def check_memory(state: s.State) -> None:
    """Blocks are held once each, or as often as their tables say; the host's are those of what is swapped out."""
    requests, size = state.requests, state.config.block_tokens
    waiting = requests["status"] == s.WAITING
    assert (requests["blocks"][requests["status"] != s.RESIDENT] == 0).all()
    # of requests that run: copies, or what an online request has overwritten
    copies = state.config.preempted_kv == s.CHECKPOINT or state.pairs.shape[1] > 0
    assert (requests["host_tokens"][~waiting & ~(copies & (requests["status"] == s.RESIDENT))] == 0).all()
    assert (requests["num_computed_tokens"][waiting] == 0).all()
    reach = requests["num_computed_tokens"] + requests["num_scheduled_tokens"]
    assert (requests["blocks"] * size >= reach)[requests["status"] == s.RESIDENT].all()
    for i, spec in enumerate(state.instances):
        here = requests["instance"] == i
        assert spec["free_blocks"] >= 0
        if state.blocks.shape[1]:
            check_pool(state, i)
            if state.config.offloading:
                check_host(state, i)
        elif state.pairs.shape[1]:
            check_pairs(state, i)
        else:
            assert requests["blocks"][here].sum() == spec["total_blocks"] - spec["free_blocks"]


def check_running(state: s.State) -> None:
    """A running request runs once, is neither waiting nor done, and computes no more than it misses."""
    requests, seen = state.requests, []
    for i, spec in enumerate(state.instances):
        running = state.members[s.BATCH, i, : spec["running"]].tolist()
        resident = [*running, *(one for one in finishing_of(state, i) if one not in running
                                and requests["status"][one] == s.RESIDENT)]
        seen += resident
        assert (requests["status"][resident] == s.RESIDENT).all() and (requests["instance"][resident] == i).all()
        assert len(resident) <= state.config.max_num_seqs
        missing = requests["prompt_tokens"] + requests["generated_tokens"] - requests["num_computed_tokens"]
        assert (missing[resident] >= 1).all()
        new = requests["num_scheduled_tokens"][running]
        if spec["activity"] == s.MIXING and state.config.async_scheduling == s.SYNCHRONOUS:
            assert new.sum() == spec["new_tokens"]
            assert new.sum() > 0 or spec["ranks"] > 0, "only a data-parallel rank steps along without a token"
            assert (new <= missing[running]).all() and (new >= 0).all()
        for name, urgent in (("online", 1), ("offline", 0)):
            slots = chain(requests, int(spec[f"{name}_head"]), int(spec[f"{name}_tail"]))
            assert len(slots) == spec[f"{name}_waiting"]
            assert (requests["status"][slots] == s.WAITING).all() and (requests["urgent"][slots] == urgent).all()
            seen += slots
    assert len(seen) == len(set(seen)), "a request in two places"
    assert sorted(seen) == np.flatnonzero(np.isin(requests["status"], (s.WAITING, s.RESIDENT))).tolist()


def check_tokens(state: s.State) -> None:
    """No token is made twice or lost, whatever is recomputed."""
    requests = state.requests
    made, asked, done = requests["generated_tokens"], requests["output_tokens"], requests["status"] == s.FINISHED
    whole = done.copy()
    for i in range(state.instances.size):
        whole[finishing_of(state, i)] = True
    assert (made[whole] == asked[whole]).all() and (made[~whole] < asked[~whole]).all() and (made >= 0).all()
    assert ((made > 0) == (requests["first_token_ps"] > 0)).all()
    found = requests["cached_tokens"]
    assert (found < requests["prompt_tokens"]).all() or (requests["evictions"] > 0).any()
    assert state.instances["cached_tokens"].sum() == found[found > 0].sum()


def check_ranks(state: s.State) -> None:
    """Data-parallel ranks rest together, or have begun at one time and end at one."""
    for i in np.flatnonzero(state.instances["ranks"]):
        spec, first = state.instances[i], state.instances[state.instances["first_rank"][i]]
        assert spec["activity"] == first["activity"]
        if spec["activity"] == s.MIXING:
            assert (spec["start_ps"], spec["end_ps"]) == (first["start_ps"], first["end_ps"])


def check_mixed(state: s.State) -> None:
    check_ranks(state)
    check_turns(state)
    check_memory(state)
    check_running(state)
    check_tokens(state)
