"""The designed batches: inside every engine's limits, and over all of its sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooco_gym.calibrate.measure.design import (
    Limits,
    burst,
    capacity_per_s,
    check,
    design,
    every_size,
    lengths,
    poisson,
    sizes,
)
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

PLAN: dict[str, Any] = dict(load_yaml("engine", "vllm"))["design"]
SERVE: dict[str, Any] = dict(load_yaml("engine", "vllm"))["serve"]
LIMITS = Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, kv_tokens=130_000, block_tokens=128)


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@settings(deadline=None, max_examples=200)
@given(first=st.integers(1, 100), last=st.integers(0, 100_000), factor=st.floats(1.1, 10))
def test_sizes_reach_from_first_to_last_in_no_larger_steps(first: int, last: int, factor: float) -> None:
    found = sizes(first, last, factor)
    if last < first:
        assert found == []
        return
    assert found[0] == first and found[-1] == last and found == sorted(set(found))
    # Each is rounded, by half a token at most.
    assert all(b <= max((a + 0.5) * factor + 0.5, a + 1) for a, b in pairwise(found))


limits = st.builds(Limits, max_num_seqs=st.integers(1, 256), max_num_batched_tokens=st.integers(256, 8192),
                   max_model_len=st.integers(64, 16_384), kv_tokens=st.integers(512, 200_000),
                   block_tokens=st.sampled_from([1, 16, 128]))


@settings(deadline=None, max_examples=60)
@example(limits=Limits(2, 2050, 75, 512, 1), seed=1, spread=0.5)
@given(limits=limits, seed=st.integers(0, 100), spread=st.floats(0, 0.9))
def test_no_case_asks_for_more_than_the_engine_has(limits: Limits, seed: int, spread: float) -> None:
    for case in design(limits, {**PLAN, "spread": spread}, draws(seed)):
        if "requests" in case:
            assert 1 <= case["concurrency"] <= limits.max_num_seqs
            for prompt, output in case["requests"]:
                assert prompt >= 1 and output >= 1 and prompt + output <= limits.max_model_len
            largest = sorted((p + o for p, o in case["requests"]), reverse=True)[:case["concurrency"]]
            assert sum(largest) <= limits.kv_tokens
            continue
        longest = max((length for group in case["prefills"] for length in group), default=0)
        assert 1 <= max(longest, case["context"]) < limits.max_model_len
        # Each request in the state grows by one token an iteration, of which at most one is spent on each prompt's
        # piece and one on each filling iteration.
        pieces = sum(-(-length // max(1, limits.max_num_batched_tokens - case["decodes"]))
                     for group in case["prefills"] for length in group)
        filling = -(-case["decodes"] * case["context"] // limits.max_num_batched_tokens)
        end = case["context"] + filling + case["steps"] + pieces
        assert not case["decodes"] or end <= limits.max_model_len
        held = case["decodes"] * (-(-end // limits.block_tokens) * limits.block_tokens)
        if case["decodes"]:
            held += -(-longest // limits.block_tokens) * limits.block_tokens
        else:
            held = sum(-(-length // limits.block_tokens) * limits.block_tokens for length in case["prefills"][0])
        assert held <= limits.kv_tokens
        assert case["decodes"] + bool(case["prefills"]) <= limits.max_num_seqs or not case["decodes"]


def test_a_pass_covers_all_sizes_and_all_kinds() -> None:
    cases = design(LIMITS, {**PLAN, "spread": 0.0}, draws())
    states = {(case["decodes"], case["context"]) for case in cases if case.get("decodes")}
    assert {decodes for decodes, _ in states} == {1, 2, 4, 8, 16, 32}
    assert min(context for _, context in states) == PLAN["first_context"]
    assert max(context for _, context in states) > 1500                 # nearly max_model_len
    assert all(decodes * context <= PLAN["fill_tokens"] for decodes, context in states)
    mixed = {length for case in cases if 0 < case.get("decodes", 0) < 32 for group in case["prefills"]
             for length in group}
    assert min(mixed) == PLAN["first_prefill"] and max(mixed) >= 480    # up to the token budget
    alone = [group for case in cases if case.get("decodes") == 0 for group in case["prefills"]]
    assert max(len(group) for group in alone) == 32 and min(len(group) for group in alone) == 1
    assert max(sum(group) for group in alone) > LIMITS.max_num_batched_tokens      # cut into pieces
    assert {case["concurrency"] for case in cases if "requests" in case} == {1, 2, 4, 8, 16, 32}


def test_passes_differ_and_are_reproducible() -> None:
    one, same = (design(LIMITS, PLAN, draws(5)) for _ in range(2))
    assert one == same
    source = draws(5)
    first, second = design(LIMITS, PLAN, source), design(LIMITS, PLAN, source)
    assert [case["name"] for case in first] != [case["name"] for case in second]


def test_every_number_of_tokens_is_run_once() -> None:
    assert [group[0] for group in every_size(LIMITS)["prefills"]] == list(range(1, 513))


@pytest.mark.parametrize(("key", "value"), [
    ("decode_factor", 1.0), ("decode_steps", 0), ("fill_tokens", 2.5), ("spread", 1.0), ("stream_rounds", -1)])
def test_a_plan_that_is_none_is_named(key: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"engine\.design\.{key}={value}"):
        check({"design": {**PLAN, key: value}, "serve": SERVE})


def test_an_engine_too_small_for_the_plan_is_named() -> None:
    with pytest.raises(UserError, match="leaves nothing to measure on an engine with 4 KV tokens"):
        design(Limits(4, 8, 8, 4, 4), {**PLAN, "first_context": 16, "first_prefill": 16, "stream_rounds": 0}, draws())


@settings(deadline=None, max_examples=50)
@given(longest=st.integers(8, 4096), seed=st.integers(0, 50), median=st.floats(1, 5000))
def test_requests_fit_the_engine(longest: int, seed: int, median: float) -> None:
    plan = {**SERVE, "prompt_tokens": {"median": median, "sigma": 1.5}}
    found = lengths(plan, 200, longest, draws(seed))
    assert found.min() >= 1 and found.sum(axis=1).max() < longest


def test_arrivals_come_at_the_rate_for_the_time_that_is_asked() -> None:
    requests = poisson({**SERVE, "duration_s": 100.0, "max_requests": 5000}, 20.0, 2048, draws())
    arrivals = [arrival for arrival, _, _ in requests]
    assert arrivals == sorted(arrivals) and abs(len(arrivals) - 2000) < 200 and abs(arrivals[-1] - 100.0) < 10.0
    assert len(poisson({**SERVE, "max_requests": 50}, 20.0, 2048, draws())) == 50
    assert {arrival for arrival, _, _ in burst(SERVE, 2048, draws())} == {0.0}


def test_capacity_is_the_rate_of_the_middle_half() -> None:
    records = [{"last_token_s": 5.0 + 0.1 * i} for i in range(100)] + [{"last_token_s": 90.0}]
    assert capacity_per_s(records) == pytest.approx(10.0)
    with pytest.raises(UserError, match=r"engine\.serve\.burst=2 requests are too few"):
        capacity_per_s(records[:2][:1] * 2)


def test_the_configuration_is_plain_yaml() -> None:
    assert yaml.safe_load(yaml.safe_dump(PLAN)) == PLAN
