"""The designed batches: inside every engine's limits, and over all of its sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooco_gym.calibrate.measure.design import (
    FIRST_CONTEXT,
    FIRST_PREFILL,
    SPREAD,
    EngineLimits,
    design,
    lengths,
    sizes,
)
from ooco_gym.resources import load_yaml

PLAN: dict[str, Any] = dict(load_yaml("engine", "vllm"))["design"]
SERVE: dict[str, Any] = dict(load_yaml("engine", "vllm"))["serve"]
LIMITS = EngineLimits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, kv_tokens=130_000,
                      block_tokens=128)


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


limits = st.builds(EngineLimits, max_num_seqs=st.integers(1, 256), max_num_batched_tokens=st.integers(256, 8192),
                   max_model_len=st.integers(64, 16_384), kv_tokens=st.integers(512, 200_000),
                   block_tokens=st.sampled_from([1, 16, 128]), asynchronous=st.booleans())


@settings(deadline=None, max_examples=60)
@example(limits=EngineLimits(2, 2050, 75, 512, 1), seed=1)
@given(limits=limits, seed=st.integers(0, 100))
def test_no_case_asks_for_more_than_the_engine_has(limits: EngineLimits, seed: int) -> None:
    for case in design(limits, PLAN, draws(seed)):
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
        # piece and one on each filling iteration; an asynchronous engine has one more in its queue after each run.
        pieces = sum(-(-length // max(1, limits.max_num_batched_tokens - case["decodes"]))
                     for group in case["prefills"] for length in group)
        queued = int(limits.asynchronous)
        assert case.get("run", 1) == (3 if queued and case["decodes"] else 1)
        pieces = pieces * case.get("run", 1) + queued * (len(case["prefills"]) + 1)
        filling = -(-case["decodes"] * case["context"] // limits.max_num_batched_tokens)
        end = case["context"] + filling + case["steps"] + pieces
        assert not case["decodes"] or end <= limits.max_model_len
        held = case["decodes"] * (-(-end // limits.block_tokens) * limits.block_tokens)
        if case["decodes"]:
            held += (1 + queued) * -(-longest // limits.block_tokens) * limits.block_tokens
        else:
            held = sum(-(-length // limits.block_tokens) * limits.block_tokens for length in case["prefills"][0])
        assert held <= limits.kv_tokens
        beside = (1 + queued) * bool(case["prefills"])
        assert case["decodes"] + beside <= limits.max_num_seqs or not case["decodes"]


def test_a_pass_covers_all_sizes_and_all_kinds() -> None:
    cases = design(LIMITS, PLAN, draws())
    states = {(case["decodes"], case["context"]) for case in cases if case.get("decodes")}
    assert {decodes for decodes, _ in states} == {1, 2, 4, 8, 16, 32}
    assert min(context for _, context in states) <= FIRST_CONTEXT * (1 + SPREAD)
    assert max(context for _, context in states) > 1500                 # nearly max_model_len
    assert all(decodes * context <= PLAN["fill_tokens"] for decodes, context in states)
    mixed = {length for case in cases if 0 < case.get("decodes", 0) < 32 for group in case["prefills"]
             for length in group}
    assert min(mixed) <= FIRST_PREFILL * (1 + SPREAD) and max(mixed) >= 480    # up to the token budget
    alone = [group for case in cases if case.get("decodes") == 0 for group in case["prefills"]]
    assert max(len(group) for group in alone) == 32 and min(len(group) for group in alone) == 1
    assert max(sum(group) for group in alone) > LIMITS.max_num_batched_tokens      # cut into pieces
    assert {case["concurrency"] for case in cases if "requests" in case} == {1, 2, 4, 8, 16, 32}


@settings(deadline=None, max_examples=50)
@given(longest=st.integers(8, 4096), seed=st.integers(0, 50), median=st.floats(1, 5000))
def test_requests_fit_the_engine(longest: int, seed: int, median: float) -> None:
    plan = {**SERVE, "prompt_tokens": {"median": median, "sigma": 1.5}}
    found = lengths(plan, 200, longest, draws(seed))
    assert found.min() >= 1 and found.sum(axis=1).max() < longest
