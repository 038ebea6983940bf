"""Relaxed, strict and mixed instances in one cluster; random ones are in `episodes.setups`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym import Scenario, simulate
from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table, decode_latency_ps, prefill_latency_ps
from ooco_gym.policy import get_policy
from ooco_gym.policy.decisions import ROUTE, hook
from ooco_gym.sim import state as s
from tests.sim.episodes import setups
from tests.sim.harness import INSTANCE_FIELDS, REQUEST_FIELDS, Episode, Setup
from tests.sim.sides import check

CHIP = ("ascend_910c", 1)
PAIRS = ("online_priority:mixed=vllm_priority", "online_priority:mixed=conserve", "base_pd:mixed=vllm_fcfs",
         "ooco:gate=always,interrupt=always,mixed=sarathi_pp")
THREE = {"model": "qwen2_5_7b", "relaxed": [{"chip": CHIP[0]}], "strict": [{"chip": CHIP[0]}],
         "mixed": [{"chip": CHIP[0]}]}


def test_one_request_on_each_side() -> None:
    """Equal chips: the first prompt stays where the pools' rule sends it, the second finds the mixed one free."""
    setup = Setup(((0.0, 1000, 3, True), (0.0, 1000, 3, True)), mixed=(CHIP,),
                  policy="ooco:mixed=deadline,mixed.max_num_seqs=64")
    played = Episode(setup).play()
    table = cost_table(played.machines[0].deployment, 64)
    pools, mixed = played.state.requests
    assert (pools["origin"], pools["instance"]) == (0, 2) and (mixed["origin"], mixed["instance"]) == (1, 1)
    prompt_ps = prefill_latency_ps(table, [(1000, 1000)])
    moved_ps = int(1000 * table.kv_bytes_per_token / 25e9 * s.PS_PER_S)
    steps_ps = [decode_latency_ps(table, 1, context) for context in (1001, 1002)]
    assert pools["first_token_ps"] == prompt_ps and pools["finish_ps"] == prompt_ps + moved_ps + sum(steps_ps)
    assert mixed["first_token_ps"] == prompt_ps and mixed["finish_ps"] == prompt_ps + sum(steps_ps)


@hook(ROUTE, flushes=True)
def by_parity(view):
    """Every second request to a mixed instance, in turn."""
    config = view.state.config
    if view.request % 2 == 0:
        return view.instance
    return config.relaxed_count + view.request // 2 % config.mixed_count


@hook(ROUTE, flushes=True)
def in_turn(view):
    return view.request % view.state.config.relaxed_count


@given(setups(noisy=False, random_rules=False), st.sampled_from(PAIRS))
def test_neither_side_knows_of_the_other(setup: Setup, pair: str) -> None:
    """With the same requests each side does what it does as a cluster of its own."""
    seats = f",mixed.max_num_seqs={min(4, setup.rules['max_batch'])},mixed.prefix_caching=off"
    both = replace(get_policy(pair + seats), between=by_parity)
    steered = ("role_changes", "groups", "scale_interval_s", "decode_first_token")
    rules = {key: value for key, value in setup.rules.items() if key not in steered}
    setup = setup.with_(policy=both, values=(), mixed=(CHIP, ("h800", 1)), rules=rules)
    whole = to_the_end(setup)
    pools = to_the_end(setup.with_(requests=setup.requests[::2], mixed=(), policy=replace(both, mixed_by=None)))
    mixed = to_the_end(setup.with_(requests=setup.requests[1::2], relaxed=(), strict=(),
                                   policy=replace(both.mixed_by, route=in_turn)))
    is_mixed = whole.instances["role"] == s.MIXED
    for first, there, alone in ((0, ~is_mixed, pools), (1, is_mixed, mixed)):
        for name in set(REQUEST_FIELDS) - {"instance", "origin", "target", "service_ps", "row"}:
            assert np.array_equal(whole.requests[name][first::2], alone.requests[name]), name
        for name in set(INSTANCE_FIELDS) - {"kv_times_us"}:
            assert np.array_equal(whole.instances[name][there], alone.instances[name]), name


def to_the_end(setup: Setup) -> s.State:
    episode = Episode(setup)
    episode.state.gauges.open_online = 1 << 30
    return episode.play(round(4000 * s.PS_PER_S)).state


def test_what_either_side_does_comes_up() -> None:
    """Both lack memory, and keep prefixes apart; offline work goes where less waits."""
    rows = tuple(sorted([(0.11 * i, 300 + 37 * (i % 11), 40 + 13 * (i % 7), True) for i in range(60)]
                        + [(0.07 * i, 200 + 61 * (i % 13), 60 + 17 * (i % 5), False) for i in range(90)]))
    for caching in ("on", "off"):
        values = (("prefix_caching", caching), ("mixed.prefix_caching", caching), ("mixed.max_num_seqs", 64))
        setup = Setup(rows, policy="ooco:mixed=vllm_priority", values=values, mixed=(CHIP,), kv_tokens=2000)
        for state in Episode(setup).events(4000):
            check(state)
        requests = to_the_end(setup).requests
        mixed = requests["instance"] == 1
        assert (requests["status"] == s.FINISHED).all()
        for side in (mixed, ~mixed):
            assert set(requests["online"][side]) == {0, 1} and (requests["evictions"][side] > 0).any()


@pytest.mark.parametrize(("cluster", "policy", "message"), [
    (THREE, "ooco", "schedules relaxed and strict instances, but cluster 'custom' has relaxed, strict and mixed"),
    (THREE, "deadline", "take a policy for pools and one for mixed instances, such as policy=ooco:mixed=deadline"),
    ("mixed_7b", "ooco:mixed=deadline", "schedules relaxed, strict and mixed instances, but cluster 'mixed_7b' has"),
    (THREE, "ooco:mixed=base_pd", "mixed=base_pd cannot schedule mixed instances beside it: base_pd schedules relaxed"),
    (THREE, "ooco:mixed=vllm_fcfs", "one of both treats offline requests as online ones"),
    (THREE, "ooco:mixed=bros", "no mixed.bidirectional"),
    (THREE, "ooco:mixed=vllm_priority", "give prefix_caching and mixed.prefix_caching the same value"),
    (THREE, "ooco:mixed.growth=1", "mixed.growth is a parameter of a policy of mixed instances, and none is named"),
    (THREE | {"role_changes": [{"at_s": 1, "relaxed": 1}]}, "ooco:mixed=deadline", "without mixed instances"),
    (THREE | {"mixed": [{"chip": CHIP[0], "max": 2}]}, "ooco:mixed=deadline", "beside relaxed and strict ones none"),
    (THREE | {"strict": []}, "ooco:mixed=deadline", "pool 'strict' needs at least one instance"),
])
def test_what_does_not_go_together_is_said(cluster: object, policy: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        simulate(Scenario(cluster=cluster, rate_scale=0.01, duration_s=10.0), policy)
