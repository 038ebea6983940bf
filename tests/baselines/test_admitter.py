"""Which waiting offline request enters: `deadline` where a rule says the same, orders by hand, affinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from baselines import admitter
from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.rounding import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.step_actions import get_computed_tokens
from ooco_gym.workload import Trace
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup, play

ALIKE = (("chunk_efficiency", 0.95), ("decode_share", 1.0))  # which the two ship with differently
ONE: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
PIECES = 4


def setup_of(rows: Any = (), **values: Any) -> Setup:
    return Setup(rows, policy="admitter", values=tuple({"max_num_seqs": 8, **values}.items()), **ONE)


def documents(count: int = 120, of: int = 7) -> Trace:
    """Offline questions on documents of 2,048 tokens, in a scattered order; each fifth asks of no document. Three
    clients take turns, each third request has a deadline, and most are of thirty jobs."""
    random = np.random.default_rng(0)
    document = random.integers(of, size=count)
    alone = np.arange(count) % 5 == 0
    prompts = np.where(alone, random.integers(40, 3000, size=count), 2048 + random.integers(8, 400, size=count))
    offsets = np.concatenate([[0], np.cumsum(np.where(alone, 0, PIECES))])
    values = np.concatenate([np.arange(PIECES) + PIECES * one + 1 for one in document[~alone]])
    return Trace(arrival_s=0.02 * np.arange(count), prompt_tokens=prompts.astype(np.int32),
                 output_tokens=random.integers(2, 40, size=count).astype(np.int32),
                 online=np.zeros(count, bool), client=np.arange(count) % 3, job=np.arange(count) * 7 % 31 - 1,
                 deadline_s=np.where(np.arange(count) % 3, np.nan, 100.0 - 0.3 * np.arange(count)),
                 prefix_hashes=(offsets.astype(np.int64), values.astype(np.int64)))


def waiting(state: s.State) -> list[int]:
    """Waiting offline requests in the order of arrival, those that were preempted first."""
    slot, found = int(state.instances[0]["offline_head"]), []
    while slot >= 0:
        found.append(slot)
        slot = int(state.requests[slot]["next"])
    return found


@jit(types.int64(types.int64, types.int64, types.int64))
def look_up(handle, instance, slot):
    """Tokens of a waiting request that need not be computed."""
    return get_computed_tokens(s.state_at(handle), instance, slot)


class Asked(NamedTuple):
    """An iteration that has been filled: what waited before in the best order by hand, and what has entered."""

    episode: Episode
    expected: list[int]
    entered: list[int]


def outputs_of(predicted: np.ndarray, generated: int) -> dict[str, float]:
    """The remaining output that is exceeded in half of all cases, and half of what is between 16 and 84 %."""
    median, shape = predicted[0], np.pi / np.sqrt(3) / predicted[1]
    low, left, high = (max(generated + 1, median * ((1 + (generated / median) ** shape) / share - 1) ** (1 / shape))
                       for share in (0.84, 0.5, 0.16))
    return {"left": left - generated, "spread": (high - low) / 2}


def calls_of(state: s.State, job: np.ndarray, slot: int) -> dict[str, float]:
    """When a request's job began, and the reference time of its calls that have ended, and of the others, in ps."""
    of, done = (job == job[slot]) & (job >= 0), state.requests["status"] == s.FINISHED
    of[slot] = True
    service_ps, came = state.requests["service_ps"], state.requests["arrival_ps"] <= state.clock.now_ps
    return {"begun": state.requests["arrival_ps"][of & came].min(), "attained": service_ps[of & done].sum(),
            "job_left": service_ps[of & ~done].sum()}


def iterations(setup: Setup, score: Callable[[dict[str, float]], Any], trace: Trace) -> Iterator[Asked]:
    """Plays on; `score` is of the figures of a request, by hand. Each output is predicted as 1.5 times what it is."""
    predicted = np.stack([1.5 * trace.output_tokens, np.full(len(trace), 0.4)], axis=1)
    episode = Episode(setup, outside=("compose",), trace=trace, predicted=predicted)
    offsets, values = trace.prefix_hashes or (np.zeros(len(trace) + 1, int), np.zeros(0, int))
    answer = s.ASK
    while episode.advance(answer=answer) == s.ASKED:
        state, before = episode.state, waiting(episode.state)
        handle = s.handle_of(state)
        documents_of = {slot: int(values[offsets[slot]]) if offsets[slot] < offsets[slot + 1] else -slot - 1
                        for slot in before}
        count = Counter(documents_of.values())
        found, ended, clients = {}, set(), np.zeros(3)
        for slot in sorted(np.flatnonzero(state.requests["status"] == s.FINISHED),
                           key=lambda slot: int(state.requests["finish_ps"][slot])):
            client, tokens = trace.client[slot], trace.output_tokens[slot]
            clients[client] += (tokens - clients[client]) * (0.1 if client in ended else 1.0)
            ended.add(client)
        for slot in before:
            one = state.requests[slot]
            tokens, members = int(one["prompt_tokens"] + one["generated_tokens"]), count[documents_of[slot]]
            cached = int(look_up(handle.address, 0, slot))
            found[slot] = score({
                "arrival": int(one["arrival_ps"]), "tokens": tokens, "cached": cached, "members": members,
                **outputs_of(predicted[slot], int(one["generated_tokens"])),
                "due": trace.deadline_s[slot] + trace.arrival_s[slot], "waiting": len(before),
                **calls_of(state, trace.job, slot),
                "now_s": int(state.clock.now_ps) / s.PS_PER_S, "used": 1 - state.instances[0]["free_blocks"] / 750,
                "job": float(clients[trace.client[slot]]), "seen": trace.client[slot] in ended,
                "free": 16 * int(state.instances[0]["free_blocks"]),
                "work": tokens - cached, "shared": max(0, 512 * PIECES - cached) if members > 1 else 0})
        expected = sorted(before, key=lambda slot: (found[slot], int(state.order[slot])))
        answer = episode.rule_answer()
        yield Asked(episode, expected, [slot for slot in before if state.requests[slot]["status"] != s.WAITING])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_by_arrival_it_is_deadline(data: st.DataObject) -> None:
    values = (("max_num_seqs", 63), ("prefix_caching", "on"), ("waiting_order", "arrival"), *ALIKE)
    kv_tokens = data.draw(st.sampled_from((None, 6000)))
    of = Setup(data.draw(traces()), policy="deadline", values=values, kv_tokens=kv_tokens, **ONE)
    ours = replace(of, policy="admitter", values=(*values, ("rule", "arrival"), ("refresh_s", 0.0)))
    assert np.array_equal(play(of).state.requests, play(ours).state.requests)


@pytest.mark.parametrize("kv_tokens", [None, 9000])
def test_by_prefix_it_is_deadline_with_its_order(kv_tokens: int | None) -> None:
    ours = setup_of(rule="prefix", refresh_s=0.0, **dict(ALIKE)).with_(kv_tokens=kv_tokens)
    values = (("max_num_seqs", 8), ("prefix_caching", "on"), ("waiting_order", "prefix"), *ALIKE)
    theirs = Episode(replace(ours, policy="deadline", values=values), trace=documents()).play()
    assert np.array_equal(Episode(ours, trace=documents()).play().state.requests, theirs.state.requests)


SCORES: dict[str, Callable[[dict[str, float]], float]] = {
    "arrival": lambda one: one["arrival"],
    "lpm": lambda one: -one["cached"],
    "dfs_weight": lambda one: -one["members"],
    "shortest": lambda one: one["tokens"],
    "least_work": lambda one: one["work"],
    "longest": lambda one: -one["tokens"],
    "edf": lambda one: one["due"] if one["due"] == one["due"] else 1e9 + one["arrival"],
    "jobs": lambda one: (1e12 * (one["seen"] and 1 + ((one["job"] > 32) != (one["free"] > 4096)))
                         - 1e5 * (one["job"] if one["seen"] else 128) - 1e-3 * one["tokens"]),
    "shortest_output": lambda one: one["left"],
    "first_job": lambda one: one["begun"], "attained": lambda one: one["attained"],
    "job_left": lambda one: one["job_left"],
    "shared_work": lambda one: one["work"] - one["shared"] * (1.0 - 1.0 / one["members"]),
}


@pytest.mark.parametrize("rule", SCORES)
def test_the_least_score_enters_first(rule: str) -> None:
    setup, most, orders = setup_of(rule=rule, refresh_s=0.0).with_(kv_tokens=12_000), 0, set()
    for _, expected, entered in iterations(setup, SCORES[rule], documents()):
        assert set(entered) == set(expected[: len(entered)])
        most = max(most, len(entered))
        orders.add(tuple(expected[:3]) != tuple(sorted(expected)[:3]))
    assert most > 0 and (rule == "arrival" or True in orders)


def log_of(number: float) -> float:
    """A logarithm as the index has it: from 0 to 1 at 22,025."""
    return min(1.0, 0.1 * steady(np.log1p(max(0.0, number))))


FIGURES: dict[str, Callable[[dict[str, float]], float]] = {
    "output": lambda one: log_of(one["left"]),
    "spread": lambda one: float(steady(one["spread"] / (one["left"] + one["spread"]))),
    "work": lambda one: log_of(SCORES["shared_work"](one) + 3.0 * one["left"]),
    "shared": lambda one: one["shared"] * (1.0 - 1.0 / one["members"]) / one["tokens"],
    "age": lambda one: log_of(one["now_s"] - one["arrival"] / s.PS_PER_S),
    "slack": lambda one: log_of(one["due"] - one["now_s"]) if one["due"] == one["due"] else 1.0,
    "output_memory": lambda one: log_of(one["left"]) * one["used"],
    "output_waiting": lambda one: log_of(one["left"]) * log_of(one["waiting"]),
}
ALL = dict(zip(FIGURES, (1.0, -0.5, 0.7, -2.0, -0.3, 0.2, 1.5, -2.5), strict=True))


@pytest.mark.parametrize("weights", [{}, ALL, *({name: sign} for name in FIGURES for sign in (-1.0, 1.0))], ids=str)
def test_the_index_is_its_weights_times_the_figures(weights: dict[str, float]) -> None:
    """Equal scores are in order of arrival, as are all without weights."""
    values = {f"w_{name}": weight for name, weight in weights.items()}
    setup, most = setup_of(rule="index", refresh_s=0.0, output_weight=3.0, **values), 0

    def score(one: dict[str, float]) -> tuple[float, float]:
        return sum(weight * FIGURES[name](one) for name, weight in weights.items()), one["arrival"]

    for _, expected, entered in iterations(setup.with_(kv_tokens=12_000), score, documents()):
        assert set(entered) == set(expected[: len(entered)])
        most = max(most, len(entered))
    assert most > 0


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_rule_serves_all(data: st.DataObject) -> None:
    """Memory binds, requests are preempted, looks are old: each request is served once, and all memory is free."""
    setup = setup_of(data.draw(traces()), rule=data.draw(st.sampled_from(admitter.RULES)), max_num_seqs=63,
                     refresh_s=data.draw(st.sampled_from((0.0, 0.5, 1000.0))),
                     preempted=data.draw(st.sampled_from(("recompute", "swap"))),
                     waiting_order="prefix")
    state = play(setup.with_(kv_tokens=data.draw(st.sampled_from((3000, 6000))), window_s=(0.0, 2000.0))).state
    assert set(state.requests["status"].tolist()) <= {s.FINISHED, s.REJECTED}
    assert state.instances[0]["running"] == 0 and state.instances[0]["offline_waiting"] == 0


@pytest.mark.parametrize("instances", [2, 3, 4])
def test_affinity_keeps_documents_together_up_to_its_bound(instances: int) -> None:
    def origins(affinity: float) -> tuple[list[set[int]], np.ndarray]:
        trace = documents(240, 24)
        setup = setup_of(affinity=affinity).with_(mixed=(("ascend_910c", 1),) * instances)
        origin = Episode(setup, trace=trace).play().state.requests["origin"]
        offsets, values = trace.prefix_hashes or (np.zeros(0), np.zeros(0))
        asked = {slot: int(values[offsets[slot]]) for slot in range(len(trace)) if offsets[slot] < offsets[slot + 1]}
        apart = [{int(origin[slot]) for slot, one in asked.items() if one == document}
                 for document in sorted(set(asked.values()))]
        return apart, np.bincount(origin, minlength=instances)

    together, counts = origins(100.0)
    assert all(len(one) == 1 for one in together) and len(set.union(*together)) == instances
    assert counts.min() > 0.3 * counts.mean()
    assert any(len(one) > 1 for one in origins(0.0)[0])
    bounded = origins(0.05)
    assert any(len(one) > 1 for one in bounded[0]) and bounded[1].max() <= counts.max()


def test_a_cluster_of_few_seats_is_refused() -> None:
    with pytest.raises(UserError, match="max_batch is 4; expected 17 or more"):
        play(setup_of(((0.0, 20, 4, False),), max_num_seqs=2).with_(rules={"max_batch": 4}))


def test_what_is_left_of_a_job_is_learned_from_what_has_ended() -> None:
    """One request at a time. Of client 1, one of three jobs has a second call; then, of three calls that wait, that of
    the client with the least service left goes first, and of client 1's that of the job whose first call has ended."""
    tokens = [100, 100, 400, 400, 400, 100, 400, 400, 100]
    client, job = np.array([0, 0, 1, 1, 1, 2, 1, 1, 0]), np.array([0, 1, 2, 2, 3, 4, 3, 5, 6])
    arrival_s = np.array([0.0, 0.1, 0.2, 2.0, 2.1, 4.0, 4.11, 4.1, 4.12])
    order = np.argsort(arrival_s)
    trace = Trace(arrival_s=arrival_s[order], prompt_tokens=np.array(tokens, np.int32)[order],
                  output_tokens=np.full(9, 8, np.int32), online=np.zeros(9, bool), client=client[order], job=job[order])
    setup = setup_of(rule="job_expected", refresh_s=0.0, max_num_seqs=1, waiting_order="arrival")
    episode = Episode(setup, trace=trace).play(until_ps=4 * s.PS_PER_S)
    service_ps, calls = episode.state.requests["service_ps"], episode.state.calls
    few, many = float(service_ps[0]), float(service_ps[2])
    assert few < many and calls.shape[0] == 4
    assert calls[0, 0].tolist() == [2.0, 2 * few, 2.0, few] and not calls[0, 1:].any()
    assert calls[1, 0].tolist() == [2.0, 2 * many, 0.0, 2 * many], "the one that went on had one more in the mean"
    assert calls[1, 1].tolist() == [1.0, many, 1.0, many]
    ended = np.argsort(episode.play().state.requests["finish_ps"])
    assert (client[order][ended[6:]].tolist(), job[order][ended[6:]].tolist()) == ([0, 1, 1], [6, 3, 5])
