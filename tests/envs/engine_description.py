"""A mixed instance of a simulated episode as an engine would describe it: dicts of requests and blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ooco_gym import candidate_table
from ooco_gym.compile import jit
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import PLANNED
from ooco_gym.policy.engine_features import HOUR_ARRIVED, HOUR_VIOLATED
from ooco_gym.policy.latency_budget import OPEN_FIGURES, OPEN_LEFT, OPEN_UNTIL_PS
from ooco_gym.policy.reclaiming import private_blocks
from ooco_gym.runtime.features import LOOK_OFFLINE, LOOK_ONLINE
from ooco_gym.sim import state as s
from ooco_gym.sim.mixed import NO_SUMS, add_to_sums, sums_latency
from ooco_gym.sim.state import handle_of, state_at
from ooco_gym.sim.step_actions import get_computed_blocks


@jit(types.int64(types.int64, types.int64, types.int64[:, ::1]))
def _latency_ps(handle, instance, batch):
    state = state_at(handle)
    table, sums = state.instances[instance].belief, NO_SUMS
    for row in range(batch.shape[0]):
        sums = add_to_sums(state, table, sums, batch[row, 0], batch[row, 1], 1)
    return np.int64(sums_latency(state, table, sums))


@jit(types.UniTuple(types.int64, 3)(types.int64, types.int64, types.int64))
def _cached(handle, instance, slot):
    return get_computed_blocks(state_at(handle), instance, slot)


@jit(types.int64(types.int64, types.int64, types.int64))
def _private(handle, instance, slot):
    return private_blocks(state_at(handle), instance, slot)


def describe_short(env: Any, i: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The engine that is short of blocks in episode i of Reclaiming-v0, and its candidates, for `observe_victims`."""
    buffers, state = env.episodes.buffers, env.episodes.simulations[i].state
    instance, handle, config = int(state.pending.instance), handle_of(state), state.config
    spec, size = state.instances[instance], int(config.block_tokens)
    engine = describe(env, i)
    batch = state.members[s.BATCH, instance, : int(spec["running"])].tolist()
    slot = int(spec["online_head"])
    for request in engine["waiting_online"]:
        cached, shared, idle = _cached(handle.address, instance, slot)
        tokens = request["num_prompt_tokens"] + request["num_output_tokens"]
        request |= {"num_cached_tokens": cached, "num_blocks_to_allocate": -(-tokens // size) - shared + idle}
        slot = int(state.requests[slot]["next"])

    def victim(k: int) -> dict[str, Any]:
        slot = int(buffers.chosen[i, k])
        return {"place": batch.index(slot), "to_host": bool(buffers.iteration[i, OPEN_FIGURES + k] == s.SWAP),
                "num_private_blocks": _private(handle.address, instance, slot),
                "num_preemptions": int(state.requests[slot]["evictions"])}

    moved = int(config.host_bytes_per_s) / float(state.tables[int(spec["table"])]["kv_bytes_per_token"])
    engine |= {"host_tokens_per_s": moved, "num_reserved_blocks": int(config.reserved_blocks)}
    return engine, [victim(k) for k in range(buffers.chosen.shape[1]) if buffers.chosen[i, k] >= 0]


def describe_iteration(env: Any, i: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The iteration that is open in episode i of Admission-v0, and its candidates, for `observe_entries`."""
    buffers, state = env.episodes.buffers, env.episodes.simulations[i].state
    instance, handle = int(state.pending.instance), handle_of(state)
    spec, size, now = state.instances[instance], int(state.config.block_tokens), int(state.clock.now_ps)
    running = state.requests[state.members[s.BATCH, instance, : int(spec["running"])]]
    scheduled = [(int(one["num_scheduled_tokens"]), int(one["num_computed_tokens"] + one["num_scheduled_tokens"]))
                 for one in running if one["num_scheduled_tokens"]]
    row = buffers.iteration[i]

    def candidate(slot: int) -> dict[str, Any]:
        one = state.requests[slot]
        cached, shared, idle = _cached(handle.address, instance, slot)
        tokens = int(one["prompt_tokens"] + one["generated_tokens"])
        return {"arrival_time": (int(one["arrival_ps"]) - now) / s.PS_PER_S, "num_preemptions": int(one["evictions"]),
                "num_prompt_tokens": int(one["prompt_tokens"]), "num_output_tokens": int(one["generated_tokens"]),
                "num_cached_tokens": cached, "num_blocks_to_allocate": -(-tokens // size) - shared + idle,
                "is_next": slot == int(spec["offline_head"])}

    iteration = {"scheduled": scheduled, "time_limit": int(row[OPEN_UNTIL_PS]) / s.PS_PER_S,
                 "token_budget": int(row[OPEN_LEFT])}
    return iteration, [candidate(int(slot)) for slot in buffers.chosen[i] if slot >= 0]


class Compared(NamedTuple):
    """What two computations agreed on."""

    clusters: np.ndarray  # float32[decisions, features of an engine]
    candidates: dict[str, np.ndarray]  # of each kind of decision float32[candidates, its features]


def compared(env: Any, computed: Callable[[Any], tuple[np.ndarray, np.ndarray]], columns: Mapping[str, Sequence[int]],
             steps: int, seed: int, stretches: tuple[int, int]) -> Compared:
    """Plays random answers, with stretches of the partner's, and compares both computations on every state.

    Args:
        env: the environment, of short episodes.
        computed: of the environment, the second computation: (features of the engine, of each candidate).
        columns: of each kind of decision, where a candidate has the features that are compared.
        steps: decisions that are compared.
        seed: of the windows and of the answers.
        stretches: so many decisions are one stretch; of so many stretches one is the partner's.
    """
    random, (length, of) = np.random.default_rng(seed), stretches
    observation, info = env.reset(seed=seed, options={"window": 0})
    clusters, candidates = [], {name: [] for name in columns}
    assert env.episodes.asked(0) is not None, "the first window has decisions"
    for step in range(steps):
        kind = env.episodes.asked(0).name
        cluster, rows = computed(env)
        where = f"{kind}, step {step}"
        np.testing.assert_allclose(observation["cluster"], cluster, rtol=0, atol=2e-6, err_msg=where)
        theirs = candidate_table(observation["candidates"])[:, columns[kind]]
        np.testing.assert_allclose(theirs[: len(rows)], rows, rtol=0, atol=2e-6, err_msg=where)
        assert not theirs[len(rows) :].any(), where
        clusters.append(observation["cluster"])
        candidates[kind] += list(rows)
        legal = np.flatnonzero(info["action_mask"])
        action = int(random.choice(legal)) if step // length % of else env.partner_action()
        observation, _, _, over, info = env.step(action)
        while over or env.episodes.asked(0) is None:  # some windows have no decision
            observation, info = env.reset(seed=seed + step)
            over, step = False, step + steps
    return Compared(np.array(clusters), {name: np.array(rows) for name, rows in candidates.items()})


def describe_targets(env: Any, i: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The request that has arrived in episode i of Serving-v0, and the engines that may take it, for
    `observe_targets`."""
    buffers, state = env.episodes.buffers, env.episodes.simulations[i].state
    slot, handle = int(state.pending.request), handle_of(state)
    one, now = state.requests[slot], int(state.clock.now_ps)
    request = {"online": bool(one["online"]), "arrival_time": (int(one["arrival_ps"]) - now) / s.PS_PER_S,
               "ttft_slo": int(one["ttft_slo_ps"]) / s.PS_PER_S, "num_prompt_tokens": int(one["prompt_tokens"]),
               "num_output_tokens": 0}

    def engine(instance: int) -> dict[str, Any]:
        cached, shared, idle = _cached(handle.address, instance, slot)
        blocks = -(-request["num_prompt_tokens"] // int(state.config.block_tokens))
        return {**describe(env, i, instance), "num_cached_tokens": cached,
                "num_blocks_to_allocate": blocks - shared + idle, "is_default": instance == buffers.turns[i, PLANNED]}

    return request, [engine(int(instance)) for instance in buffers.chosen[i] if instance >= 0]


def describe(env: Any, i: int = 0, instance: int | None = None) -> dict[str, Any]:
    """An engine in episode i of an environment, for `features.observe`; None: the one that is asked."""
    buffers, state = env.episodes.buffers, env.episodes.simulations[i].state
    instance, handle = int(state.pending.instance) if instance is None else instance, handle_of(state)
    spec, config = state.instances[instance], state.config
    now = int(state.clock.now_ps)

    def request(slot: int) -> dict[str, Any]:
        one = state.requests[slot]
        first = int(one["first_token_ps"])
        start = int(one["first_decode_ps"]) if config.tpot_from_decode and one["first_decode_ps"] else first
        return {"online": bool(one["online"]), "arrival_time": (int(one["arrival_ps"]) - now) / s.PS_PER_S,
                "first_token_time": (first - now) / s.PS_PER_S if first else None,
                "tpot_from": (start - now) / s.PS_PER_S,
                "ttft_slo": int(one["ttft_slo_ps"]) / s.PS_PER_S, "tpot_slo": int(one["tpot_slo_ps"]) / s.PS_PER_S,
                "num_prompt_tokens": int(one["prompt_tokens"]), "num_output_tokens": int(one["generated_tokens"]),
                "num_computed_tokens": int(one["num_computed_tokens"]), "num_blocks": int(one["blocks"]),
                "num_cached_tokens": 0}

    def queue(head: int, most: int) -> list[dict[str, Any]]:
        found = []
        while head >= 0 and len(found) < most:
            found.append({**request(head), "num_computed_tokens": 0,
                          "num_cached_tokens": _cached(handle.address, instance, head)[0]})
            head = int(state.requests[head]["next"])
        return found

    def latency(batch: list[tuple[int, int]]) -> float:
        return _latency_ps(handle.address, instance, np.array(batch, np.int64).reshape(-1, 2)) / s.PS_PER_S

    account, notes, observed, totals = buffers.account[i], buffers.notes[i], state.observed, state.totals
    in_block = {600: (totals.online_arrived - account[r.BLOCK_ARRIVED], totals.violations - account[r.BLOCK_VIOLATED]),
                3600: (totals.online_arrived - notes[HOUR_ARRIVED], totals.violations - notes[HOUR_VIOLATED])}
    batch = state.members[s.BATCH, instance, : int(spec["running"])]
    return {
        "now": 0.0, "tpot_slo": config.default_tpot_ps / s.PS_PER_S, "violation_budget": float(account[r.BUDGET]),
        "running": [request(int(slot)) for slot in batch],
        "waiting_online": queue(int(spec["online_head"]), LOOK_ONLINE),
        "waiting_offline": queue(int(spec["offline_head"]), LOOK_OFFLINE),
        "num_waiting_online": int(spec["online_waiting"]),
        "num_waiting_online_tokens": int(spec["online_waiting_tokens"]),
        "num_waiting_offline": int(spec["offline_waiting"]),
        "num_waiting_offline_tokens": int(spec["offline_waiting_tokens"]),
        "num_free_blocks": int(spec["free_blocks"]), "num_blocks": int(spec["total_blocks"]),
        "max_num_seqs": int(config.max_num_seqs), "max_num_batched_tokens": int(config.max_num_batched_tokens),
        "block_size": int(config.block_tokens), "offline_output_mean": float(observed.offline_output_mean),
        "latency": latency, "online_in_block": in_block,
        "online_rates": {10: observed.online_rate_fast, 60: observed.online_rate_minute,
                         300: observed.online_rate_slow, 1800: observed.online_rate_half_hour},
        "last_online_arrival": (int(state.clock.last_online_arrival_ps) - now) / s.PS_PER_S,
    }
