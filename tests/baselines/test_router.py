"""Routers: `deadline` where a rule says the same, rules by hand, figures that lag, and what weights make of a score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import router
from ooco_gym.perf import cost_table, prefill_latency_ps
from ooco_gym.policy import router_view as v
from ooco_gym.policy.weights import write_weights
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup, play

UNEQUAL = (("h100", 1), ("a100_80g", 1), ("l40s", 1))
ALIKE = (("chunk_efficiency", 0.95), ("decode_share", 1.0))  # which the two ship with differently
MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": UNEQUAL, "window_s": (0.0, 20.0)}
PLAIN = {"rule": "requests", "sent_weight": 0.0, "waiting_weight": 1.0, "speed_share": 0.0, "lag_s": 0.0}
BUSY = tuple((0.02 * i, 300 + 170 * (i % 9), 5 + 11 * (i % 7), i % 5 > 0) for i in range(120))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def setup_of(rows: Any = BUSY, **values: Any) -> Setup:
    """Requests on three unequal mixed instances under a router."""
    return Setup(rows, policy="router", values=tuple({"max_num_seqs": 63, **values}.items()), **MIXED)


def weighted(folder: Path, rows: Any = BUSY, weights: dict[str, float] | None = None, **values: Any) -> Setup:
    vector = np.zeros(router.LAYOUT.size)
    for name, value in (weights or {}).items():
        vector[v.COLUMNS.index(name)] = value
    file = folder / f"{abs(hash(tuple(vector)))}.npz"
    write_weights(file, router.LAYOUT, vector)
    return setup_of(rows, weights=str(file), **values)


def decisions(setup: Setup, trace: Trace | None = None) -> Iterator[tuple[Episode, int, int]]:
    """Plays on; yields each routed online request with its instance, the figures as the rule has left them."""
    episode = Episode(setup, outside=("route",), trace=trace)
    answer = s.ASK
    while episode.advance(answer=answer) == s.ASKED:
        slot, answer = int(episode.state.pending.request), episode.rule_answer()
        if episode.state.requests[slot]["online"]:
            yield episode, slot, answer


def queue_of(state: s.State, instance: int) -> tuple[int, int, int]:
    """(Online prompt tokens ahead, online requests that decode, their context), by hand."""
    spec, requests = state.instances[instance], state.requests
    queue, count, context = 0, 0, 0
    for slot in state.members[s.BATCH, instance, : spec["running"]]:
        one = requests[slot]
        length = int(one["prompt_tokens"] + one["generated_tokens"])
        if one["online"] and one["generated_tokens"] and length - one["num_computed_tokens"] == 1:
            count, context = count + 1, context + length
        elif one["online"]:
            queue += max(0, length - int(one["num_computed_tokens"]) - int(one["num_scheduled_tokens"]))
    slot = int(spec["online_head"])
    while slot >= 0:
        queue += int(requests[slot]["prompt_tokens"] + requests[slot]["generated_tokens"])
        slot = int(requests[slot]["next"])
    return queue, count, context


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_requests_without_lag_is_deadline(data: st.DataObject) -> None:
    kv_tokens = data.draw(st.sampled_from((None, 6000)))
    values = (("max_num_seqs", 63), *ALIKE)
    of = Setup(data.draw(traces()), policy="deadline", values=values, kv_tokens=kv_tokens, **MIXED)
    ours = replace(of, policy="router", values=(*of.values, *PLAIN.items()))
    played, routed = play(of), play(ours)
    assert np.array_equal(played.state.requests, routed.state.requests)
    assert played.state.totals.as_dict() == routed.state.totals.as_dict()


def test_rules_score_by_hand() -> None:
    tables = [cost_table(machine.deployment) for machine in Episode(setup_of()).machines]
    pace = np.array([prefill_latency_ps(table, [(v.PACE_TOKENS, v.PACE_TOKENS)]) for table in tables])
    pace = pace / s.PS_PER_S / v.PACE_TOKENS
    values = {"sent_weight": 0.5, "waiting_weight": 4.0, "speed_share": 1.5, "queue_weight": 0.7, "decode_tokens": 20.0}
    seen = set()
    for rule in ("requests", "lmetric", "latency"):
        for episode, slot, chosen in decisions(setup_of(rule=rule, **values)):
            state, now = episode.state, int(episode.state.clock.now_ps)
            spec = state.instances
            tokens = int(state.requests[slot]["prompt_tokens"])
            ahead = np.array([queue_of(state, i)[0] for i in range(3)])
            load = spec["urgent_members"] + spec["online_waiting"] + 3.0 * spec["online_waiting"]
            score = (load + 1) * (pace / pace.mean()) ** 1.5
            if rule == "lmetric":
                score *= tokens + 0.7 * ahead
            if rule == "latency":
                own = [prefill_latency_ps(table, [(tokens, tokens)]) / s.PS_PER_S for table in tables]
                busy = np.where(spec["activity"] == s.MIXING, spec["end_ps"] - now, 0) / s.PS_PER_S
                assert np.allclose(state.memory[:, v.LATENCY_S], busy + ahead * pace + own)
                score = state.memory[:, v.LATENCY_S] + 20.0 * state.memory[:, v.STEP_S]
            assert np.allclose(state.memory[:, v.SCORE], score)
            assert chosen == np.argmin(state.memory[:, v.SCORE])
            assert [queue_of(state, i)[1:] for i in range(3)] == [
                tuple(state.memory[i, [v.DECODES, v.CONTEXT]].astype(int)) for i in range(3)]
            seen.add((rule, chosen))
    assert len(seen) > 4


def test_figures_are_as_old_as_the_lag_and_what_was_sent_is_not() -> None:
    before: Any = None
    looks: list[int] = []
    sent = np.zeros(3)
    for episode, _, chosen in decisions(setup_of(lag_s=0.5, rule="requests")):
        memory, now = episode.state.memory, int(episode.state.clock.now_ps)
        looked = int(memory[0, v.LOOKED]) - 1
        assert now - looked < 0.5 * s.PS_PER_S
        if not looks or looked != looks[-1]:
            looks.append(looked)
            sent[:] = 0.0
            assert looked == now
        else:
            assert np.array_equal(memory[:, v.ONLINE : v.SENT], before)
        sent[chosen] += 1.0
        assert np.array_equal(memory[:, v.SENT], sent)
        before = memory[:, v.ONLINE : v.SENT].copy()
    assert len(looks) > 2 and min(np.diff(looks)) >= 0.5 * s.PS_PER_S


def shared(count: int = 60) -> Trace:
    """Requests of four documents of 2,048 tokens, in turn, with a question of 64 tokens each."""
    document = np.arange(count) % 4
    offsets = np.arange(count + 1) * 4
    values = (document[:, None] * 4 + np.arange(4)).ravel() + 1
    return Trace(arrival_s=0.15 * np.arange(count), prompt_tokens=np.full(count, 2112, np.int32),
                 output_tokens=np.full(count, 60, np.int32), online=np.ones(count, bool),
                 prefix_hashes=(offsets, values.astype(np.int64)))


def test_prefixes_stick_to_an_instance_while_loads_are_in_balance() -> None:
    def chosen(**values: Any) -> list[set[int]]:
        setup = setup_of(rule="sticky", prefix_caching="on", speed_share=0.0, ttft_share=0.0, **values).with_(
            mixed=(("h100", 1),) * 3)
        found = [instance for *_, instance in decisions(setup, shared())]
        return [set(found[first + 12 :: 4]) for first in range(4)]

    assert [len(one) for one in chosen(cache_threshold=0.5)] == [1, 1, 1, 1]
    assert max(len(one) for one in chosen(cache_threshold=1.0)) > 1  # the question is never cached
    assert max(len(one) for one in chosen(cache_threshold=0.5, balance_abs=0.0, balance_rel=1.0)) > 1


@pytest.mark.parametrize(("weights", "instance"), [({"pace": 15.0}, 0), ({"pace": -15.0}, 2)])
def test_weights_turn_the_choice(weights: dict[str, float], instance: int, folder: Path) -> None:
    found = [chosen for *_, chosen in decisions(weighted(folder, weights=weights, **PLAIN))]
    plain = [chosen for *_, chosen in decisions(setup_of(**PLAIN))]
    assert found.count(instance) > max(0.4 * len(found), 1.2 * plain.count(instance))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_weights_leave_scores_that_can_be_compared(folder: Path, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = dict(zip(v.COLUMNS, (30.0 * random.normal(size=len(v.COLUMNS))).tolist(), strict=True))
    setup = weighted(folder, data.draw(traces()), weights, rule=data.draw(st.sampled_from(router.RULES)),
                     lag_s=data.draw(st.sampled_from((0.0, 0.3))))
    for episode, _, chosen in decisions(setup):
        scores = episode.state.memory[:, v.SCORE]
        assert (scores >= 0.0).all() and np.isfinite(scores).any() and chosen == np.argmin(scores)


def test_without_a_rule_the_weights_alone_choose(folder: Path) -> None:
    chosen = [(episode.state.memory[:, v.LATENCY_S].argmin(), one)
              for episode, _, one in decisions(weighted(folder, weights={"rank": 1.0}, rule="none"))]
    assert len({one for _, one in chosen}) > 1 and all(first == one for first, one in chosen)
    assert {one for _, _, one in decisions(setup_of(rule="none"))} == {0}


def test_routing_is_charged_for_what_violates_an_slo() -> None:
    env: Any = gym.make("ooco_gym/Routing-v2", window_s=40.0, warmup_s=5.0,
                        scenario={"workload": "doc_qa", "rate_scale": 9.0}).unwrapped
    env.reset(seed=1)
    rewards, over = [], False
    while not over:
        rewards.append(env.step(len(rewards) % 4 + 2))
        over = rewards[-1][3]
    missed = rewards[-1][4]["summary"]["online_violated"]
    assert sum(one[1] for one in rewards) == pytest.approx(-10.0 * missed) and missed > 0
    assert sum(one[1] for one in rewards[:5]) < 0.0  # before any deadline has passed
