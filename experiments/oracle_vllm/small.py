"""Small random cases in which memory binds at every turn: ties, block boundaries, shared beginnings, few seats."""

from __future__ import annotations

import numpy as np

from experiments.oracle_vllm.case import HASH_TOKENS, POLICIES, Case
from ooco_gym.workload import Trace

_GROUPS, _OWN = 4, 1_000_000


def random_case(seed: int) -> Case:
    """A case of up to 24 requests; every second one with prefix caching."""
    draws = np.random.Generator(np.random.Philox(seed))
    n, caching = int(draws.integers(2, 25)), seed % 2 == 1
    arrival_s = np.sort(np.round(draws.choice([0.0, 0.5, 3.0]) * draws.random(n), 1))
    grain, longest = int(draws.choice([1, 16, 64, HASH_TOKENS])), int(draws.choice([20, 60, 1500]))
    prompt = np.maximum(1, draws.integers(1, longest, n) // grain * grain)
    output = draws.integers(1, int(draws.choice([3, 40, 120])), n)
    needed = int((-(-(prompt + output + 1) // 16)).max())
    tokens = int(draws.choice([64, 200, 2048]))
    hashes = _hashes(draws, prompt) if caching else None
    trace = Trace(arrival_s, prompt, output, draws.random(n) < 0.5, prefix_hashes=hashes, name=f"small {seed}")
    return Case(trace, tuple(POLICIES)[seed // 2 % 2], needed + 1 + int(draws.choice([0, 0, 1, 3, 12])),
                int(draws.choice([2, 3, 5, 24])), tokens, caching)


def _hashes(draws: np.random.Generator, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each prompt begins like its group's, for a number of blocks; one in ten has no hashes."""
    values: list[int] = []
    offsets = [0]
    for slot, tokens in enumerate(prompt.tolist()):
        blocks = -(-tokens // HASH_TOKENS) if draws.random() < 0.9 else 0
        group, alike = int(draws.integers(_GROUPS)), int(draws.integers(blocks + 1))
        values += [1000 * group + k if k < alike else _OWN + 1000 * slot + k for k in range(blocks)]
        offsets.append(len(values))
    return np.array(offsets, np.int64), np.array(values, np.int64)
