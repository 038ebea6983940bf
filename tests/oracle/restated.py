"""The restated scheduler (`tests/sim/vllm_schedule.py`) under the clock of the comparison."""

from __future__ import annotations

import numpy as np

from tests.oracle.cases import Case
from tests.oracle.scripts.oracle_driver.iterations import Clock, Steps
from tests.sim.vllm_schedule import Request, Schedule, release_of


def restate(case: Case, tables: dict) -> dict[str, np.ndarray]:
    """Returns what `Oracle.play` returns, made by the restatement. All blocks are free at the end."""
    settings, requests, clock = case.settings(), _requests(case), Clock(tables)
    schedule = Schedule(case.kv_blocks - 1, case.max_num_batched_tokens, case.max_num_seqs,
                        settings["policy"] == "priority", case.block_tokens, case.prefix_caching,
                        release_of(case.engine_version), int(case.watermark * case.kv_blocks),
                        case.long_prefill_token_threshold)
    steps, now_ps, arrived, lost = Steps(), 0, 0, []
    first, finish = np.zeros(len(requests), np.int64), np.zeros(len(requests), np.int64)
    while schedule.running or schedule.waiting or arrived < len(requests):
        if not schedule.running and not schedule.waiting:
            now_ps = max(now_ps, requests[arrived].rank[1])
        while arrived < len(requests) and requests[arrived].rank[1] <= now_ps:
            schedule.add(requests[arrived])
            arrived += 1
        given = schedule.step()
        lost += schedule.preempted
        if not given:
            assert schedule.preempted, "nothing can be scheduled"
            continue
        begun_ps = now_ps
        now_ps += clock.iteration_ps((new, requests[slot].computed + new, requests[slot].length)
                                     for slot, new in given.items())
        steps.add(begun_ps, now_ps, given, lost)
        lost = []
        schedule.end(given)
        for slot in given:
            if requests[slot].made and not first[slot]:
                first[slot] = now_ps
            if requests[slot].made == requests[slot].output:
                finish[slot] = now_ps
    assert schedule.memory.settled()
    return {**steps.arrays(), "first_token_ps": first, "finish_ps": finish,
            "cached_tokens": np.array([request.cached for request in requests], np.int32)}


def _requests(case: Case) -> list[Request]:
    """All requests; the second part of their rank is when they arrive."""
    columns = {key: value.tolist() for key, value in case.columns().items()}
    offsets, values, urgent = columns["hash_offsets"], columns["hash_values"], case.policy == "vllm_fcfs"
    made = [Request(slot, columns["prompt_tokens"][slot], columns["output_tokens"][slot],
                    (0 if urgent else columns["priority"][slot], columns["arrival_ps"][slot]),
                    tuple(values[offsets[slot]:offsets[slot + 1]])) for slot in range(len(case.trace))]
    for one, other in zip(made, columns["repeated_by"], strict=True):
        one.repeated_by = made[other] if other >= 0 else None
    return made
