"""What lies beyond the arithmetic of the clock is refused in a sentence, and what lies within it comes out right."""

from __future__ import annotations

import numba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.echo_benchmarks import draw_batches, prompt_lengths
from ooco_gym import Scenario, simulate
from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment, cost_table
from ooco_gym.perf.chip import load_chip
from ooco_gym.resources import load_yaml, names
from ooco_gym.schema import is_number
from ooco_gym.sim.mixed import share_of
from ooco_gym.simulation import LONGEST_S, requests_of

SMALL = Scenario(duration_s=20.0, warmup_s=0.0, drain_s=20.0, rate_scale=0.02)


@numba.njit
def share(elapsed_ps, part, whole):
    return share_of(elapsed_ps, part, whole)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_whole_numbers_beyond_any_float_are_refused(number):
    assert not is_number(number)
    for key in ("rate_scale", "duration_s", "start_s", "jitter"):
        with pytest.raises(UserError, match=key):
            simulate(SMALL.with_(**{key: number}), "ooco")
    for group, key in (("cluster", "kv_link_bytes_per_s"), ("chip", "memory_bytes")):
        with pytest.raises(UserError, match=f"{key}=.* must be a number"):
            {"cluster": Cluster.load, "chip": load_chip}[group](
                {**load_yaml(group, names(group)[0]), key: number})


@pytest.mark.parametrize("change", [{"decode_overhead_s": 1e308}, {"gemm_flops_per_s": 1e-3}])
def test_a_chip_whose_iterations_no_clock_holds_is_refused(change):
    chip = {**load_yaml("chip", "ascend_910c"), **change}
    with pytest.raises(UserError, match="an iteration of '.*' would take .* s; expected 1e\\+06 s at most"):
        cost_table(Deployment.from_config({"chip": chip, "model": "qwen2_5_7b", "tp": 1}), 8, 64)


@pytest.mark.parametrize("duration_s", [LONGEST_S, 1e9, 1e300])
def test_an_episode_longer_than_the_clock_is_refused_at_once(duration_s):
    with pytest.raises(UserError, match="duration_s=.* must be a number|exceeds the simulator's longest run"):
        requests_of(SMALL.with_(duration_s=duration_s))


@given(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(1, 10**6))
@settings(max_examples=500, deadline=None)
def test_a_share_of_an_iteration_needs_no_more_than_64_bits(elapsed_ps, part, whole):
    part = min(part, whole)
    assert share(elapsed_ps, part, whole) == elapsed_ps * part // whole


@pytest.mark.parametrize("memory_tokens", [8, 32, 256])
def test_echo_benchmarks_batches_of_an_instance_with_hardly_any_memory(memory_tokens):
    drawn = draw_batches(128, memory_tokens)
    assert prompt_lengths(memory_tokens)[-1] <= max(16, memory_tokens)
    assert all(contexts.sum() <= memory_tokens for contexts in drawn["decode"].contexts)
