"""Random requests under random settings, through the real scheduler and ours, until enough steps have been made.

Memory is that of the longest request and a few blocks to twice it, budgets are 16 to 8,192 tokens, blocks 16 to 128;
requests come all at once, in bursts or one by one; with prefix caching their prompts begin alike, or they are turns of
conversations. A quarter of the steps is made under each of the two policies with prefix caching off and on, half of
that with asynchronous scheduling where ours follows that release's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from ooco_gym.sim.engine_versions import ENGINE_VERSIONS
from ooco_gym.workload import Trace
from tests.oracle.cases import HASH_TOKENS, POLICIES, Case, conversations, shared_hashes
from tests.oracle.compare import agreement
from tests.oracle.schedulers import Oracle, simulate

GROUPS = [(policy, caching) for policy in POLICIES for caching in (False, True)]
ASYNCHRONOUS = ENGINE_VERSIONS[:2]  # whose asynchronous scheduling was held against ours
_ONE = np.ones(1, np.int64)
LARGEST = Case(Trace(_ONE, _ONE, _ONE), "vllm_fcfs", 10, max_num_batched_tokens=8192)   # whose cost tables fit all
_LONGEST = (20, 60, 60, 500, 2600)      # tokens of prompts


def fuzz(oracle: Oracle, steps: int, seed: int, engine_version: str,
         capped: bool = False, aborts: bool = False) -> list[dict[str, Any]]:
    """Plays random cases in each of `GROUPS` until its share of the steps is reached.

    Args:
        oracle: the real scheduler.
        steps: of the real scheduler, of all groups together.
        seed: of the cases.
        engine_version: whose schedule ours follows.
        capped: whether two cases in three have a `long_prefill_token_threshold`.
        aborts: whether one request in three leaves before it is done, if it is not by then; synchronously only.

    Returns:
        Of each group `policy`, `prefix_caching`, `async`, `cases`, `steps`, `identical_steps`, `identical_cases`,
        `preemptions_real`, `seconds`, and `first_difference` with the seeds of the first case that differs, or None.
    """
    modes = (False, True) if engine_version in ASYNCHRONOUS and not aborts else (False,)
    share = -(-steps // (len(GROUPS) * len(modes)))
    return [_group(oracle, place, share, seed, engine_version, mode, capped, aborts)
            for mode in modes for place in range(len(GROUPS))]


def fuzz_case(seeds: tuple[int, ...], policy: str, caching: bool, engine_version: str = ENGINE_VERSIONS[0],
              capped: bool = False) -> Case:
    """The case of these seeds: up to 40 requests."""
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(seeds)))
    n, block = int(draws.integers(2, 41)), int(draws.choice([16, 16, 16, 32, 64, 128]))
    arrival_s = _arrivals(draws, n)
    longest = int(draws.choice(_LONGEST))
    grain = int(draws.choice([1, block, 4 * block, HASH_TOKENS]))
    prompt = np.maximum(1, draws.integers(1, longest, n) // grain * grain)
    output = draws.integers(1, int(draws.choice([3, 40, 120, 120])), n)
    tokens = int(draws.choice([16, 64, 200, 512, 2048, 8192]))
    trace = Trace(arrival_s, prompt, output, draws.random(n) < draws.choice([0.2, 0.5, 0.8]),
                  name="fuzz " + " ".join(map(str, seeds)))
    if caching and draws.random() < 0.5:
        trace = conversations(draws, trace)
    elif caching:
        trace = replace(trace, prefix_hashes=shared_hashes(draws, prompt))
    needed = int((-(-(trace.prompt_tokens + trace.output_tokens + 1) // block)).max())
    slack = int(draws.choice([0, 0, 1, 3, 12, needed]))
    seats = min(tokens, int(draws.choice([2, 3, 5, 16, 40])))
    watermark = float(draws.choice([0.0, 0.0, 0.02, 0.1, 0.4])) if engine_version in ASYNCHRONOUS else 0.0
    most = int(draws.choice([0, 0, 8, 30, 100, 600])) if capped else 0
    return Case(trace, policy, needed + 1 + slack, seats, tokens, caching, block, engine_version, watermark=watermark,
                long_prefill_token_threshold=most)


def _arrivals(draws: np.random.Generator, n: int) -> np.ndarray:
    """All at once, at ties of a tenth of a second, or in bursts."""
    spread_s = float(draws.choice([0.0, 0.0, 0.5, 3.0]))
    times = np.round(spread_s * draws.random(n), 1)
    if draws.random() < 0.3:
        times = np.round(spread_s * draws.random(max(1, n // 10)), 1)[draws.integers(max(1, n // 10), size=n)]
    return np.sort(times)


def _group(oracle: Oracle, place: int, steps: int, seed: int, engine_version: str,
           asynchronous: bool, capped: bool, aborts: bool) -> dict[str, Any]:
    policy, caching = GROUPS[place]
    cases = made = identical = same = preemptions = 0
    first, begun = None, time.perf_counter()
    while made < steps:
        case = replace(fuzz_case((seed, place, cases), policy, caching, engine_version, capped),
                       asynchronous=asynchronous)
        if aborts:
            draws = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, place, cases, 1))))
            longest_s = draws.choice([0.1, 0.5, 3.0], len(case.trace))
            leaves = draws.random(len(case.trace)) < 1 / 3
            case = replace(case, patience_s=np.where(leaves, longest_s * draws.random(len(case.trace)), np.inf))
        found = agreement(oracle.play(case), simulate(case))
        cases += 1
        made += found.steps
        identical += found.identical
        same += found.whole
        preemptions += found.preemptions[0]
        if not found.whole and first is None:
            first = f"{case.trace.name}: {found.first}"
    return {"policy": policy, "prefix_caching": caching, "async": asynchronous, "cases": cases, "steps": made,
            "identical_steps": identical,
            "identical_cases": same, "preemptions_real": preemptions, "first_difference": first,
            "seconds": time.perf_counter() - begun}
